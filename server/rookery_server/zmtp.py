"""ZeroMQ's protocol on the wire (ZMTP 3.0, without keys) over a plain socket.

libzmq hands every message to a thread of its own and back, on both ends. For a request and a reply
these six wake-ups take longer than the bytes do.
"""

from __future__ import annotations

import os
import socket as sockets
import struct
import time
from typing import Any, Callable, Sequence

import numpy as np

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
GREETING = SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
MECHANISM = slice(12, 32)
MORE, LONG, COMMAND = 1, 2, 4
CHUNK_BYTES = 65_536
SMALL_BYTES = 4_096
"""Frames up to this size are read together with what is around them."""
MOST_FRAMES = 1_000
BRISK_S = 0.003
"""Waits shorter than this are expected to be so again: one stays awake for the next."""
MOST_AT_ONCE = 512
"""Pieces that the system takes in one call."""


class Violation(Exception):
    """What came is not this protocol."""


class OtherMechanism(Violation):
    """The peer wants keys."""


class Closed(Exception):
    """The peer is gone."""


POSSIBLE = hasattr(sockets.socket, "sendmsg")
"""Whether this system has what is needed."""


class Alertness:
    """How to wait: awake where something came soon the last time, for to be woken takes as long as
    a small step does."""

    def __init__(self) -> None:
        self.brisk = False
        """Whether the last wait was short."""

    def wait(self, look: Callable[[float], Any], most: float) -> Any:
        """What `look` finds, which takes the time to wait in its own unit; nothing after `most`."""
        start = time.perf_counter()
        found = look(0 if self.brisk else most)
        while self.brisk and not found:
            os.sched_yield()  # whoever has something to do on this core does it first
            self.brisk = time.perf_counter() - start < BRISK_S
            found = look(0 if self.brisk else most)
        self.brisk = time.perf_counter() - start < BRISK_S
        return found


def prepare_plain(socket: sockets.socket) -> None:
    """Settings of every socket, before it is connected or listens."""
    socket.setblocking(False)
    socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)


def head(size: int, flags: int) -> bytes:
    """What comes before a frame's body."""
    return bytes((flags, size)) if size < 256 else struct.pack(">BQ", flags | LONG, size)


def command(name: bytes, body: bytes) -> bytes:
    """A frame that is no part of a message."""
    content = bytes((len(name),)) + name + body
    return head(len(content), COMMAND) + content


def opening(kind: bytes) -> bytes:
    """What is sent first by a socket of this kind, as ZeroMQ calls it."""
    metadata = b"".join(
        bytes((len(name),)) + name + struct.pack(">I", len(value)) + value
        for name, value in ((b"Socket-Type", kind), (b"Identity", b""))
    )
    return GREETING + command(b"READY", metadata)


def on_the_wire(frames: Sequence[Any]) -> list[memoryview]:
    """The bytes of a message, piece by piece; bodies are not copied."""
    pieces: list[memoryview] = []
    last = len(frames) - 1
    for i, frame in enumerate(frames):
        body = memoryview(frame)
        pieces += (memoryview(head(body.nbytes, 0 if i == last else MORE)), body)
    return pieces


class Outbox:
    """What is still to be sent."""

    def __init__(self, socket: sockets.socket):
        self.socket = socket
        self.pieces: list[memoryview] = []

    def put(self, pieces: Sequence[memoryview]) -> None:
        """Send as much as the system takes at once; the rest is kept for `flush`."""
        self.pieces += pieces
        self.flush()

    def flush(self) -> bool:
        """Send what is left; whether that was all of it."""
        try:
            while self.pieces:
                self._note_sent(self.socket.sendmsg(self.pieces[:MOST_AT_ONCE]))
        except BlockingIOError:
            pass
        except OSError as error:
            raise Closed(str(error)) from None
        return not self.pieces

    def _note_sent(self, count: int) -> None:
        done = 0
        for piece in self.pieces:
            if count < piece.nbytes:
                break
            count -= piece.nbytes
            done += 1
        del self.pieces[:done]
        if count:
            self.pieces[0] = self.pieces[0][count:]


