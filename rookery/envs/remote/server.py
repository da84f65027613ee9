"""One server as a client sees it: sessions over a ZeroMQ socket that reconnects by itself, and the
environments that the server runs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import zmq
from rookery_server.errors import Refused, Unusable
from rookery_server.messages import PROTOCOL, Header, Message, decode, encode
from rookery_server.sockets import configure, receive_frames, send_frames, use_client_keys
from rookery_server.spaces import leaves, restore
from zmq.utils.monitor import recv_monitor_message

from rookery.envs.options import RemoteOptions
from rookery.envs.spaces import Array
from rookery.errors import BadInput, RunFailed

CONNECT_S = 10.0
"""Longest time that the first connection to a server may take."""
RETRY_FULL_S = 5.0
"""Pause before a full server is asked again."""
RECONNECT_S = 2.0
"""Time in which a broken connection is restored before its server counts as lost."""
CLOSE_MS = 1_000
POLL_MS = 50
"""Wait for a reply before the state of the connection is checked."""
MAX_RETRY_MS = 2_000
"""Longest pause between attempts to connect."""
KEY_ERRORS = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "does not accept the key in env.remote.keys",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "ended the handshake: check env.remote.keys",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: (
        "uses keys and this client does not, or the other way round: see env.remote.keys"
    ),
}
EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
for _event in KEY_ERRORS:
    EVENTS |= _event


class ServerLost(Exception):
    """A server that does not answer, or that does not know this session any more."""


class ServerFull(Exception):
    """A server without room for as many environments as were requested."""


class RemoteSession:
    """A client's side of a session, with at most one request under way, of which the first, sent
    here, is the hello.

    The socket is encrypted by CURVE if there are keys. The last request is sent again after the
    connection broke and was made again. `parameters` are part of the hello: how many environments,
    which infos, whether to render, and which session this one replaces.
    """

    def __init__(self, address: str, options: RemoteOptions, parameters: Header):
        self.address = address
        self.options = options
        self.envs = parameters["envs"]
        self.token = os.urandom(16)
        self.seq = -1
        self.connected = self.broke = False
        self.down_since = time.monotonic()
        """Time at which the last connection broke, or the first was attempted."""
        self.request: Sequence[Any] = ()
        # The process's own context is never terminated: an environment that was not closed cannot
        # keep the process from ending.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self.socket = context.socket(zmq.DEALER)
        configure(self.socket)
        self.socket.reconnect_ivl_max = MAX_RETRY_MS
        self.socket.ipv6 = "[" in address
        if options.keys is not None:
            try:
                use_client_keys(self.socket, options.keys)
            except Unusable as error:
                self.socket.close()
                raise BadInput(f"env.remote.keys: {error}") from error
        self.events = self.socket.get_monitor_socket(EVENTS)
        self.socket.connect(address)
        self.send("hello", {**parameters, "protocol": PROTOCOL, "wait": options.wait_s})

    def send(
        self, op: str, header: Header | None = None, arrays: Sequence[np.ndarray] = ()
    ) -> None:
        """Send the next request as soon as there is a connection; its reply must be received before
        another is sent."""
        self.seq += 1
        header = {"op": op, "session": self.token, "seq": self.seq, **(header or {})}
        self.request = encode(header, arrays)
        send_frames(self.socket, self.request)

    def receive(self, reconnect_s: float = RECONNECT_S, extra_s: float = 0.0) -> Message:
        """Return the reply to the last request.

        Raises `ServerLost` if it takes longer than `env.remote.timeout_s` + `extra_s`, or if there
        is no connection for `reconnect_s`.
        """
        within = self.options.timeout_s + extra_s
        deadline = time.monotonic() + within
        while True:
            if (reply := self.receive_within(POLL_MS)) is not None:
                return reply
            self.update_connection()
            now = time.monotonic()
            if not self.connected and now - self.down_since > reconnect_s:
                raise ServerLost("cannot be reached")
            if now > deadline:
                raise ServerLost(f"has not answered for {within:g} s (env.remote.timeout_s)")

    def poll(self) -> Message | None:
        """Return the reply to the last request if it has come, without waiting."""
        self.update_connection()
        return self.receive_within(0)

    def receive_within(self, wait_ms: int) -> Message | None:
        """Return the reply if it comes in time; None if not, or if an older request's came."""
        self.socket.rcvtimeo = wait_ms
        try:
            message = decode([frame.buffer for frame in receive_frames(self.socket)])
        except zmq.Again:
            return None
        except Refused as refusal:
            raise self.failure(f"sent a malformed message: {refusal}") from None
        header = message.header
        if header.get("session") != self.token or header.get("seq") != self.seq:
            return None
        if header.get("op") != "error":
            return message
        kind, text = str(header.get("kind")), str(header.get("text"))
        if kind == "session":
            raise ServerLost("does not know this session any more")
        if kind == "room":
            raise ServerFull(f"has no room for {self.envs} more environments: {text}")
        raise self.failure(f"answered with an error ({kind}): {text}")

    def update_connection(self) -> None:
        """Update `connected` and `down_since`; raise if the server refuses this client's keys."""
        while self.events.poll(0):
            event = zmq.Event(recv_monitor_message(self.events)["event"])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.connected = True
                if self.broke:
                    send_frames(self.socket, self.request)
            elif event == zmq.EVENT_DISCONNECTED:
                if self.connected:
                    self.down_since = time.monotonic()
                    self.connected, self.broke = False, True
            elif event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL or (
                # Without keys, or after a first handshake, this means that the server just ended.
                self.options.keys is not None and not self.broke
            ):
                raise BadInput(f"envs: the server {self.address} {KEY_ERRORS[event]}")

    def close(self) -> None:
        """End the session, if the server is there to be told, and disconnect."""
        self.update_connection()
        if self.connected:
            self.send("close")
            self.socket.rcvtimeo = CLOSE_MS
            with contextlib.suppress(zmq.Again):
                receive_frames(self.socket)
        self.disconnect()

    def disconnect(self) -> None:
        """Close the socket; requests that were not sent are dropped."""
        self.socket.disable_monitor()
        self.events.close(0)
        self.socket.close()

    def failure(self, text: str) -> RunFailed:
        """Return the error for a server that broke the protocol or whose environment failed."""
        return RunFailed(f"failed: the server {self.address} {text}")


