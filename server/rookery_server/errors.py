"""The error that ends the command with one line."""


class Unusable(Exception):
    """A setting, file or environment that cannot be used."""
