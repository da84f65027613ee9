"""Encoding of messages: a frame with a msgpack header, then one frame of raw bytes per array.

docs/protocol.md of the repository is the specification.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Sequence

import msgpack
import numpy as np

from rookery_server.errors import Refused
from rookery_server.spaces import DTYPE_NAMES, DTYPES, dtype_name

PROTOCOL = 1
"""Version of the protocol."""
MAX_HEADER_BYTES = 65_536
MAX_ARRAYS = 128
MAX_DIMENSIONS = 8
MIN_VIEW_BYTES = 65_536
"""Arrays of at least this size are sent as views; for smaller ones a copy is faster."""

Header = Dict[str, Any]


class Message(NamedTuple):
    """A header and its arrays."""

    header: Header
    arrays: list[np.ndarray]


def encode(header: Header, arrays: Sequence[np.ndarray] = ()) -> list[Any]:
    """Return the frames of a message; those of large contiguous arrays are views into them."""
    plain = [sendable(array) for array in arrays]
    described = [[dtype_name(array.dtype), list(array.shape)] for array in plain]
    return [msgpack.packb({**header, "arrays": described}), *map(raw, plain)]


def sendable(array: np.ndarray) -> np.ndarray:
    """Return `array`, or a copy of it, in C order and little-endian."""
    if array.dtype.str[0] == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array if array.flags.c_contiguous else array.copy()


def raw(array: np.ndarray) -> Any:
    """Return the bytes of a contiguous array; for a large one a view of them."""
    if array.nbytes < MIN_VIEW_BYTES:
        return array.tobytes()
    return array.reshape(-1).view(np.uint8).data


def decode(frames: Sequence[Any]) -> Message:
    """Return the message in `frames`; its arrays are views into them if they are aligned."""
    if not frames:
        raise Refused("malformed", "a message has at least one frame")
    if len(frames) > 1 + MAX_ARRAYS:
        raise Refused("size", f"a message has at most {MAX_ARRAYS} arrays")
    if len(frames[0]) > MAX_HEADER_BYTES:
        raise Refused("size", f"a header has at most {MAX_HEADER_BYTES} bytes")
    try:
        header = msgpack.unpackb(frames[0], raw=False, strict_map_key=True)
    except Exception as error:  # msgpack raises ValueErrors and others
        raise Refused("malformed", f"the header is not msgpack: {type(error).__name__}") from None
    if not isinstance(header, dict):
        raise Refused("malformed", "the header must be a map")
    described = header.get("arrays", [])
    if not isinstance(described, list) or len(described) != len(frames) - 1:
        raise Refused("malformed", f'"arrays" must describe the {len(frames) - 1} frames after it')
    pairs = zip(described, frames[1:])
    return Message(header, [read_array(layout, frame) for layout, frame in pairs])


def read_array(layout: Any, frame: Any) -> np.ndarray:
    """Return the array that `layout` = [dtype, shape] describes."""
    if not (isinstance(layout, list) and len(layout) == 2 and isinstance(layout[1], list)):
        raise Refused("malformed", "an array is described as [dtype, shape]")
    name, shape = layout
    if not isinstance(name, str) or name not in DTYPES:
        raise Refused("malformed", f"arrays are of the dtypes {' '.join(DTYPE_NAMES)}")
    if len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise Refused("malformed", f"a shape is at most {MAX_DIMENSIONS} whole numbers >= 0")
    size = DTYPES[name].itemsize
    for length in shape:
        size *= length
    if size != len(frame):
        text = f"an array {shape} of {name} has {size} bytes, its frame {len(frame)}"
        raise Refused("malformed", text)
    array = np.frombuffer(frame, DTYPES[name]).reshape(shape)
    return array if array.flags.aligned else array.copy()
