"""The server's socket and loop: one request is handled at a time."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import signal
import time
from typing import Any, Callable, Iterator, NamedTuple

import zmq

from rookery_server.connections import MAX_CONNECTIONS, ConnectionLimits, raise_descriptor_limit
from rookery_server.dispatcher import Dispatcher, Make
from rookery_server.errors import Unusable
from rookery_server.session import Peer
from rookery_server.sockets import (
    NOBLOCK,
    configure,
    receive_frames,
    require_client_keys,
    send_frames,
)

LOOPBACK = "127.0.0.1"
HARD_LIMIT = 4
"""A message this many times as large as the largest valid request is not read."""
CHECK_MS = 1_000
HANDSHAKE_MS = 10_000
MAX_FRAMES = 1_000
"""Frames of a message beyond which its connection is closed."""
SRCFD = int(zmq.SRCFD)
MAX_QUEUED = 2
"""Whole messages of one client that libzmq holds in either direction; a client that keeps to the
protocol has one."""


class Place(NamedTuple):
    """Address, keys and limits of a server."""

    port: int = 5555
    bind: str = LOOPBACK
    keys: str | None = None
    envs: int = 16
    silence: float = 3600.0

    def checked(self) -> Place:
        """Return this, or raise an error that names the wrong option."""
        if not 0 <= self.port < 65536:
            raise Unusable(f"--port must be from 0 to 65535, got {self.port}")
        if self.envs < 1:
            raise Unusable(f"--envs must be 1 or more, got {self.envs}")
        if self.silence <= 0:
            raise Unusable(f"--silence must be above 0, got {self.silence}")
        if not (self.keys or is_loopback(self.bind)):
            raise Unusable(
                f"--bind {self.bind} opens the server to other machines: it needs "
                "--keys DIR/server (--make-keys DIR makes keys)"
            )
        return self


def is_loopback(address: str) -> bool:
    """True if only this machine can reach an address."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def run(make: Make, name: str, place: Place, log: Callable[[str], None]) -> None:
    """Serve until interrupted or terminated."""
    dispatcher = Dispatcher(make, name, place.checked().envs, place.silence, log)
    raise_descriptor_limit()
    with listening(place, dispatcher.max_request_bytes) as (socket, limits):
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C
        address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        log(f"serving {name} at {address}, at most {place.envs} environments")
        try:
            serve(dispatcher, socket, limits, has_keys=place.keys is not None)
        except KeyboardInterrupt:
            log("stopped")
        finally:
            dispatcher.close()
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def listening(
    place: Place, max_request_bytes: int
) -> Iterator[tuple[zmq.Socket, ConnectionLimits]]:
    """A listening ROUTER socket, encrypted by CURVE if there are keys, and its limits."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    authenticator = limits = None
    max_bytes = HARD_LIMIT * max_request_bytes
    try:
        configure(socket)
        socket.maxmsgsize = max_bytes
        socket.rcvbuf = max_request_bytes
        socket.sndhwm = socket.rcvhwm = MAX_QUEUED
        socket.router_mandatory = True  # a reply that cannot be sent is an error, see `send`
        socket.handshake_ivl = HANDSHAKE_MS
        socket.backlog = MAX_CONNECTIONS
        socket.ipv6 = ":" in place.bind
        if place.keys:
            authenticator = require_client_keys(socket, context, place.keys)
        limits = ConnectionLimits(socket, max_bytes)
        name = f"[{place.bind.strip('[]')}]" if ":" in place.bind else place.bind
        try:
            socket.bind(f"tcp://{name}:{place.port or '*'}")
        except zmq.ZMQError as error:
            raise Unusable(f"cannot listen on {name}:{place.port}: {error}") from error
        yield socket, limits
    finally:
        if limits is not None:
            limits.close()
        socket.close()
        if authenticator is not None:
            authenticator.stop()
        context.term()


def serve(
    dispatcher: Dispatcher, socket: zmq.Socket, limits: ConnectionLimits, has_keys: bool
) -> None:
    """Answer messages until interrupted."""
    checked = 0.0
    socket.rcvtimeo = CHECK_MS
    while True:
        answer_one(dispatcher, socket, limits, has_keys)
        note_lost(dispatcher, limits)
        if dispatcher.waiting or time.monotonic() - checked >= CHECK_MS / 1000:
            checked = time.monotonic()
            for peer, frames in dispatcher.expire_and_admit(checked):
                send(socket, peer, frames)


def note_lost(dispatcher: Dispatcher, limits: ConnectionLimits) -> None:
    """Tell the dispatcher which connections were lost."""
    for descriptor in limits.lost():
        dispatcher.disconnected(descriptor, time.monotonic())


def answer_one(
    dispatcher: Dispatcher, socket: zmq.Socket, limits: ConnectionLimits, has_keys: bool
) -> None:
    """Receive a message, if one comes in time, and answer it."""
    try:
        frames = receive_frames(socket, MAX_FRAMES)
        descriptor = int(frames[-1].get(SRCFD))
    except zmq.Again:
        return
    except zmq.ZMQError as error:
        if error.errno != errno.EINVAL:
            raise
        return  # from a ZeroMQ before version 4, or from no ZeroMQ at all
    limits.note_delivered(descriptor)
    note_lost(dispatcher, limits)
    if len(frames) > MAX_FRAMES:
        limits.shut_down(descriptor)
        return
    # A REQ socket puts an empty frame before its message, and wants one before the reply.
    start = 2 if len(frames) > 2 and len(frames[1]) == 0 else 1
    user = str(frames[-1].get("User-Id")) if has_keys else ""
    peer = Peer([frame.bytes for frame in frames[:start]], descriptor, user)
    reply = dispatcher.answer(peer, [frame.buffer for frame in frames[start:]], time.monotonic())
    if reply is not None:
        send(socket, peer, reply)


def send(socket: zmq.Socket, peer: Peer, frames: list[Any], retries: int = 1) -> None:
    """Send a reply, but none to a client that is gone or has not read the replies before."""
    try:
        send_frames(socket, [*peer.route, *frames], NOBLOCK)
    except zmq.Again:
        # libzmq counts what a client was sent when it handles events, which it may not have done
        # for a millisecond; asked for events it does so at once.
        socket.getsockopt(zmq.EVENTS)
        if retries:
            send(socket, peer, frames, retries - 1)
    except zmq.ZMQError as error:
        if error.errno != zmq.EHOSTUNREACH:
            raise
