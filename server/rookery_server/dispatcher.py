"""The sessions of all clients: requests in, replies out, and the limit on environments.

There are no sockets here, and the time is an argument, so the protocol can be tested by itself.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from rookery_server.errors import Refused
from rookery_server.messages import MAX_HEADER_BYTES, Message, decode, encode
from rookery_server.session import (
    EnvironmentFailed,
    Hello,
    Peer,
    Session,
    environment_errors,
    read_hello,
    read_token,
)
from rookery_server.spaces import describe, leaves

MAX_WAITING = 64
MAX_ERROR_LENGTH = 500
SILENCE_S = 3600.0

Make = Callable[[int, bool], Any]
"""(number of environments, render) -> vector environment."""


class WaitingHello(NamedTuple):
    """A hello that waits until enough environments are free."""

    peer: Peer
    hello: Hello
    until: float


class Dispatcher:
    """Answers the messages of all clients.

    No message can end the server or affect the session of another client.
    """

    def __init__(
        self,
        make: Make,
        name: str,
        max_envs: int,
        silence: float = SILENCE_S,
        log: Callable[[str], None] = lambda line: None,
    ):
        self.make, self.name, self.max_envs, self.silence = make, name, max_envs, silence
        self.log = log
        self.sessions: dict[bytes, Session] = {}
        self.waiting: deque[WaitingHello] = deque()
        first = make(1, False)
        try:
            describe(first.single_observation_space, [])
            action = leaves(describe(first.single_action_space, []))
        finally:
            first.close()
        sizes = [leaf.dtype.itemsize * int(np.prod(leaf.shape)) for leaf in action]
        self.max_request_bytes = max_envs * sum(sizes) + MAX_HEADER_BYTES

    def answer(self, peer: Peer, frames: Sequence[Any], now: float) -> list[Any] | None:
        """Return the frames of the reply; None for a hello that waits."""
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
            self.log(f"the environment failed: {failure}")
            return error(header, "environment", str(failure))

    def disconnected(self, connection: int, now: float) -> None:
        """Note that a connection was lost: its sessions may continue over another one, but a hello
        that waited is dropped."""
        self.waiting = deque(w for w in self.waiting if w.peer.connection != connection)
        for session in self.sessions.values():
            if session.connection == connection:
                session.gone = now

    def expire_and_admit(self, now: float) -> list[tuple[Peer, list[Any]]]:
        """End overdue sessions, then admit waiting clients in their order while there is room.

        Returns the replies to waiting clients.
        """
        for token, session in list(self.sessions.items()):
            if session.is_overdue(now, self.silence):
                self._end(token, "its client has disconnected or is silent")
        replies = []
        for waiting in [w for w in self.waiting if w.until < now]:
            self.waiting.remove(waiting)
            replies.append((waiting.peer, error(waiting.hello.header, *self._no_room())))
        while self.waiting and self.waiting[0].hello.envs <= self.free_envs:
            waiting = self.waiting.popleft()
            try:
                reply = self._begin(waiting.peer, waiting.hello, now)
            except EnvironmentFailed as failure:
                reply = error(waiting.hello.header, "environment", str(failure))
            replies.append((waiting.peer, reply))
        return replies

    @property
    def free_envs(self) -> int:
        """Number of environments that no session uses."""
        return self.max_envs - sum(session.envs for session in self.sessions.values())

    def close(self) -> None:
        for token in list(self.sessions):
            self._end(token, "the server stops")

    def _carry_out(self, peer: Peer, message: Message, now: float) -> list[Any] | None:
        token = read_token(message.header, "session")
        session = self.sessions.get(token)
        if message.header.get("op") == "hello":
            return self._hello(peer, message, session, now)
        if session is None or session.user != peer.user:
            raise Refused("session", "unknown session: it has ended, or never began; send hello")
        session.note_request(peer, now)
        try:
            reply = session.answer(message)
        except EnvironmentFailed:
            self._end(token, "its environment failed")
            raise
        if session.ended:
            self._end(token, "closed by its client")
        return reply

    def _hello(
        self, peer: Peer, message: Message, session: Session | None, now: float
    ) -> list[Any] | None:
        hello = read_hello(message.header)
        if session is not None:
            if session.user != peer.user or session.seq > 0:
                raise Refused("order", "this session has already begun")
            session.note_request(peer, now)
            return session.last
        if hello.replaces is not None:
            old = self.sessions.get(hello.replaces)
            if old is not None and old.user == peer.user:
                self._end(hello.replaces, "its client replaced it")
        places = [w.hello.token for w in self.waiting]
        if hello.token in places:  # repeated, perhaps over a new connection
            place = places.index(hello.token)
            self.waiting[place] = self.waiting[place]._replace(peer=peer)
            return None
        if hello.envs <= self.free_envs and not self.waiting:
            return self._begin(peer, hello, now)
        if hello.envs > self.max_envs or not hello.wait or len(self.waiting) >= MAX_WAITING:
            raise Refused(*self._no_room())
        self.waiting.append(WaitingHello(peer, hello, now + hello.wait))
        return None

    def _no_room(self) -> tuple[str, str]:
        waiting = f", {len(self.waiting)} clients are waiting" if self.waiting else ""
        return "room", f"{self.free_envs} of {self.max_envs} environments are free{waiting}"

    def _begin(self, peer: Peer, hello: Hello, now: float) -> list[Any]:
        with environment_errors():
            env = self.make(hello.envs, hello.render)
            try:
                session = Session(hello, env, peer, now)
            except BaseException:
                env.close()
                raise
        self.sessions[hello.token] = session
        self.log(f"a session with {hello.envs} environments began; {self._usage()}")
        return session.hello_reply(self.name, self.silence)

    def _end(self, token: bytes, why: str) -> None:
        session = self.sessions.pop(token)
        session.close()
        self.log(f"a session with {session.envs} environments ended ({why}); {self._usage()}")

    def _usage(self) -> str:
        return f"{self.max_envs - self.free_envs} of {self.max_envs} environments are in use"


def error(header: dict[str, Any], kind: str, text: str) -> list[Any]:
    """Return the frames of an error reply to a message with `header`."""
    token, seq = header.get("session"), header.get("seq")
    return encode(
        {
            "op": "error",
            "session": token if isinstance(token, bytes) and len(token) <= 64 else None,
            "seq": seq if type(seq) is int else None,
            "kind": kind,
            "text": " ".join(text.split())[:MAX_ERROR_LENGTH],
        }
    )
