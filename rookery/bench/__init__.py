"""Benchmarks from a YAML spec: commands are run, and numbers read from what they print."""
