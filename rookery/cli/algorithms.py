"""rookery algorithms [ALGO]"""

from __future__ import annotations

from collections.abc import Sequence

from rookery.algorithms import ALGORITHMS, algorithm_class
from rookery.config import presets
from rookery.errors import require
from rookery.fields import help_text, parse_flags, to_dict
from rookery.runs.files import to_json


def main(args: Sequence[str]) -> int:
    """List the algorithms, or the settings and presets of one."""
    if {"-h", "--help"} & set(args):
        print("rookery algorithms [ALGO] [--json]")
        return 0
    given, names = parse_flags(args, {"json": bool})
    require(len(names) <= 1, f"algorithms: expected at most one name, got {len(names)}")
    listed = {name: algorithm_class(name) for name in names or sorted(ALGORITHMS)}
    if given.get("json"):
        found = {
            name: {"settings": to_dict(cls.Config()), "presets": sorted(presets(name))}
            for name, cls in listed.items()
        }
        print(to_json(found))
        return 0
    for name, cls in listed.items():
        print(f"{name:<6} {(cls.__doc__ or '').splitlines()[0]}")
        print(f"       presets: {', '.join(sorted(presets(name)))}")
    if names:
        print(help_text(listed[names[0]].Config, prefix="algo"))
    return 0
