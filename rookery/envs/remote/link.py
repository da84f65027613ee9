"""One session with one server: requests, replies, time-outs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np
import zmq
from rookery_server.errors import Unusable
from rookery_server.keys import unlock
from rookery_server.sockets import NOBLOCK, prepare, receive_frames, send_frames
from rookery_server.wire import PROTOCOL, Header, Message, Refused, decode, encode
from zmq.utils.monitor import recv_monitor_message

from rookery.envs.options import RemoteOptions
from rookery.errors import BadInput, EnvironmentFailure

RECONNECT_S = 2.0
"""How long a connection that broke may take to be back before its server counts as lost."""
LOOK_MS = 50
"""How often a wait for a reply looks at the connection."""
CLOSE_MS = 1_000
RECONNECT_MOST_MS = 2_000
WRONG_KEYS = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "does not admit the key in env.remote.keys",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "broke off the greeting: check env.remote.keys",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: (
        "has keys where this client has none, or the other way round: see env.remote.keys"
    ),
}
EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
for _failure in WRONG_KEYS:
    EVENTS |= _failure


class Lost(Exception):
    """A server does not answer, or does not know this session any more."""


class NoRoom(Exception):
    """A server has no room for as many environments as it was asked for."""


class Link:
    """A session: at most one request under way, said once more where its connection broke."""

    def __init__(self, context: zmq.Context, address: str, options: RemoteOptions, wishes: Header):
        self.context = context
        self.address = address
        self.options = options
        self.wishes = {**wishes, "protocol": PROTOCOL, "wait": options.wait_s}
        self.socket: zmq.Socket | None = None
        self.token = b""

    def hello(self) -> None:
        """Begin a session over a new socket; one that there was before is given up."""
        replaces = {"replaces": self.token} if self.token else {}
        self._drop_socket()
        self.token = os.urandom(16)
        self.seq = -1
        self.connected = self.broke = False
        self.down_since = time.monotonic()
        self._open_socket()
        self.send("hello", {**self.wishes, **replaces})

    def send(
        self, op: str, header: Header | None = None, arrays: Sequence[np.ndarray] = ()
    ) -> None:
        """Send the next request; its reply is to be awaited before another."""
        assert self.socket is not None
        self.seq += 1
        header = {"op": op, "session": self.token, "seq": self.seq, **(header or {})}
        self.request = encode(header, arrays)
        send_frames(self.socket, self.request)

    def receive(self, patience_s: float = RECONNECT_S, more_s: float = 0.0) -> Message:
        """The reply, if it comes in time (and `more_s`); `patience_s` is how long to do without a
        connection."""
        assert self.socket is not None
        within = self.options.timeout_s + more_s
        deadline = time.monotonic() + within
        while True:
            if (reply := self.take(0)) is not None:
                return reply
            self.look_at_connection()
            now = time.monotonic()
            if not self.connected and now - self.down_since > patience_s:
                raise Lost("cannot be reached")
            if now > deadline:
                raise Lost(f"has not answered for {within:g} s (env.remote.timeout_s)")

    def take(self, flags: int = NOBLOCK) -> Message | None:
        """The reply if it is there (or, without flags, comes in a moment); None otherwise, or for
        the reply to an older request."""
        assert self.socket is not None
        try:
            frames = receive_frames(self.socket, flags)
            message = decode([frame.buffer for frame in frames])
        except zmq.Again:
            return None
        except Refused as refusal:
            raise self.failure(f"sent what is no message: {refusal}") from None
        header = message.header
        if header.get("session") != self.token or header.get("seq") != self.seq:
            return None
        if header.get("op") == "error":
            raise self._error(str(header.get("kind")), str(header.get("text")))
        return message

    def look_at_connection(self) -> None:
        """Note whether there is one; over a new one, the request is said once more."""
        assert self.socket is not None
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
        """End the session, if the server is there to hear it."""
        if self.socket is not None and self.seq >= 0:
            self.look_at_connection()
            if self.connected:
                self.send("close")
                self.socket.poll(CLOSE_MS)
        self._drop_socket()

    def failure(self, text: str) -> EnvironmentFailure:
        """What the server did that it must not."""
        return EnvironmentFailure(f"failed: the server {self.address} {text}")

    def _error(self, kind: str, text: str) -> Exception:
        if kind == "session":
            return Lost("does not know this session any more")
        if kind == "room":
            return NoRoom(f"has no room for {self.wishes['envs']} more environments: {text}")
        return self.failure(f"answered with an error ({kind}): {text}")

    def _open_socket(self) -> None:
        self.socket = self.context.socket(zmq.DEALER)
        prepare(self.socket)
        self.socket.reconnect_ivl_max = RECONNECT_MOST_MS
        self.socket.rcvtimeo = LOOK_MS
        self.socket.ipv6 = "[" in self.address
        if self.options.keys is not None:
            try:
                unlock(self.socket, self.options.keys)
            except Unusable as error:
                raise BadInput(f"env.remote.keys: {error}") from error
        self.monitor = self.socket.get_monitor_socket(EVENTS)
        self.socket.connect(self.address)

    def _drop_socket(self) -> None:
        if self.socket is not None:
            self.socket.disable_monitor()
            self.monitor.close(0)
            self.socket.close(0)
            self.socket = None
