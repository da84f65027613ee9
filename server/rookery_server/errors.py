"""Errors of the server."""


class Unusable(Exception):
    """A setting, file or environment that cannot be used; it ends the command with one line."""


class Refused(Exception):
    """A message that is not carried out; `kind` is the kind of error in the protocol."""

    def __init__(self, kind: str, text: str):
        super().__init__(text)
        self.kind = kind
