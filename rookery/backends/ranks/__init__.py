"""Synchronous data-parallel learning with one process per rank."""
