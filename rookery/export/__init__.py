"""A trained policy as files that other programs run: ONNX, and compiled for LibTorch."""
