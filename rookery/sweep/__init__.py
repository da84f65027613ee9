"""Hyperparameter search: many trials, each one point of the search space, run on Ray Tune."""
