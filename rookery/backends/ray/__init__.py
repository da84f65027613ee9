"""Actors, learners and replay shards as Ray actors."""
