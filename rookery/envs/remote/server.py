"""The environments that one server runs, and what replaces them while it cannot be reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from rookery_server.messages import Message, Refused
from rookery_server.spaces import leaves, restore

from rookery.envs.remote.session import RemoteSession, ServerFull, ServerLost
from rookery.envs.wrappers.moments import Array

CONNECT_S = 10.0
"""How long the first connection to a server may take."""
RETRY_FULL_S = 5.0
"""Pause before a full server is asked again."""


class ServerRows(NamedTuple):
    """One row of every environment of a server."""

    reward: Array
    terminated: Array
    truncated: Array
    obs: list[Array]
    """One array a leaf of the observation space."""
    infos: list[Array]
    lost: bool = False
    """True if the server is away: nothing was stepped, and the observations are the last ones."""


class RemoteServer:
    """The environments `lanes` of all, which one server runs.

    While the server is away their rows are truncated ones with the last observations.
    """

    def __init__(self, session: RemoteSession, lanes: slice, log: Callable[[str], None]):
        self.session = session
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
        self.infos: list[Array] = []

    def begin(self) -> None:
        """Begin the first session; the spaces of the server must not change afterwards."""
        self.session.hello()
        hello = self._receive_hello()
        header = hello.header
        try:
            self.space_descriptions = header["observation"], header["action"]
            self.observation_space, self.action_space = (
                restore(plain, hello.arrays, gymnasium.spaces) for plain in self.space_descriptions
            )
            obs_leaves = leaves(self.space_descriptions[0])
        except (Refused, KeyError, TypeError, ValueError, IndexError) as error:
            raise self.session.failure(
                f"sent a malformed description of its spaces: {error!r}"
            ) from error
        self.name = str(header.get("env"))
        results = [(np.dtype(kind), (self.count,)) for kind in (np.float64, bool, bool)]
        self._obs_layout = [(leaf.dtype, (self.count, *leaf.shape)) for leaf in obs_leaves]
        self._info_layout = [results[0]] * len(self.session.parameters["infos"])
        self._result_layout = results

    def reset(self, seed: int | None) -> None:
        """Request new episodes; environment i of this server is seeded with `seed + i`."""
        self.returned = False
        if self.away_since is None:
            self.session.send("reset", {"seed": seed})

    def receive_reset(self, seed: int | None) -> None:
        """Receive the first observations.

        A session that the server has ended is replaced. A server that cannot be reached is away
        from now on, or an error if it was never reset before.
        """
        if self.away_since is None:
            try:
                return self._read_reset(self.session.receive())
            except ServerLost:
                pass
        try:
            self.session.hello()
            self._check_spaces(self._receive_hello())
            self.session.send("reset", {"seed": seed})
            self._read_reset(self.session.receive())
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
                return self._read_step(self.session.receive())
            except ServerLost as lost:
                self._mark_away(str(lost))
        no, truncated = np.zeros(self.count, bool), np.full(self.count, not returned)
        return ServerRows(
            np.zeros(self.count), no, truncated, self.obs, self.infos, lost=not returned
        )

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
                self._read_reset(message)
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
        self.session.hello()

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

    def _read_reset(self, message: Message) -> None:
        arrays = self._arrays_of(message, [*self._obs_layout, *self._info_layout])
        self.obs, self.infos = arrays[: len(self._obs_layout)], arrays[len(self._obs_layout) :]

    def _read_step(self, message: Message) -> ServerRows:
        arrays = self._arrays_of(
            message, [*self._result_layout, *self._obs_layout, *self._info_layout]
        )
        reward, terminated, truncated = arrays[:3]
        end = 3 + len(self._obs_layout)
        self.obs, self.infos = arrays[3:end], arrays[end:]
        return ServerRows(reward, terminated, truncated, self.obs, self.infos)

    def _arrays_of(self, message: Message, expected: list[tuple[Any, Any]]) -> list[Array]:
        if [(array.dtype, array.shape) for array in message.arrays] != expected:
            raise self.session.failure("sent arrays whose types or shapes do not match its spaces")
        return message.arrays
