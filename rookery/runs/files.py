"""Atomic writing of text and JSON files: written to a temporary file, then renamed."""

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
    """Turn an OSError in the body into BadInput that names the path and the reason."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise BadInput(f"{where}: cannot be written: {error.strerror or error}") from error


def new_folder(path: Path, what: str) -> None:
    """Create the folder of a run or sweep (`what`), which must not exist yet."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:
            raise BadInput(
                f"name: {path} already exists. Use another --name, or continue that {what}:"
                f" --resume {path}"
            ) from None


def write_text(path: Path, text: str) -> None:
    """Replace `path` atomically: after a crash the file has either the old text or the new."""
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
    """Return indented, strictly valid JSON: NaN and infinities become null."""
    return json.dumps(jsonable(value), indent=2, allow_nan=False)


def jsonable(value: Any) -> Any:
    """Return `value` in JSON types, with None for NaN and infinities."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item") and not isinstance(value, float):  # a numpy or torch scalar
        return jsonable(value.item())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    raise TypeError(f"{type(value).__name__} cannot be written as JSON: {value!r}")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise BadInput that names the file and the problem."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise BadInput(f"{path}: is not JSON: {error}") from error
