"""Engines: the vector environments that step the copies of an environment."""
