"""Random messages, and valid ones with mistakes in them."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import numpy as np
from rookery_server.messages import encode

TOKENS = [bytes([number]) * 16 for number in range(6)]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, -1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1),
    *(0.0, 1.5, float("nan"), float("inf"), "", "hello", "x" * 300, b"", b"\x00" * 16, b"x" * 99),
    *([], [[]], {}, {"a": {}}, [1] * 40, ["lives"], [["<f4", [1]]], [["<i8", [2]]]),
    *(TOKENS[0], TOKENS[1]),
]
KEYS = [
    *("op", "session", "seq", "protocol", "envs", "wait", "render", "infos", "replaces"),
    *("seed", "lane", "arrays", "unknown"),
]
OPS = ["hello", "reset", "step", "render", "close", "jump"]


def message(draw: random.Random, seqs: dict[bytes, int]) -> list[bytes]:
    """Frames of a request of one of a few sessions, mostly with mistakes."""
    token = draw.choice(TOKENS)
    op = draw.choice(OPS)
    header: dict[str, Any] = {
        "op": op,
        "session": token,
        "seq": 0 if op == "hello" else seqs.get(token, 0) + 1,
        "protocol": 1,
        "envs": draw.choice([1, 2, 3]),
        "wait": draw.choice([0, 0, 0.01, 5]),
        "lane": 0,
    }
    arrays = [np.array([draw.randrange(-1, 4) for _ in range(draw.choice([1, 2, 3]))])]
    for _ in range(draw.choice([0, 0, 1, 2])):
        header[draw.choice(KEYS)] = draw.choice(VALUES)
    if draw.random() < 0.3:
        header.pop(draw.choice(sorted(header)))
    frames = [bytes(frame) for frame in encode(header, arrays if op == "step" else [])]
    if "arrays" in header:
        frames[0] = msgpack.packb(header)
    return damaged(draw, frames) if draw.random() < 0.4 else frames


def damaged(draw: random.Random, frames: list[bytes]) -> list[bytes]:
    """The frames with bytes changed, cut, repeated or replaced."""
    way, at = draw.randrange(7), draw.randrange(len(frames))
    frame = bytearray(frames[at])
    if way == 0:
        return [draw.randbytes(draw.randrange(80)) for _ in range(draw.randrange(1, 5))]
    if way == 1:
        return frames[:at] + frames[at + 1 :]
    if way == 2:
        return frames + [draw.randbytes(draw.randrange(40))] * draw.choice([1, 2, 140])
    if way == 3:
        return [bytes(frame[: draw.randrange(len(frame) + 1)]), *frames[1:]]
    if way == 4:
        return [*frames, b"\x00" * draw.choice([70_000, 300_000, 1_100_000])]
    for _ in range(draw.randrange(1, 6)):
        if frame:
            frame[draw.randrange(len(frame))] = draw.randrange(256)
    return [*frames[:at], bytes(frame), *frames[at + 1 :]]
