"""What both ends do with a ZeroMQ socket."""

from __future__ import annotations

from typing import Any, Sequence

import zmq

BUFFER_BYTES = 4 << 20
"""Of the system, for each connection: a batch of images goes in at once."""
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 5_000, 30_000


def prepare(socket: zmq.Socket) -> None:
    """Settings of every socket, before it is bound or connected."""
    socket.linger = 0
    socket.sndbuf = socket.rcvbuf = BUFFER_BYTES
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS


def send_frames(socket: zmq.Socket, frames: Sequence[Any], flags: int = 0) -> None:
    """Send a message. ZeroMQ copies it: that takes less time than its way of telling Python, in a
    thread of its own, that memory it was lent is free again."""
    for frame in frames[:-1]:
        socket.send(frame, flags | zmq.SNDMORE)
    socket.send(frames[-1], flags)
