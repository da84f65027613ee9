"""A sweep described in YAML."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rookery.config import read_config
from rookery.errors import BadInput, nearest, require
from rookery.sweep.space import FORMS


def read_spec(path: str, options: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the command in the file (algorithm and environment among them), and the
    settings of the runs by their dotted names."""
    told = read_config(path, "spec")
    settings = told.pop("settings", {})
    known = ["algorithm", "environment", *options]
    for name in told:
        if name not in known:
            close = nearest(str(name), [*known, "settings"])
            raise BadInput(
                f"spec: {path}: no such option: {name}.{close} Settings of the runs"
                " stand under settings"
            )
    require(isinstance(settings, Mapping), f"spec: {path}: settings must hold names and values")
    return told, flatten(settings)


def flatten(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """{"algo": {"gamma": 1}} as {"algo.gamma": 1}; a search, and JSON objects, stay whole."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        dotted = f"{path}.{name}" if path else str(name)
        group = isinstance(value, Mapping) and not (len(value) == 1 and next(iter(value)) in FORMS)
        if group and dotted not in ("env.kwargs", "net.parts"):
            flat |= flatten(value, dotted)
        else:
            flat[dotted] = value
    return flat
