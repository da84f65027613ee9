"""Backends: actors and learners in one process, in threads, in ranks, on Ray."""