class Inbox:
    """Makes messages of the bytes that come, none of them larger than `most_bytes`."""

    def __init__(self, socket: sockets.socket, most_bytes: float):
        self.socket = socket
        self.most_bytes = most_bytes
        self.greeted = False
        self.peer: bytes | None = None
        """The kind of the peer's socket; None before it has told."""
        self.pings: list[bytes] = []
        """What the peer wants to hear back to know that someone is there."""
        self._chunk = bytearray(CHUNK_BYTES)
        self._view = memoryview(self._chunk)
        self._start = self._end = 0
        self._frames: list[Any] = []
        self._size = 0
        self._body: memoryview | None = None
        self._filled = self._flags = 0

    def receive(self) -> list[Any] | None:
        """The frames of the next message, or None if it has not come yet."""
        while True:
            while self._advance():
                if self._frames and not self._flags & (MORE | COMMAND):
                    frames, self._frames, self._size = self._frames, [], 0
                    return frames
            try:
                self._read()
            except BlockingIOError:
                return None
            except OSError as error:
                raise Closed(str(error)) from None

    def _read(self) -> None:
        """Take what the system has, into the frame under way or into the chunk."""
        if self._body is not None:
            count = self.socket.recv_into(self._body[self._filled :])
            self._filled += count
        else:
            if self._start:
                self._view[: self._end - self._start] = self._view[self._start : self._end]
                self._start, self._end = 0, self._end - self._start
            count = self.socket.recv_into(self._view[self._end :])
            self._end += count
        if not count:
            raise Closed("closed the connection")

    def _advance(self) -> bool:
        """Take the greeting or a frame out of what is there; whether it was there."""
        if self._body is not None:
            if self._filled < len(self._body):
                return False
            self._frames.append(self._body)
            self._body = None
            return True
        if not self.greeted:
            return self._take_greeting()
        start, there = self._start, self._end - self._start
        if there < 2:
            return False
        flags, size, first = self._chunk[start], self._chunk[start + 1], start + 2
        self._check(flags)
        if flags & LONG:
            if there < 9:
                return False
            (size,) = struct.unpack_from(">Q", self._chunk, start + 1)
            first = start + 9
        if size <= SMALL_BYTES:
            if self._end - first < size:
                return False
            body = self._view[first : first + size]
            self._start = first + size
            self._flags = flags
            if flags & COMMAND:
                self._obey(bytes(body))
            else:
                self._note(size)
                self._frames.append(bytearray(body))  # an array over it may be written to
            return True
        if flags & COMMAND:
            raise Violation(f"a command of {size} bytes")
        self._note(size)
        self._flags = flags
        self._body = np.empty(size, np.uint8).data
        self._filled = min(size, self._end - first)
        self._body[: self._filled] = self._view[first : first + self._filled]
        self._start = first + self._filled
        return self._advance()

    def _take_greeting(self) -> bool:
        there = self._end - self._start
        greeting = bytes(self._view[self._start : self._end][: len(GREETING)])
        if greeting[:1] not in (b"", SIGNATURE[:1]) or greeting[9:10] not in (b"", SIGNATURE[9:]):
            raise Violation("this is not ZeroMQ")
        if there < len(GREETING):
            return False
        if greeting[10] < 3:
            raise Violation("this is a version of ZeroMQ before 4")
        if greeting[MECHANISM] != GREETING[MECHANISM]:
            raise OtherMechanism(greeting[MECHANISM].rstrip(b"\0").decode("ascii", "replace"))
        self._start += len(GREETING)
        self.greeted = True
        return True

    def _check(self, flags: int) -> None:
        if flags & ~(MORE | LONG | COMMAND) or (flags & COMMAND and flags & MORE):
            raise Violation(f"there are no frames with the flags {flags}")
        if not flags & COMMAND and self.peer is None:
            raise Violation("a message before the peer said what it is")

    def _note(self, size: int) -> None:
        self._size += size
        if self._size > self.most_bytes or len(self._frames) >= MOST_FRAMES:
            raise Violation(f"a message of more than {self.most_bytes} bytes or so many frames")

    def _obey(self, content: bytes) -> None:
        name, body = content[1 : 1 + content[0]] if content else b"", content[1:]
        body = body[len(name) :]
        if name == b"READY" and self.peer is None:
            self.peer = socket_type(body)
        elif self.peer is None or name == b"ERROR":
            raise Violation(f"{name!r} where READY was expected")
        elif name == b"PING":
            self.pings.append(body[2:])


def answer_pings(inbox: Inbox, outbox: Outbox) -> None:
    """Tell a peer that asked that someone is there."""
    for ping in inbox.pings:
        outbox.put([memoryview(command(b"PONG", ping))])
    inbox.pings.clear()


def socket_type(metadata: bytes) -> bytes:
    """The kind of socket that a peer says it has."""
    while metadata:
        end = 1 + metadata[0]
        name, rest = metadata[1:end], metadata[end:]
        if len(rest) < 4:
            break
        (size,) = struct.unpack_from(">I", rest)
        value, metadata = rest[4 : 4 + size], rest[4 + size :]
        if name.lower() == b"socket-type":
            return value
    raise Violation("a peer must say what kind of socket it has")
