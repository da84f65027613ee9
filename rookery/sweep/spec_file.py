"""Read a sweep described in a YAML file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rookery.config import read_config
from rookery.errors import BadInput, nearest, require
from rookery.sweep.space import FORMS


def read_spec(path: str, options: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the command in the file (with algorithm and environment), and the
    settings of the runs by dotted name."""
    given = read_config(path, "spec")
    settings = given.pop("settings", {})
    known = ["algorithm", "environment", *options]
    for name in given:
        if name not in known:
            close = nearest(str(name), [*known, "settings"])
            raise BadInput(
                f"spec: {path}: no such option: {name}.{close} Settings of the runs"
                " belong under settings"
            )
    require(isinstance(settings, Mapping), f"spec: {path}: settings must be a mapping")
    return given, flatten(settings)


def flatten(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """{"algo": {"gamma": 1}} as {"algo.gamma": 1}; search spaces and JSON objects stay nested."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        dotted = f"{path}.{name}" if path else str(name)
        group = isinstance(value, Mapping) and not (len(value) == 1 and next(iter(value)) in FORMS)
        if group and dotted not in ("env.kwargs", "net.parts"):
            flat |= flatten(value, dotted)
        else:
            flat[dotted] = value
    return flat
