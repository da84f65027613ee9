"""Spaces converted to maps and back, and the order of their leaves."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from rookery_server.errors import Refused
from rookery_server.messages import decode, encode
from rookery_server.spaces import describe, leaves, nested, restore
from worlds import Mixed

SPACES = [
    spaces.Box(0, 255, (4, 84, 84), np.uint8),
    spaces.Box(-np.inf, np.inf, (3,), np.float32),
    spaces.Box(np.array([-1, -np.inf], np.float32), np.array([0.1, 7], np.float32)),
    spaces.Box(0.1, 0.7, (), np.float64),
    spaces.Box(0, 1, (2,), bool),
    spaces.Discrete(7),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([3, 4, 5]),
    spaces.MultiDiscrete([[3, 3], [3, 3]], start=[[0, 1], [2, 3]]),
    spaces.MultiDiscrete([2, 2], dtype=np.int32),
    spaces.MultiBinary(4),
    spaces.MultiBinary((2, 3)),
    spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.MultiBinary(2)])}),
    Mixed.observation_space,
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_is_equal_after_a_round_trip(space):
    arrays: list[np.ndarray] = []
    plain = describe(space, arrays)
    message = decode([bytes(frame) for frame in encode({"space": plain}, arrays)])
    back = restore(message.header["space"], message.arrays, spaces)
    assert back == space
    assert back.dtype == space.dtype
    if isinstance(space, spaces.Box):
        assert back.low.tobytes() == space.low.tobytes()
        assert back.high.tobytes() == space.high.tobytes()


def test_leaves_are_in_the_order_of_the_parts():
    plain = describe(Mixed.observation_space, [])
    paths = [leaf.path for leaf in leaves(plain)]
    assert paths == [("picture",), ("rest", 0), ("rest", 1), ("rest", 2), ("rest", 3)]
    assert nested(plain, iter("abcde")) == {"picture": "a", "rest": ("b", "c", "d", "e")}


def test_old_gym_spaces_are_recognised_by_class_name():
    class Discrete:  # without `start`, as before gym 0.22
        n, shape, dtype = 4, (), np.dtype(np.int64)

    assert restore(describe(Discrete(), []), [], spaces) == spaces.Discrete(4)


def test_spaces_that_cannot_be_sent_are_refused():
    with pytest.raises(ValueError, match="cannot be served"):
        describe(spaces.Text(3), [])
    with pytest.raises(ValueError, match="strings"):
        describe(spaces.Dict({0: spaces.Discrete(2), 1: spaces.Discrete(2)}), [])


@pytest.mark.parametrize(
    "plain",
    [
        None,
        {"type": "Text"},
        {"type": "Box"},
        {"type": "Box", "dtype": "rubbish", "shape": [1]},
        {"type": "Dict", "keys": ["a"], "parts": []},
        {"type": "Tuple", "parts": [{"type": "MultiBinary", "dtype": "|i1", "shape": [1]}] * 65},
    ],
)
def test_a_wrong_description_is_refused(plain):
    with pytest.raises(Refused):
        leaves(plain)


def test_a_description_nested_too_deep_is_refused():
    plain: dict = {"type": "Discrete", "dtype": "<i8", "shape": [], "n": 2, "start": 0}
    for _ in range(20):
        plain = {"type": "Tuple", "parts": [plain]}
    with pytest.raises(Refused, match="deep"):
        leaves(plain)
