"""The lanes of one server, there or away."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from rookery_server.spaces import leaves, restore
from rookery_server.wire import Message, Refused

from rookery.envs.remote.session import Link, Lost, NoRoom
from rookery.envs.wrappers.moments import Array

CONNECT_S = 10.0
"""How long a server may take to be there when it is needed at once."""
AGAIN_S = 5.0
"""Until a server that had no room is asked once more."""


class Rows(NamedTuple):
    """One row of every lane of a server."""

    reward: Array
    terminated: Array
    truncated: Array
    obs: list[Array]
    """One array a leaf."""
    infos: list[Array]
    lost: bool = False
    """Whether the server is away: nothing was done, and the observations are old ones."""


class Station:
    """One server's share of the lanes. While it is away its rows are truncated ones."""

    def __init__(self, link: Link, lanes: slice, tell: Callable[[str], None]):
        self.link = link
        self.lanes = lanes
        self.count = lanes.stop - lanes.start
        self.tell = tell
        self.away_since: float | None = None
        self.greeted = False
        """While away: whether a new session has begun, and its first observations are awaited."""
        self.ask_again_at: float | None = None
        """While away, where there was no room: when to say hello again."""
        self.fresh = False
        """Whether the server has just come back, and the next row is the reset row."""
        self.obs: list[Array] = []
        self.infos: list[Array] = []

    def begin(self) -> None:
        """The first session: what the server has then is what it must have ever after."""
        self.link.hello()
        greeting = self._await_greeting()
        header = greeting.header
        try:
            self.plain = header["observation"], header["action"]
            self.observation_space, self.action_space = (
                restore(plain, greeting.arrays, gymnasium.spaces) for plain in self.plain
            )
            seen = leaves(self.plain[0])
        except (Refused, KeyError, TypeError, ValueError, IndexError) as error:
            raise self.link.failure(f"described its spaces wrongly: {error!r}") from error
        self.name = str(header.get("env"))
        tallies = [(np.dtype(kind), (self.count,)) for kind in (np.float64, bool, bool)]
        self._seen = [(leaf.dtype, (self.count, *leaf.shape)) for leaf in seen]
        self._told = [tallies[0]] * len(self.link.wishes["infos"])
        self._tallies = tallies

    def reset(self, seed: int | None) -> None:
        """Ask for new episodes in all lanes, from `seed + i` in lane i of this server."""
        self.fresh = False
        if self.away_since is None:
            self.link.send("reset", {"seed": seed})

    def has_reset(self, seed: int | None) -> None:
        """Await them. A session that has ended meanwhile is replaced; a server that cannot be
        reached is away, unless it was never there."""
        if self.away_since is None:
            try:
                return self._take_first(self.link.receive())
            except Lost:
                pass
        try:
            self.link.hello()
            self._check_spaces(self._await_greeting())
            self.link.send("reset", {"seed": seed})
            self._take_first(self.link.receive())
        except (Lost, NoRoom) as error:
            if not self.obs:
                raise self.link.failure(str(error)) from error
            return self._leave(str(error))
        self._note_return()

    def step(self, actions: Sequence[Array]) -> None:
        """Send the lanes' actions, one array a leaf."""
        if self.away_since is not None:
            self.look()
        elif not self.fresh:
            self.link.send("step", arrays=actions)

    def rows(self) -> Rows:
        """What came of them. While the server is away: rows in which nothing was done."""
        fresh, self.fresh = self.fresh, False
        if self.away_since is None and not fresh:
            try:
                return self._read(self.link.receive())
            except Lost as lost:
                self._leave(str(lost))
        nothing, lost_lanes = np.zeros(self.count, bool), np.full(self.count, not fresh)
        return Rows(np.zeros(self.count), nothing, lost_lanes, self.obs, self.infos, lost=not fresh)

    def render(self, lane: int) -> Array:
        """A picture of a lane."""
        try:
            self.link.send("render", {"lane": lane})
            return self.link.receive().arrays[0]
        except Lost as lost:
            raise self.link.failure(str(lost)) from lost

    def look(self) -> None:
        """See, without waiting, whether a server that was away has begun new episodes."""
        if self.ask_again_at is not None:
            if time.monotonic() < self.ask_again_at:
                return
            self._ask_for_room()
        try:
            message = self.link.look()
            if message is None:
                return
            if self.greeted:
                self._take_first(message)
                self._note_return()
                self.fresh = True
                return
            self._check_spaces(message)
            self.greeted = True
            self.link.send("reset", {"seed": None})
        except Lost:
            self._ask_for_room()
        except NoRoom:
            self.ask_again_at = time.monotonic() + AGAIN_S

    def _leave(self, why: str) -> None:
        if self.away_since is None:
            self.away_since = time.monotonic()
            several = "environments are" if self.count > 1 else "environment is"
            self.tell(
                f"the server {self.link.address} {why}: its {self.count} {several} left out until "
                "it is back"
            )
        self._ask_for_room()

    def _ask_for_room(self) -> None:
        self.greeted, self.ask_again_at = False, None
        self.link.hello()

    def _note_return(self) -> None:
        if self.away_since is not None:
            seconds = time.monotonic() - self.away_since
            self.away_since = None
            self.tell(f"the server {self.link.address} is back after {seconds:.1f} s")

    def _await_greeting(self) -> Message:
        return self.link.receive(CONNECT_S, more_s=self.link.options.wait_s)

    def _check_spaces(self, greeting: Message) -> None:
        if (greeting.header.get("observation"), greeting.header.get("action")) != self.plain:
            raise self.link.failure("came back with other spaces")

    def _take_first(self, message: Message) -> None:
        arrays = self._checked(message, [*self._seen, *self._told])
        self.obs, self.infos = arrays[: len(self._seen)], arrays[len(self._seen) :]

    def _read(self, message: Message) -> Rows:
        arrays = self._checked(message, [*self._tallies, *self._seen, *self._told])
        reward, terminated, truncated = arrays[:3]
        end = 3 + len(self._seen)
        self.obs, self.infos = arrays[3:end], arrays[end:]
        return Rows(reward, terminated, truncated, self.obs, self.infos)

    def _checked(self, message: Message, expected: list[tuple[Any, Any]]) -> list[Array]:
        if [(array.dtype, array.shape) for array in message.arrays] != expected:
            raise self.link.failure("sent arrays of other types or shapes than its spaces say")
        return message.arrays
