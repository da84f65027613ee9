"""Output shared by the commands."""

from __future__ import annotations

from typing import Any

from rookery.runs.files import to_json


def print_json(values: dict[str, Any]) -> None:
    """Print one JSON object on standard output."""
    print(to_json(values).rstrip())
