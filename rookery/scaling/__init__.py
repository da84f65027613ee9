"""Scaling studies: speed by number of actors, measured, ideal and predicted."""
