"""What shows how a run computes and why it does not learn."""
