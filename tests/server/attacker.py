"""Description sockets that speak as much of ZeroMQ's protocol (ZMTP 3.0) as an attack needs."""

from __future__ import annotations

import contextlib
import resource
import select
import socket as sockets
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MORE, LONG, COMMAND = 1, 2, 4
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def frame(body: bytes, flags: int = 0) -> bytes:
    """The bytes of a frame."""
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return struct.pack(">BQ", flags | LONG, len(body)) + body


def greeting(kind: bytes = b"DEALER") -> bytes:
    """Everything that a client's socket of this kind sends before its first message."""
    metadata = b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    return GREETING + frame(b"\x05READY" + metadata, COMMAND)


def message(frames: list[Any]) -> bytes:
    """The bytes of a message."""
    last = len(frames) - 1
    return b"".join(frame(bytes(each), MORE if i < last else 0) for i, each in enumerate(frames))


def connect(address: str) -> sockets.socket:
    """A TCP connection to the server at tcp://HOST:PORT."""
    host, port = address[len("tcp://") :].rsplit(":", 1)
    return sockets.create_connection((host, int(port)), timeout=20)


def connect_and_greet(address: str) -> sockets.socket:
    """A connection whose handshake is done: libzmq takes messages only after it."""
    socket = connect(address)
    socket.sendall(greeting())
    received = b""
    while b"ROUTER" not in received:
        received += socket.recv(1_000)
    return socket


def send_until_closed(socket: sockets.socket, data: bytes, most_bytes: int) -> int:
    """Send `data` again and again; return how many bytes went out before the server closed."""
    sent = 0
    socket.setblocking(False)
    with contextlib.suppress(ConnectionError):
        while sent < most_bytes:
            readable, writable, _ = select.select([socket], [socket], [], 20)
            if readable and not socket.recv(1 << 16):
                break
            if writable:
                sent += socket.send(data)
    return sent


def is_closed(socket: sockets.socket, seconds: float = 20.0) -> bool:
    """True if the server closes the connection in time; what it sends is read."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        socket.settimeout(max(0.01, end - time.monotonic()))
        try:
            if not socket.recv(1 << 16):
                return True
        except ConnectionError:
            return True
        except TimeoutError:
            return False
    return False


def resident_bytes(pid: int | str = "self") -> int:
    """Physical memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def open_descriptors(pid: int) -> int:
    """How many files and sockets a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def await_true(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Return once the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)
