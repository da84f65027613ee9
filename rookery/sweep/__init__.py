"""A search for good settings: many trials, each a point of a space, run on Ray Tune."""
