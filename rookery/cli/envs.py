"""rookery envs [WORD]"""

from __future__ import annotations

from collections.abc import Sequence

from rookery.envs import registered_envs
from rookery.errors import require
from rookery.fields import parse_flags
from rookery.runs.files import to_json


def main(args: Sequence[str]) -> int:
    """List the environments whose name contains WORD, each with the engine that runs it."""
    if {"-h", "--help"} & set(args):
        print("rookery envs [WORD] [--json]")
        return 0
    given, words = parse_flags(args, {"json": bool})
    require(len(words) <= 1, f"envs: expected at most one word to search for, got {len(words)}")
    word = words[0].lower() if words else ""
    listed = [env for env in registered_envs() if word in env.name.lower()]
    if given.get("json"):
        print(to_json({env.name: env.engine for env in listed}))
        return 0
    for env in listed:
        print(f"{env.name:<42} {env.engine}")
    return 0
