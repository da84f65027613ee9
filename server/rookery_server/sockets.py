"""What both ends do with a ZeroMQ socket."""

from __future__ import annotations

from typing import Any, Sequence

import zmq

from rookery_server.wire import VIEWED_BYTES

# As plain integers: an enum's own `|` takes longer than sending a frame.
SNDMORE, NOBLOCK = int(zmq.SNDMORE), int(zmq.NOBLOCK)
BUFFER_BYTES = 4 << 20
"""Of the system, for each connection: a batch of images goes in at once."""
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 5_000, 30_000


def prepare(socket: zmq.Socket) -> None:
    """Settings of every socket, before it is bound or connected."""
    socket.linger = 0
    socket.sndbuf = socket.rcvbuf = BUFFER_BYTES
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS


def receive_frames(socket: zmq.Socket, flags: int = 0) -> list[zmq.Frame]:
    """The frames of a message, not copied."""
    frames = [socket.recv(flags, copy=False)]
    while frames[-1].more:
        frames.append(socket.recv(flags, copy=False))
    return frames


def send_frames(socket: zmq.Socket, frames: Sequence[Any], flags: int = 0) -> None:
    """Send a message: small frames are copied, large ones are read from where they are.

    Whoever owns a large one may write over it once the peer has answered: by then it was sent.
    """
    more = flags | SNDMORE
    for frame in frames[:-1]:
        socket.send(frame, more, copy=len(frame) < VIEWED_BYTES)
    socket.send(frames[-1], flags, copy=len(frames[-1]) < VIEWED_BYTES)
