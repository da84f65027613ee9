"""Training runs: the loop, reports, checkpoints, evaluation."""
