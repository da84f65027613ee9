"""Files that are whole or absent: written beside their place, then renamed into it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rookery.errors import BadInput


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell a failure to write `path` in one line that names it and the reason."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise BadInput(f"{where}: cannot be written: {error.strerror or error}") from error


def new_folder(path: Path, what: str) -> None:
    """Make a folder for a run or the like, which must not be there yet."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:
            raise BadInput(
                f"name: {path} exists already. Give another --name, or go on with that {what}:"
                f" --resume {path}"
            ) from None


def write_text(path: Path, text: str) -> None:
    """Replace `path` with `text`; after a crash the file is the old one or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with writing(path):
            with open(beside, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
    finally:
        with suppress(OSError):
            beside.unlink()


def write_json(path: Path, value: Any) -> None:
    """Replace `path` with `value` as JSON; NaN and infinities become null."""
    write_text(path, to_json(value) + "\n")


def to_json(value: Any) -> str:
    """Indented JSON that any parser reads: NaN and infinities become null."""
    return json.dumps(finite(value), indent=2, allow_nan=False)


def finite(value: Any) -> Any:
    """`value` made of JSON's own types, with null for what JSON has no number for."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item") and not isinstance(value, float):  # a numpy or torch scalar
        return finite(value.item())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    raise TypeError(f"{type(value).__name__} cannot be written as JSON: {value!r}")


def read_json(path: Path) -> Any:
    """The value in the JSON file `path`, or BadInput that names the file and what ails it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise BadInput(f"{path}: is not JSON: {error}") from error
