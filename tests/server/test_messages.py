"""Encoding and decoding of messages, and refusal of malformed ones."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from rookery_server.errors import Refused
from rookery_server.messages import MAX_ARRAYS, MAX_HEADER_BYTES, decode, encode

ARRAYS = [
    np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    np.array([[True, False]]),
    np.array(-1.5),
    np.zeros((3, 0, 2), np.float32),
    np.array([2**63 - 1, -(2**63)]),
    np.arange(40_000, dtype=np.float64).reshape(4, -1),  # large enough to be sent as a view
    np.arange(12).reshape(3, 4).T,
    np.arange(6, dtype=">i4"),
]


def test_arrays_are_equal_after_a_round_trip():
    frames = [bytes(frame) for frame in encode({"op": "x", "n": 1}, ARRAYS)]
    message = decode(frames)
    assert message.header["op"] == "x"
    for before, after in zip(ARRAYS, message.arrays, strict=True):
        assert after.shape == before.shape
        assert after.dtype == before.dtype.newbyteorder("<")
        np.testing.assert_array_equal(after, before)


def test_bytes_are_little_endian_and_in_c_order():
    header, first = encode({}, [np.array([[1, 2], [3, 4]], ">u2").T])
    assert bytes(first) == bytes([1, 0, 3, 0, 2, 0, 4, 0])
    assert msgpack.unpackb(header) == {"arrays": [["<u2", [2, 2]]]}


def header(**content):
    return msgpack.packb(content)


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ([], "malformed"),
        ([b""], "malformed"),
        ([b"\xc1"], "malformed"),
        ([b"\x81"], "malformed"),
        ([msgpack.packb([1, 2])], "malformed"),
        ([b"\x81\x01\x02"], "malformed"),  # a key that is no string
        ([header(arrays=3)], "malformed"),
        ([header(arrays=[["<f4", [1]]])], "malformed"),  # no frame for it
        ([header(), b"1234"], "malformed"),  # a frame nobody described
        ([header(arrays=[["<f4", [2]]]), b"1234"], "malformed"),
        ([header(arrays=[["<f4", [-1]]]), b"1234"], "malformed"),
        ([header(arrays=[["<f4", [True]]]), b"1234"], "malformed"),
        ([header(arrays=[["<f4", [2**40, 2**40]]]), b"1234"], "malformed"),
        ([header(arrays=[["<f4", [1] * 9]]), b"1234"], "malformed"),
        ([header(arrays=[["O", [1]]]), b"12345678"], "malformed"),
        ([header(arrays=[["<U1", [1]]]), b"1234"], "malformed"),
        ([header(arrays=[[["<f4"], [1]]]), b"1234"], "malformed"),
        ([header(text="x" * MAX_HEADER_BYTES)], "size"),
        ([header()] + [b""] * (MAX_ARRAYS + 1), "size"),
        ([b"\x91" * 60_000], "malformed"),  # nested without end
    ],
)
def test_malformed_messages_are_refused(frames, kind):
    with pytest.raises(Refused) as refusal:
        decode(frames)
    assert refusal.value.kind == kind


def test_arrays_of_objects_cannot_be_encoded():
    with pytest.raises(ValueError, match="cannot be sent"):
        encode({}, [np.array([object()])])
