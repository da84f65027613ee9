"""Engines that step the copies of an environment."""
