"""What ends the command with one line."""


class Unusable(Exception):
    """A setting, a file or an environment that cannot be used as it is."""
