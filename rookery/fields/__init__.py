"""Typed dataclasses to and from plain dicts and command-line text.

A setting has a dotted name (`algo.gamma`) that is the same in a config file, in an error
message and, after two dashes, on the command line.
"""

from rookery.fields.convert import from_dict, to_dict
from rookery.fields.describe import MISSING, FieldInfo, flags_of
from rookery.fields.flags import flag_name, help_text, nest, parse_flags, take_all, value_of

__all__ = [
    "MISSING",
    "FieldInfo",
    "flag_name",
    "flags_of",
    "from_dict",
    "help_text",
    "nest",
    "parse_flags",
    "take_all",
    "to_dict",
    "value_of",
]
