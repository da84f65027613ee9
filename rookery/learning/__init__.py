"""Actors, the learner, optimizers, sums over ranks, evaluation."""
