"""Synchronous data-parallel learning: one process a rank."""
