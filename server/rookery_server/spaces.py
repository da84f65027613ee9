"""Conversion of Gym's and Gymnasium's spaces to maps that can be sent, and back."""

from __future__ import annotations

import functools
from typing import Any, Dict, Iterator, NamedTuple, Sequence, Tuple

import numpy as np

from rookery_server.errors import Refused

Description = Dict[str, Any]
Path = Tuple[Any, ...]
LEAVES = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")
MAX_LEAVES = 64
MAX_DEPTH = 8
DTYPE_NAMES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
DTYPES = {name: np.dtype(name) for name in DTYPE_NAMES}


class Leaf(NamedTuple):
    """A part of a space that is one array: its path, and the dtype and shape of one value."""

    path: Path
    plain: Description
    dtype: np.dtype
    shape: tuple[int, ...]


@functools.lru_cache(maxsize=64)
def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype in headers: NumPy's, little-endian."""
    word = np.dtype(dtype).newbyteorder("<").str
    if word not in DTYPES:
        raise ValueError(f"arrays of {np.dtype(dtype)} cannot be sent")
    return word


def describe(space: Any, arrays: list[np.ndarray]) -> Description:
    """Return `space` as a map; arrays that it refers to are appended to `arrays`."""
    kind = kind_of(space)
    if kind == "Dict":
        keys = list(space.spaces)
        if not all(isinstance(key, str) for key in keys):
            raise ValueError(f"keys of a Dict space must be strings, got {keys}")
        return {
            "type": "Dict",
            "keys": keys,
            "parts": [describe(space.spaces[key], arrays) for key in keys],
        }
    if kind == "Tuple":
        return {"type": "Tuple", "parts": [describe(part, arrays) for part in space.spaces]}
    plain: Description = {
        "type": kind,
        "dtype": dtype_name(space.dtype),
        "shape": list(space.shape or ()),
    }
    if kind == "Box":
        plain["low"] = number_or_array(space.low, arrays)
        plain["high"] = number_or_array(space.high, arrays)
    elif kind == "Discrete":
        plain["n"] = int(space.n)
        plain["start"] = int(getattr(space, "start", 0))
    elif kind == "MultiDiscrete":
        nvec = np.asarray(space.nvec, np.int64)
        plain["nvec"] = number_or_array(nvec, arrays)
        plain["start"] = number_or_array(
            np.broadcast_to(getattr(space, "start", 0), nvec.shape).astype(np.int64), arrays
        )
    return plain


def kind_of(space: Any) -> str:
    """Return the name of the space class, or of the supported class it inherits from."""
    for parent in type(space).__mro__:
        if parent.__name__ in (*LEAVES, "Dict", "Tuple"):
            return parent.__name__
    raise ValueError(f"the space {space} cannot be served")


def number_or_array(values: Any, arrays: list[np.ndarray]) -> Any:
    """Return one number if all are equal, else a reference to an appended array."""
    values = np.asarray(values)
    if values.size and (values == values.flat[0]).all():
        first = values.flat[0]
        return float(first) if np.issubdtype(values.dtype, np.floating) else int(first)
    arrays.append(values)
    return {"array": len(arrays) - 1}


def restore(plain: Description, arrays: Sequence[np.ndarray], spaces: Any) -> Any:
    """Return a space whose description `leaves` has checked, of the classes in `spaces`."""
    kind = plain["type"]
    parts = [restore(part, arrays, spaces) for part in plain.get("parts", ())]
    if kind == "Dict":
        return spaces.Dict(dict(zip(plain["keys"], parts)))
    if kind == "Tuple":
        return spaces.Tuple(parts)
    dtype, shape = np.dtype(plain["dtype"]), tuple(plain["shape"])
    if kind == "Box":
        low = filled(plain["low"], arrays, shape, dtype)
        high = filled(plain["high"], arrays, shape, dtype)
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        start = int(plain["start"])
        return spaces.Discrete(int(plain["n"]), **({"start": start} if start else {}))
    if kind == "MultiDiscrete":
        nvec, starts = (filled(plain[key], arrays, shape, dtype) for key in ("nvec", "start"))
        more = {"start": starts} if starts.any() else {}
        return spaces.MultiDiscrete(nvec, dtype=dtype.type, **more)
    return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)


def filled(
    value: Any, arrays: Sequence[np.ndarray], shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """Return the bounds that a number or a reference stands for, [*shape]."""
    if not isinstance(value, dict):
        return np.full(shape, value, dtype)
    found = arrays[value["array"]]
    if found.shape != shape:
        raise Refused("malformed", f"bounds of shape {found.shape} for a space of shape {shape}")
    return found.astype(dtype)


def leaves(plain: Any) -> list[Leaf]:
    """Return the leaves of a described space, in the order in which their arrays are sent."""
    found = []
    for leaf in _walk(plain, (), 0):
        found.append(leaf)
        if len(found) > MAX_LEAVES:
            raise Refused("malformed", f"a space has at most {MAX_LEAVES} leaves")
    return found


def _walk(plain: Any, path: Path, depth: int) -> Iterator[Leaf]:
    if not isinstance(plain, dict) or depth > MAX_DEPTH:
        raise Refused("malformed", f"a space is a map, nested at most {MAX_DEPTH} deep")
    kind = plain.get("type")
    if kind in ("Dict", "Tuple"):
        parts = plain.get("parts")
        keys = plain.get("keys") if kind == "Dict" else range(len(parts or ()))
        if not isinstance(parts, list) or not keys or len(keys) != len(parts):
            raise Refused("malformed", f"a {kind} space needs parts, and keys for them")
        for key, part in zip(keys, parts):
            yield from _walk(part, (*path, key), depth + 1)
    elif kind in LEAVES:
        try:
            yield Leaf(path, plain, np.dtype(plain["dtype"]), tuple(map(int, plain["shape"])))
        except (KeyError, TypeError, ValueError):
            raise Refused("malformed", f"a {kind} space needs dtype and shape") from None
    else:
        raise Refused("malformed", f"unknown space type {kind!r}")


def at(tree: Any, path: Path) -> Any:
    """Return the part of nested values at `path`."""
    for key in path:
        tree = tree[key]
    return tree


def nested(plain: Description, values: Iterator[Any]) -> Any:
    """Return the next values, one for each leaf, nested like the described space."""
    if plain["type"] == "Dict":
        return {key: nested(part, values) for key, part in zip(plain["keys"], plain["parts"])}
    if plain["type"] == "Tuple":
        return tuple(nested(part, values) for part in plain["parts"])
    return next(values)