class ServerRows(NamedTuple):
    """One row of every environment of a server; its observations are in `RemoteServer.obs`."""

    reward: Array
    terminated: Array
    truncated: Array
    lost: bool = False
    """True if the server is away: nothing was stepped, and the observations are the last ones."""


class RemoteServer:
    """The environments `lanes` of all, which one server runs.

    While the server is away their rows are truncated ones with the last observations.
    """

    def __init__(
        self,
        address: str,
        options: RemoteOptions,
        parameters: Header,
        lanes: slice,
        log: Callable[[str], None],
    ):
        self.parameters = parameters
        self.session = RemoteSession(address, options, parameters)
        self.lanes = lanes
        self.count = lanes.stop - lanes.start
        self.log = log
        self.away_since: float | None = None
        self.session_began = False
        """While away: True if a new session has begun, and its first observations are awaited."""
        self.retry_at: float | None = None
        """While away and the server was full: when to ask again."""
        self.returned = False
        """True if the server has just come back, and the next row is the reset row."""
        self.obs: list[Array] = []
        """The last observations, one array a leaf of the observation space."""
        self.infos: list[Array] = []

    def receive_spaces(self) -> None:
        """Receive the reply to the first hello; the spaces must not change afterwards."""
        hello = self._receive_hello()
        header = hello.header
        try:
            self.space_descriptions = header["observation"], header["action"]
            obs_leaves, self.action_leaves = map(leaves, self.space_descriptions)
            self.observation_space, self.action_space = (
                restore(plain, hello.arrays, gymnasium.spaces) for plain in self.space_descriptions
            )
        except (Refused, KeyError, TypeError, ValueError, IndexError) as error:
            raise self.session.failure(
                f"sent a malformed description of its spaces: {error!r}"
            ) from error
        self.name = str(header.get("env"))
        kinds = (np.float64, bool, bool)
        self._result_layout = [(np.dtype(kind), (self.count,)) for kind in kinds]
        self._obs_layout = [(leaf.dtype, (self.count, *leaf.shape)) for leaf in obs_leaves]
        self._info_layout = self._result_layout[:1] * len(self.parameters["infos"])

    def reset(self, seed: int | None) -> None:
        """Request new episodes; environment i of all servers is seeded with `seed + i`."""
        self.returned = False
        self._seed = {"seed": None if seed is None else seed + self.lanes.start}
        if self.away_since is None:
            self.session.send("reset", self._seed)

    def receive_reset(self) -> None:
        """Receive the first observations.

        A session that the server has ended is replaced. A server that cannot be reached is away
        from now on, or an error if it was never reset before.
        """
        if self.away_since is None:
            try:
                self._read(self.session.receive(), [])
                return
            except ServerLost:
                pass
        try:
            self._request_session()
            self._check_spaces(self._receive_hello())
            self.session.send("reset", self._seed)
            self._read(self.session.receive(), [])
        except (ServerLost, ServerFull) as error:
            if not self.obs:
                raise self.session.failure(str(error)) from error
            return self._mark_away(str(error))
        self._mark_returned()

    def step(self, actions: Sequence[Array]) -> None:
        """Send actions, one array a leaf of the action space."""
        if self.away_since is not None:
            self.try_to_return()
        elif not self.returned:
            self.session.send("step", arrays=actions)

    def receive_rows(self) -> ServerRows:
        """Return the results of the step; rows without effect if the server is away."""
        returned, self.returned = self.returned, False
        if self.away_since is None and not returned:
            try:
                message = self.session.receive()
                reward, terminated, truncated = self._read(message, self._result_layout)
                return ServerRows(reward, terminated, truncated)
            except ServerLost as lost:
                self._mark_away(str(lost))
        no, truncated = np.zeros(self.count, bool), np.full(self.count, not returned)
        return ServerRows(np.zeros(self.count), no, truncated, lost=not returned)

    def render(self, lane: int) -> Array:
        """Return a picture of environment `lane` of this server."""
        try:
            self.session.send("render", {"lane": lane})
            return self.session.receive().arrays[0]
        except ServerLost as lost:
            raise self.session.failure(str(lost)) from lost

    def try_to_return(self) -> None:
        """Take the next step towards a new session with a server that is away, without waiting."""
        if self.retry_at is not None:
            if time.monotonic() < self.retry_at:
                return
            self._request_session()
        try:
            message = self.session.poll()
            if message is None:
                return
            if self.session_began:
                self._read(message, [])
                self._mark_returned()
                self.returned = True
                return
            self._check_spaces(message)
            self.session_began = True
            self.session.send("reset", {"seed": None})
        except ServerLost:
            self._request_session()
        except ServerFull:
            self.retry_at = time.monotonic() + RETRY_FULL_S

    def _mark_away(self, why: str) -> None:
        if self.away_since is None:
            self.away_since = time.monotonic()
            noun = "environments" if self.count > 1 else "environment"
            self.log(
                f"the server {self.session.address} {why}: going on without its "
                f"{self.count} {noun} until it is back"
            )
        self._request_session()

    def _request_session(self) -> None:
        self.session_began, self.retry_at = False, None
        old = self.session
        old.disconnect()
        parameters = {**self.parameters, "replaces": old.token}
        self.session = RemoteSession(old.address, old.options, parameters)

    def _mark_returned(self) -> None:
        if self.away_since is not None:
            seconds = time.monotonic() - self.away_since
            self.away_since = None
            self.log(f"the server {self.session.address} is back after {seconds:.1f} s")

    def _receive_hello(self) -> Message:
        return self.session.receive(CONNECT_S, extra_s=self.session.options.wait_s)

    def _check_spaces(self, hello: Message) -> None:
        if (hello.header.get("observation"), hello.header.get("action")) != self.space_descriptions:
            raise self.session.failure("came back with different spaces")

    def _read(self, message: Message, results: list[Any]) -> list[Array]:
        """Take observations and infos from a reply; return the arrays before them, as `results`
        describes their dtypes and shapes."""
        arrays = message.arrays
        expected = [*results, *self._obs_layout, *self._info_layout]
        if [(array.dtype, array.shape) for array in arrays] != expected:
            raise self.session.failure("sent arrays whose types or shapes do not match its spaces")
        start, end = len(results), len(results) + len(self._obs_layout)
        self.obs, self.infos = arrays[start:end], arrays[end:]
        return arrays[:start]
