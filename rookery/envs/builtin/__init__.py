"""Environments that Rookery brings."""
