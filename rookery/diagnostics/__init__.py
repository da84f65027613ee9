"""Tools that show how a run computes."""
