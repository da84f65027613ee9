"""Where actors and learners run: in one process, in threads, in ranks, on Ray."""
