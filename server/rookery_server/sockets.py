"""Settings of ZeroMQ sockets, and messages over them, for server and client."""

from __future__ import annotations

from typing import Any, Sequence

import zmq

# As plain integers: an enum's own `|` takes longer than sending a frame.
SNDMORE, NOBLOCK = int(zmq.SNDMORE), int(zmq.NOBLOCK)
BUFFER_BYTES = 4 << 20
"""The system's buffers of a connection: a batch of images fits in."""
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 5_000, 30_000


def configure(socket: zmq.Socket) -> None:
    """Set the options that server and client share, before the socket is bound or connected."""
    socket.linger = 0
    socket.sndbuf = socket.rcvbuf = BUFFER_BYTES
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS


def receive_frames(socket: zmq.Socket, most: int | None = None) -> list[zmq.Frame]:
    """Return the frames of a message, not copied, of more than `most` only the first and the last.

    Raises `zmq.Again` if none comes within the socket's `rcvtimeo`.
    """
    frames = [socket.recv(copy=False)]
    while frames[-1].more:
        if most is not None and len(frames) > most:
            frames.pop()
        frames.append(socket.recv(copy=False))
    return frames


def send_frames(socket: zmq.Socket, frames: Sequence[Any], flags: int = 0) -> None:
    """Send a message; libzmq copies its frames."""
    more = flags | SNDMORE
    for frame in frames[:-1]:
        socket.send(frame, more)
    socket.send(frames[-1], flags)
