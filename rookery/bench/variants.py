"""Expand parameters into variants, and fill commands with the values of a variant."""

from __future__ import annotations

import itertools
import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from rookery.errors import BadInput, require

Value = str | int | float | bool | None
MAX_VARIANTS = 10_000
PLACEHOLDER = re.compile(r"\{\{(?P<literal>[A-Za-z_]\w*)\}\}|\{(?P<name>[A-Za-z_]\w*)\}")
"""{name} is replaced by a value, {{name}} by {name}; other braces are left alone."""
PYTHON = "python"


def variants_of(parameters: Any) -> list[dict[str, Value]]:
    """Return the values of each variant by name; without parameters there is one empty variant."""
    if parameters is None:
        return [{}]
    if isinstance(parameters, Mapping):
        for name, values in parameters.items():
            fine = isinstance(values, list) and values
            require(fine, f"parameters.{name}: expected a list of values")
        count = math.prod(len(values) for values in parameters.values())
        limit = f"at most {MAX_VARIANTS:,} are allowed"
        require(count <= MAX_VARIANTS, f"parameters: {count:,} variants; {limit}")
        names, rows = list(parameters), list(itertools.product(*parameters.values()))
    else:
        shaped = isinstance(parameters, list) and all(isinstance(row, list) for row in parameters)
        require(
            shaped and len(parameters) > 1,
            "parameters: expected a header row and rows of values, or lists by name",
        )
        names, rows = parameters[0], parameters[1:]
    for name in names:
        usable = isinstance(name, str) and name.isidentifier() and names.count(name) == 1
        require(usable, f"parameters: {name!r} is not a parameter name, or is used twice")
    for number, row in enumerate(rows, 1):
        require(
            len(row) == len(names),
            f"parameters: row {number} has {len(row)} of {len(names)} values",
        )
        for value in row:
            require(
                is_value(value), f"parameters: {value!r} is neither text nor a number; quote it"
            )
    return [dict(zip(names, row, strict=True)) for row in rows]


def is_value(value: Any) -> bool:
    """True if the value can be put into a command."""
    return value is None or isinstance(value, str | int | float)


def text_of(value: Any) -> str:
    """Return a value as typed on a command line: true, none, 0.5."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def variant_label(benchmark: str, parameters: Mapping[str, Any]) -> str:
    """Return the name of a benchmark with the parameters of a variant, if it has any."""
    values = ", ".join(f"{name}={text_of(value)}" for name, value in parameters.items())
    return f"{benchmark} [{values}]" if values else benchmark


def split_command(cmd: Any) -> list[str]:
    """Return the words of a command, which may be a list, or text that is split as in a shell."""
    if isinstance(cmd, list):
        require(all(is_value(word) for word in cmd), "cmd: expected a list of words")
        words = [text_of(word) for word in cmd]
    else:
        require(isinstance(cmd, str), "cmd: expected text or a list of words")
        try:
            words = shlex.split(cmd)
        except ValueError as error:
            raise BadInput(f"cmd: {error}") from None
    require(words and words[0], "cmd: is empty")
    return words


def placeholders(text: Any) -> set[str]:
    """Return the names in braces in `text`, except {python}."""
    found = {match["name"] for match in PLACEHOLDER.finditer(text_of(text)) if match["name"]}
    return found - {PYTHON}


def fill(text: Any, values: Mapping[str, Any]) -> str:
    """Return `text` with placeholders replaced by values."""

    def replace(match: re.Match[str]) -> str:
        return f"{{{match['literal']}}}" if match["literal"] else text_of(values[match["name"]])

    return PLACEHOLDER.sub(replace, text_of(text))


def environment_of(env: Mapping[str, Any], values: Mapping[str, Value]) -> dict[str, str]:
    """Return the environment variables that a spec sets for a variant."""
    known = {PYTHON: sys.executable, **values}
    return {name: fill(text, known) for name, text in env.items()}


def command_of(
    words: Sequence[str], env: Mapping[str, str], values: Mapping[str, Value]
) -> list[str]:
    """Return the command of a variant. Each word stays one word, whatever the values contain."""
    known = {PYTHON: sys.executable, **env, **values}
    return [fill(word, known) for word in words]


def is_training(command: Sequence[str]) -> bool:
    """True if the command runs `rookery train`, also through a launcher or `python -m`."""
    return any(
        PurePath(program).name == "rookery" and word == "train"
        for program, word in itertools.pairwise(command)
    )


def with_profile(command: Sequence[str]) -> list[str]:
    return [*command] if "--profile" in command else [*command, "--profile"]


def seed_of(command: Sequence[str], values: Mapping[str, Value]) -> Value:
    """Return the parameter `seed` or the value of `--seed`; None without either."""
    if "seed" in values:
        return values["seed"]
    found: Value = None
    for word, after in itertools.pairwise([*command, ""]):
        if word == "--seed" and after:
            found = after
        elif word.startswith("--seed="):
            found = word.partition("=")[2]
    return int(found) if isinstance(found, str) and re.fullmatch(r"-?\d{1,30}", found) else found
