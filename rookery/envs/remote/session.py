"""One session with one server: requests, replies and time-outs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np
from rookery_server.messages import PROTOCOL, Header, Message, Refused, decode, encode

from rookery.envs.options import RemoteOptions
from rookery.envs.remote.transport import POLL_MS, ServerConnection
from rookery.errors import RunFailed

RECONNECT_S = 2.0
"""How long a broken connection may take to be restored before its server counts as lost."""
CLOSE_MS = 1_000


class ServerLost(Exception):
    """A server that does not answer, or that does not know this session any more."""


class ServerFull(Exception):
    """A server without room for as many environments as were requested."""


class RemoteSession:
    """A client's side of a session, with at most one request under way.

    `parameters` are sent with every hello: how many environments, which infos, whether to render.
    """

    def __init__(self, address: str, options: RemoteOptions, parameters: Header):
        self.address = address
        self.options = options
        self.parameters = {**parameters, "protocol": PROTOCOL, "wait": options.wait_s}
        self.connection: ServerConnection | None = None
        self.token = b""

    def hello(self) -> None:
        """Request a new session over a new connection, in place of the one before, if any."""
        replaces = {"replaces": self.token} if self.token else {}
        if self.connection is not None:
            self.connection.close()
        self.connection = ServerConnection(self.address, self.options.keys)
        self.token = os.urandom(16)
        self.seq = -1
        self.send("hello", {**self.parameters, **replaces})

    def send(
        self, op: str, header: Header | None = None, arrays: Sequence[np.ndarray] = ()
    ) -> None:
        """Send the next request; its reply must be received before another is sent."""
        assert self.connection is not None
        self.seq += 1
        header = {"op": op, "session": self.token, "seq": self.seq, **(header or {})}
        self.connection.send(encode(header, arrays))

    def receive(self, reconnect_s: float = RECONNECT_S, extra_s: float = 0.0) -> Message:
        """Return the reply to the last request.

        Raises `ServerLost` if it takes longer than `env.remote.timeout_s` + `extra_s`, or if there
        is no connection for `reconnect_s`.
        """
        assert self.connection is not None
        within = self.options.timeout_s + extra_s
        deadline = time.monotonic() + within
        while True:
            if (reply := self.receive_within(POLL_MS)) is not None:
                return reply
            self.connection.update_state()
            now = time.monotonic()
            if not self.connection.connected and now - self.connection.down_since > reconnect_s:
                raise ServerLost("cannot be reached")
            if now > deadline:
                raise ServerLost(f"has not answered for {within:g} s (env.remote.timeout_s)")

    def poll(self) -> Message | None:
        """Return the reply to the last request if it has come, without waiting."""
        assert self.connection is not None
        self.connection.update_state()
        return self.receive_within(0)

    def receive_within(self, wait_ms: int) -> Message | None:
        """Return the reply if it comes in time; None if not, or if an older request's came."""
        assert self.connection is not None
        frames = self.connection.receive(wait_ms)
        if frames is None:
            return None
        try:
            message = decode(frames)
        except Refused as refusal:
            raise self.failure(f"sent a malformed message: {refusal}") from None
        header = message.header
        if header.get("session") != self.token or header.get("seq") != self.seq:
            return None
        if header.get("op") == "error":
            raise self._error(str(header.get("kind")), str(header.get("text")))
        return message

    def close(self) -> None:
        """End the session, if the server is there to be told."""
        if self.connection is not None:
            self.connection.update_state()
            if self.connection.connected:
                self.send("close")
                self.connection.receive(CLOSE_MS)
            self.connection.close()
            self.connection = None

    def failure(self, text: str) -> RunFailed:
        """Return the error for a server that broke the protocol or whose environment failed."""
        return RunFailed(f"failed: the server {self.address} {text}")

    def _error(self, kind: str, text: str) -> Exception:
        if kind == "session":
            return ServerLost("does not know this session any more")
        if kind == "room":
            return ServerFull(
                f"has no room for {self.parameters['envs']} more environments: {text}"
            )
        return self.failure(f"answered with an error ({kind}): {text}")
