"""All sessions of a server: who has how many environments, who waits, who is gone.

No sockets here, and the time is handed in: the protocol can be tested by itself.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from rookery_server.requests import Hello, read_hello, read_token
from rookery_server.session import EnvironmentFailed, Session, failures
from rookery_server.spaces import describe, leaves
from rookery_server.wire import MAX_HEADER_BYTES, Message, Refused, decode, encode

LEAST_REQUEST_BYTES = 1 << 20
MAX_WAITING = 64
TEXT_LENGTH = 500
SILENCE_S = 3600.0
GONE_S = 10.0
"""How long a session outlives its connection, so that a client can come back to it."""

Make = Callable[[int, bool], Any]
"""From a number, and whether they will be drawn, to that many environments as one."""


class Peer(NamedTuple):
    """Who sent a message: where replies go, over which connection, with whose key."""

    route: Any
    connection: int = 0
    user: str = ""


class Guest:
    """A session, and when its client was last heard of."""

    def __init__(self, session: Session, peer: Peer, now: float):
        self.session = session
        self.user = peer.user
        self.hear(peer, now)

    def hear(self, peer: Peer, now: float) -> None:
        """Note a request."""
        self.connection = peer.connection
        self.heard = now
        self.gone: float | None = None

    def overdue(self, now: float, silence: float) -> bool:
        """Whether nothing more is expected of it."""
        return now - self.heard > silence or (self.gone is not None and now - self.gone > GONE_S)


class Waiting(NamedTuple):
    """A hello for which there is no room yet."""

    peer: Peer
    hello: Hello
    until: float


class Host:
    """Answers every message; what it is sent can neither end it nor touch another's session."""

    def __init__(
        self,
        make: Make,
        name: str,
        most: int,
        silence: float = SILENCE_S,
        tell: Callable[[str], None] = lambda line: None,
    ):
        self.make, self.name, self.most, self.silence = make, name, most, silence
        self.tell = tell
        self.guests: dict[bytes, Guest] = {}
        self.waiting: deque[Waiting] = deque()
        first = make(1, False)
        try:
            describe(first.single_observation_space, [])
            action = leaves(describe(first.single_action_space, []))
        finally:
            first.close()
        sizes = [leaf.dtype.itemsize * int(np.prod(leaf.shape)) for leaf in action]
        self.max_request_bytes = max(LEAST_REQUEST_BYTES, most * sum(sizes) + MAX_HEADER_BYTES)

    def answer(self, peer: Peer, frames: Sequence[Any], now: float) -> list[Any] | None:
        """The reply to a message; None for a hello that waits."""
        header: dict[str, Any] = {}
        try:
            if sum(map(len, frames)) > self.max_request_bytes:
                raise Refused("size", f"a request has at most {self.max_request_bytes} bytes")
            message = decode(frames)
            header = message.header
            return self._carry_out(peer, message, now)
        except Refused as refusal:
            return error(header, refusal.kind, str(refusal))
        except EnvironmentFailed as failure:
            self.tell(f"the environment failed: {failure}")
            return error(header, "environment", str(failure))

    def disconnected(self, connection: int, now: float) -> None:
        """A connection was lost: whoever waited over it is gone, sessions may come back."""
        self.waiting = deque(w for w in self.waiting if w.peer.connection != connection)
        for guest in self.guests.values():
            if guest.connection == connection:
                guest.gone = now

    def due(self, now: float) -> list[tuple[Peer, list[Any]]]:
        """End what is overdue, then admit those who wait while there is room, in their order."""
        for token, guest in list(self.guests.items()):
            if guest.overdue(now, self.silence):
                self._end(token, "its client is gone")
        replies = []
        for waiting in [w for w in self.waiting if w.until < now]:
            self.waiting.remove(waiting)
            replies.append((waiting.peer, error(waiting.hello.header, *self._no_room())))
        while self.waiting and self.waiting[0].hello.envs <= self.room:
            waiting = self.waiting.popleft()
            replies.append((waiting.peer, self._begin_or_fail(waiting, now)))
        return replies

    @property
    def room(self) -> int:
        """How many more environments there may be."""
        return self.most - sum(guest.session.envs for guest in self.guests.values())

    def close(self) -> None:
        """End all sessions."""
        for token in list(self.guests):
            self._end(token, "the server ends")

    def _carry_out(self, peer: Peer, message: Message, now: float) -> list[Any] | None:
        token = read_token(message.header, "session")
        guest = self.guests.get(token)
        if message.header.get("op") == "hello":
            return self._hello(peer, message, guest, now)
        if guest is None or guest.user != peer.user:
            raise Refused("session", "there is no such session (any more): say hello")
        guest.hear(peer, now)
        try:
            reply = guest.session.answer(message)
        except EnvironmentFailed:
            self._end(token, "its environment failed")
            raise
        if guest.session.ended:
            self._end(token, "it was closed")
        return reply

    def _hello(
        self, peer: Peer, message: Message, guest: Guest | None, now: float
    ) -> list[Any] | None:
        hello = read_hello(message.header)
        if guest is not None:
            if guest.user != peer.user or guest.session.seq > 0:
                raise Refused("order", "this session has begun already")
            guest.hear(peer, now)
            return guest.session.last
        if hello.replaces is not None:
            old = self.guests.get(hello.replaces)
            if old is not None and old.user == peer.user:
                self._end(hello.replaces, "its client begins another")
        places = [w.hello.token for w in self.waiting]
        if hello.token in places:  # said once more, perhaps over a new connection
            place = places.index(hello.token)
            self.waiting[place] = self.waiting[place]._replace(peer=peer)
            return None
        if hello.envs <= self.room and not self.waiting:
            return self._begin(peer, hello, now)
        if hello.envs > self.most or not hello.wait or len(self.waiting) >= MAX_WAITING:
            raise Refused(*self._no_room())
        self.waiting.append(Waiting(peer, hello, now + hello.wait))
        return None

    def _no_room(self) -> tuple[str, str]:
        waiting = f", {len(self.waiting)} clients wait" if self.waiting else ""
        return "room", f"{self.room} of {self.most} environments are free{waiting}"

    def _begin(self, peer: Peer, hello: Hello, now: float) -> list[Any]:
        with failures():
            env = self.make(hello.envs, hello.render)
            try:
                session = Session(hello.token, env, hello.infos, hello.render)
            except BaseException:
                env.close()
                raise
        self.guests[hello.token] = Guest(session, peer, now)
        self.tell(f"a session of {hello.envs} began; {self._taken()}")
        return session.greet(self.name, self.silence)

    def _begin_or_fail(self, waiting: Waiting, now: float) -> list[Any]:
        try:
            return self._begin(waiting.peer, waiting.hello, now)
        except EnvironmentFailed as failure:
            return error(waiting.hello.header, "environment", str(failure))

    def _end(self, token: bytes, why: str) -> None:
        guest = self.guests.pop(token)
        guest.session.close()
        self.tell(f"a session of {guest.session.envs} ended, {why}; {self._taken()}")

    def _taken(self) -> str:
        return f"{self.most - self.room} of {self.most} environments are taken"


def error(header: dict[str, Any], kind: str, text: str) -> list[Any]:
    """The frames of an error reply to a message with `header`."""
    token, seq = header.get("session"), header.get("seq")
    return encode(
        {
            "op": "error",
            "session": token if isinstance(token, bytes) and len(token) <= 64 else None,
            "seq": seq if type(seq) is int else None,
            "kind": kind,
            "text": " ".join(text.split())[:TEXT_LENGTH],
        }
    )
