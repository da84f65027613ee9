"""Serving without keys, over plain sockets: one thread, requests one after the other."""

from __future__ import annotations

import contextlib
import selectors
import socket as sockets
import time
from typing import Any, Iterator

from rookery_server.host import Host, Peer
from rookery_server.zmtp import (
    Alertness,
    Closed,
    Inbox,
    Outbox,
    Violation,
    answer_pings,
    on_the_wire,
    opening,
    prepare_plain,
)

CLIENTS = (b"DEALER", b"REQ", b"ROUTER")
"""Kinds of sockets that may talk to a ROUTER."""
MOST_LINES = 512
HANDSHAKE_S = 30.0
LOOK_S = 1.0
PAUSE_S = 0.01


class Line:
    """A connection."""

    def __init__(self, socket: sockets.socket, number: int, most_bytes: int, now: float):
        self.socket = socket
        self.number = number
        self.since = now
        self.inbox = Inbox(socket, most_bytes)
        self.outbox = Outbox(socket)

    def receive(self) -> list[Any] | None:
        """The next message, if it is there; pings are answered."""
        frames = self.inbox.receive()
        answer_pings(self.inbox, self.outbox)
        if self.inbox.peer not in (None, *CLIENTS):
            raise Violation(f"a {self.inbox.peer!r} cannot talk to a ROUTER")
        return frames


class Lines:
    """All connections, those that wait to be accepted among them.

    While a peer does not read its reply, nothing more is read from it.
    """

    def __init__(self, host: Host, listener: sockets.socket, most_bytes: int):
        self.host = host
        self.listener = listener
        self.most_bytes = most_bytes
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self.lines: dict[int, Line] = {}
        self.numbers = 0
        self.alertness = Alertness()
        self.more: list[Line] = []
        """Those of which another message may have been read already."""

    def serve(self) -> None:
        """Answer messages until interrupted."""
        looked = 0.0
        while True:
            self.turn(0.0 if self.more else LOOK_S)
            now = time.monotonic()
            if self.host.waiting or now - looked >= LOOK_S:
                looked = now
                self.look(now)

    def turn(self, wait: float) -> None:
        """At most one message of every connection."""
        lines, self.more = self.more, []
        look = self.selector.select
        for key, _ in self.alertness.wait(look, wait) if wait else look(0):
            if key.data is None:
                self.accept()
            elif key.data not in lines:
                lines.append(key.data)
        for line in lines:
            if line.number in self.lines:
                with self.ending(line):
                    self.hear(line)

    def hear(self, line: Line) -> None:
        """Answer the next message of a connection, if what it was sent before is gone."""
        if line.outbox.flush():
            frames = line.receive()
            if frames is not None:
                self.answer(line, frames)
                self.more.append(line)
        self.watch(line)

    def answer(self, line: Line, frames: list[Any]) -> None:
        """Answer a message."""
        route = frames[:1] if len(frames) > 1 and not len(frames[0]) else []  # a REQ's empty frame
        peer = Peer(route, line.number)
        reply = self.host.answer(peer, frames[len(route) :], time.monotonic())
        if reply is not None:
            line.outbox.put(on_the_wire([*route, *reply]))

    def watch(self, line: Line) -> None:
        """Wait for what the line waits for."""
        event = selectors.EVENT_WRITE if line.outbox.pieces else selectors.EVENT_READ
        if self.selector.get_key(line.socket).events != event:
            self.selector.modify(line.socket, event, line)

    def look(self, now: float) -> None:
        """What is due by the clock: replies to those who waited, ends of those who are silent."""
        for peer, frames in self.host.due(now):
            line = self.lines.get(peer.connection)
            if line is not None:
                with self.ending(line):
                    line.outbox.put(on_the_wire([*peer.route, *frames]))
                    self.watch(line)
        for line in list(self.lines.values()):
            if line.inbox.peer is None and now - line.since > HANDSHAKE_S:
                self.end(line)

    def accept(self) -> None:
        """Take a new connection; one too many is closed at once."""
        try:
            socket, _ = self.listener.accept()
        except OSError:  # gone again, or there are no more descriptors
            time.sleep(PAUSE_S)
            return
        if len(self.lines) >= MOST_LINES:
            socket.close()
            return
        prepare_plain(socket)
        self.numbers += 1
        line = Line(socket, self.numbers, self.most_bytes, time.monotonic())
        self.lines[line.number] = line
        self.selector.register(socket, selectors.EVENT_READ, line)
        with self.ending(line):
            line.outbox.put([memoryview(opening(b"ROUTER"))])

    @contextlib.contextmanager
    def ending(self, line: Line) -> Iterator[None]:
        """End the connection where the peer is gone or does not keep to the protocol."""
        try:
            yield
        except (Closed, Violation):
            self.end(line)

    def end(self, line: Line) -> None:
        """Close a connection."""
        del self.lines[line.number]
        self.selector.unregister(line.socket)
        line.socket.close()
        self.host.disconnected(line.number, time.monotonic())

    def close(self) -> None:
        """Close them all."""
        for line in self.lines.values():
            line.socket.close()
        self.listener.close()
        self.selector.close()
