"""Export a trained policy to files that other programs run: ONNX, or compiled for LibTorch."""
