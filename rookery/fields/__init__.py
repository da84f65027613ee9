"""Conversion of typed dataclasses to and from plain dicts and command-line flags.

A setting has one dotted name (`algo.gamma`) in config files, in error messages and, after two
dashes, on the command line.
"""

from rookery.fields.convert import MISSING, FieldInfo, flags_of, from_dict, require_least, to_dict
from rookery.fields.flags import flag_name, help_text, nest, parse_flags, peek_flag

__all__ = [
    "MISSING",
    "FieldInfo",
    "flag_name",
    "flags_of",
    "from_dict",
    "help_text",
    "nest",
    "parse_flags",
    "peek_flag",
    "require_least",
    "to_dict",
]
