"""One session with one server: requests, replies, time-outs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np
from rookery_server.wire import PROTOCOL, Header, Message, Refused, decode, encode

from rookery.envs.options import RemoteOptions
from rookery.envs.remote.transport import LOOK_MS, Wire, wire
from rookery.errors import EnvironmentFailure

RECONNECT_S = 2.0
"""How long a connection that broke may take to be back before its server counts as lost."""
CLOSE_MS = 1_000


class Lost(Exception):
    """A server does not answer, or does not know this session any more."""


class NoRoom(Exception):
    """A server has no room for as many environments as it was asked for."""


class Link:
    """A session: at most one request under way, said once more where its connection broke."""

    def __init__(self, address: str, options: RemoteOptions, wishes: Header):
        self.address = address
        self.options = options
        self.wishes = {**wishes, "protocol": PROTOCOL, "wait": options.wait_s}
        self.wire: Wire | None = None
        self.token = b""

    def hello(self) -> None:
        """Begin a session over a new connection; one that there was before is given up."""
        replaces = {"replaces": self.token} if self.token else {}
        if self.wire is not None:
            self.wire.close()
        self.wire = wire(self.address, self.options.keys)
        self.token = os.urandom(16)
        self.seq = -1
        self.send("hello", {**self.wishes, **replaces})

    def send(
        self, op: str, header: Header | None = None, arrays: Sequence[np.ndarray] = ()
    ) -> None:
        """Send the next request; its reply is to be awaited before another."""
        assert self.wire is not None
        self.seq += 1
        header = {"op": op, "session": self.token, "seq": self.seq, **(header or {})}
        self.wire.send(encode(header, arrays))

    def receive(self, patience_s: float = RECONNECT_S, more_s: float = 0.0) -> Message:
        """The reply, if it comes in time (and `more_s`); `patience_s` is how long to do without a
        connection."""
        assert self.wire is not None
        within = self.options.timeout_s + more_s
        deadline = time.monotonic() + within
        while True:
            if (reply := self.take(LOOK_MS)) is not None:
                return reply
            self.wire.look()
            now = time.monotonic()
            if not self.wire.connected and now - self.wire.down_since > patience_s:
                raise Lost("cannot be reached")
            if now > deadline:
                raise Lost(f"has not answered for {within:g} s (env.remote.timeout_s)")

    def look(self) -> Message | None:
        """The reply if it is there; nothing is waited for."""
        assert self.wire is not None
        self.wire.look()
        return self.take(0)

    def take(self, wait_ms: int) -> Message | None:
        """The reply if it comes in time; None otherwise, or for the reply to an older request."""
        assert self.wire is not None
        frames = self.wire.receive(wait_ms)
        if frames is None:
            return None
        try:
            message = decode(frames)
        except Refused as refusal:
            raise self.failure(f"sent what is no message: {refusal}") from None
        header = message.header
        if header.get("session") != self.token or header.get("seq") != self.seq:
            return None
        if header.get("op") == "error":
            raise self._error(str(header.get("kind")), str(header.get("text")))
        return message

    def close(self) -> None:
        """End the session, if the server is there to hear it."""
        if self.wire is not None:
            self.wire.look()
            if self.wire.connected:
                self.send("close")
                self.wire.receive(CLOSE_MS)
            self.wire.close()
            self.wire = None

    def failure(self, text: str) -> EnvironmentFailure:
        """What the server did that it must not."""
        return EnvironmentFailure(f"failed: the server {self.address} {text}")

    def _error(self, kind: str, text: str) -> Exception:
        if kind == "session":
            return Lost("does not know this session any more")
        if kind == "room":
            return NoRoom(f"has no room for {self.wishes['envs']} more environments: {text}")
        return self.failure(f"answered with an error ({kind}): {text}")
