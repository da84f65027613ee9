"""Benchmarks from YAML specs: run commands and extract metrics from their output."""
