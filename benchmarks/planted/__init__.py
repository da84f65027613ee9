"""Faults that are planted into training, for `benchmarks/faults.py`."""
