"""Connections to a server that come back after they broke, over plain sockets or with keys."""

from __future__ import annotations

import errno
import select
import socket as sockets
import time
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import zmq
from rookery_server.errors import Unusable
from rookery_server.keys import unlock
from rookery_server.sockets import prepare, receive_frames, send_frames
from rookery_server.zmtp import (
    POSSIBLE,
    Alertness,
    Closed,
    Inbox,
    OtherMechanism,
    Outbox,
    Violation,
    answer_pings,
    on_the_wire,
    opening,
    prepare_plain,
)
from zmq.utils.monitor import recv_monitor_message

from rookery.errors import BadInput

LOOK_MS = 50
"""How long a wait for a reply goes without a look at the connection."""
RETRY_S, RETRY_MOST_S = 0.1, 2.0
"""Between attempts to connect: the first time, and at most."""
OTHER_KEYS = "has keys where this client has none, or the other way round: see env.remote.keys"
WRONG_KEYS = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "does not admit the key in env.remote.keys",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "broke off the greeting: check env.remote.keys",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: OTHER_KEYS,
}
EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
for _failure in WRONG_KEYS:
    EVENTS |= _failure


class Wire(Protocol):
    """One request at a time, said as soon as there is a connection, and again over a new one."""

    connected: bool
    down_since: float
    """When the last connection broke, or the first was looked for."""

    def send(self, frames: Sequence[Any]) -> None:
        """Say a request."""
        ...

    def receive(self, wait_ms: int) -> list[Any] | None:
        """The frames of a message, if one is there or comes in time."""
        ...

    def look(self) -> None:
        """See to the connection."""
        ...

    def close(self) -> None: ...


class PlainWire:
    """Over a plain socket, in the thread that asks."""

    def __init__(self, address: str):
        self.address = address
        parts = urlsplit(address)
        self.place = parts.hostname, parts.port
        self.connected = False
        self.down_since = time.monotonic()
        self.request: Sequence[Any] | None = None
        self.socket: sockets.socket | None = None
        self.try_at, self.pause_s = 0.0, RETRY_S
        self.alertness = Alertness()
        self.look()

    def send(self, frames: Sequence[Any]) -> None:
        self.request = frames
        if self.connected:
            try:
                self._say(on_the_wire(frames))
            except Closed:
                self._drop()

    def receive(self, wait_ms: int) -> list[Any] | None:
        deadline = time.monotonic() + wait_ms / 1000
        while True:
            if (frames := self._take(wait_ms)) is not None:
                return frames
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            wait_ms = int(left * 1000) + 1

    def look(self) -> None:
        if not self.connected:
            self._take(0)

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _take(self, wait_ms: int) -> list[Any] | None:
        """The next message if it has come after at most one wait."""
        if self.socket is None:
            self._await_turn(wait_ms)
            return None
        if wait_ms:
            self.alertness.wait(self.poller.poll, wait_ms)
        try:
            if not self.greeting:
                self._greet()
            frames = self.inbox.receive()
            answer_pings(self.inbox, self.outbox)
            if self.inbox.peer is not None and not self.connected:
                self._note_connected()
            if self.outbox.pieces and self.outbox.flush():
                self.poller.modify(self.socket, select.POLLIN)
        except OtherMechanism:
            raise BadInput(f"envs: the server {self.address} {OTHER_KEYS}") from None
        except (Closed, Violation):
            self._drop()
            return None
        return frames

    def _await_turn(self, wait_ms: int) -> None:
        """Connect, if it is time to try."""
        left = self.try_at - time.monotonic()
        if left > 0:
            time.sleep(min(left, wait_ms / 1000))
        if time.monotonic() >= self.try_at:
            self._connect()

    def _connect(self) -> None:
        try:
            found = sockets.getaddrinfo(*self.place, type=sockets.SOCK_STREAM)
            family, kind, protocol, _, where = found[0]
            self.socket = sockets.socket(family, kind, protocol)
            prepare_plain(self.socket)
            failure = self.socket.connect_ex(where)
        except OSError as error:
            failure = error.errno or errno.EIO
        if failure not in (0, errno.EINPROGRESS):
            self._drop()
            return
        assert self.socket is not None
        self.greeting = False
        self.inbox, self.outbox = Inbox(self.socket, float("inf")), Outbox(self.socket)
        self.poller = select.poll()
        self.poller.register(self.socket, select.POLLOUT)

    def _greet(self) -> None:
        """Begin to talk where the connection has come about."""
        assert self.socket is not None
        if not self.poller.poll(0):
            return
        if self.socket.getsockopt(sockets.SOL_SOCKET, sockets.SO_ERROR):
            raise Closed
        self.greeting = True
        self.poller.modify(self.socket, select.POLLIN)
        self._say([memoryview(opening(b"DEALER"))])

    def _note_connected(self) -> None:
        self.connected = True
        self.pause_s = RETRY_S
        if self.request is not None:
            self._say(on_the_wire(self.request))

    def _say(self, pieces: list[memoryview]) -> None:
        assert self.socket is not None
        self.outbox.put(pieces)
        if self.outbox.pieces:
            self.poller.modify(self.socket, select.POLLIN | select.POLLOUT)

    def _drop(self) -> None:
        """Give the connection up; another is tried in a while."""
        self.close()
        if self.connected:
            self.connected, self.down_since = False, time.monotonic()
        self.try_at = time.monotonic() + self.pause_s
        self.pause_s = min(2 * self.pause_s, RETRY_MOST_S)


class LockedWire:
    """Over libzmq, with keys where there are some."""

    def __init__(self, address: str, keys: str | None):
        self.address = address
        self.connected = self.broke = False
        self.down_since = time.monotonic()
        self.request: Sequence[Any] = ()
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        prepare(self.socket)
        self.socket.reconnect_ivl_max = int(RETRY_MOST_S * 1000)
        self.socket.ipv6 = "[" in address
        if keys is not None:
            try:
                unlock(self.socket, keys)
            except Unusable as error:
                self.context.destroy(0)
                raise BadInput(f"env.remote.keys: {error}") from error
        self.monitor = self.socket.get_monitor_socket(EVENTS)
        self.socket.connect(address)

    def send(self, frames: Sequence[Any]) -> None:
        self.request = frames
        send_frames(self.socket, frames)

    def receive(self, wait_ms: int) -> list[Any] | None:
        self.socket.rcvtimeo = wait_ms
        try:
            return [frame.buffer for frame in receive_frames(self.socket)]
        except zmq.Again:
            return None

    def look(self) -> None:
        while self.monitor.poll(0):
            event = zmq.Event(recv_monitor_message(self.monitor)["event"])
            if event in WRONG_KEYS:
                raise BadInput(f"envs: the server {self.address} {WRONG_KEYS[event]}")
            if event == zmq.EVENT_DISCONNECTED:
                self.down_since = time.monotonic()
                self.connected, self.broke = False, True
            elif not self.connected:
                self.connected = True
                if self.broke:
                    send_frames(self.socket, self.request)

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.context.destroy(0)


def wire(address: str, keys: str | None) -> Wire:
    """A connection to be: without keys over a plain socket, which is sooner answered."""
    return PlainWire(address) if keys is None and POSSIBLE else LockedWire(address, keys)
