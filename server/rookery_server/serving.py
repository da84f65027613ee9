"""The server: one thread, requests one after the other."""

from __future__ import annotations

import contextlib
import ipaddress
import signal
import socket as sockets
import time
from typing import Any, Callable, Iterator, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

from rookery_server.errors import Unusable
from rookery_server.host import Host, Make, Peer
from rookery_server.keys import lock
from rookery_server.lines import Lines
from rookery_server.sockets import NOBLOCK, prepare, receive_frames, send_frames
from rookery_server.zmtp import POSSIBLE, prepare_plain

LOOPBACK = "127.0.0.1"
HARD_LIMIT = 4
"""A frame of so many times the greatest request is not read at all."""
LOOK_MS = 1_000
SRCFD = int(zmq.SRCFD)
QUEUED = 8
"""Messages of one peer that ZeroMQ holds in either direction."""


class Place(NamedTuple):
    """Where to serve, to whom and how much."""

    port: int = 5555
    bind: str = LOOPBACK
    keys: str | None = None
    envs: int = 16
    silence: float = 3600.0

    def checked(self) -> Place:
        """This, or an error that names the option."""
        for fine, text in (
            (0 <= self.port < 65536, f"--port must be from 0 to 65535, got {self.port}"),
            (self.envs >= 1, f"--envs must be 1 or more, got {self.envs}"),
            (self.silence > 0, f"--silence must be above 0, got {self.silence}"),
            (
                self.keys or is_loopback(self.bind),
                f"--bind {self.bind} lets others in: --keys DIR/server must say whom "
                "(--make-keys DIR makes keys)",
            ),
        ):
            if not fine:
                raise Unusable(text)
        return self


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def run(make: Make, name: str, place: Place, tell: Callable[[str], None]) -> None:
    """Serve until interrupted or terminated."""
    host = Host(make, name, place.checked().envs, place.silence, tell)
    plain = place.keys is None and POSSIBLE
    with (listening if plain else locked)(place, host) as (serve, address), terminable():
        tell(f"serving {name} at {address}, at most {place.envs} environments")
        try:
            serve()
        except KeyboardInterrupt:
            tell("ends")
        finally:
            host.close()


@contextlib.contextmanager
def listening(place: Place, host: Host) -> Iterator[tuple[Callable[[], None], str]]:
    """What serves over plain sockets, and its address."""
    kind = sockets.AF_INET6 if ":" in place.bind else sockets.AF_INET
    listener = sockets.socket(kind, sockets.SOCK_STREAM)
    lines = Lines(host, listener, HARD_LIMIT * host.max_request_bytes)
    try:
        prepare_plain(listener)
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        try:
            listener.bind((place.bind.strip("[]"), place.port))
            listener.listen()
        except OSError as error:
            raise cannot_listen(place, error) from error
        yield lines.serve, f"tcp://{written(place.bind)}:{listener.getsockname()[1]}"
    finally:
        lines.close()


@contextlib.contextmanager
def locked(place: Place, host: Host) -> Iterator[tuple[Callable[[], None], str]]:
    """What serves over a ROUTER of libzmq, with keys where there are some, and its address."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    doorman = None
    try:
        prepare(socket)
        socket.maxmsgsize = HARD_LIMIT * host.max_request_bytes
        socket.sndhwm = socket.rcvhwm = QUEUED
        socket.ipv6 = ":" in place.bind
        if place.keys:
            doorman = lock(socket, context, place.keys)
        address = bound(socket, place)
        yield lambda: serve(host, socket, keys=doorman is not None), address
    finally:
        socket.close()
        if doorman is not None:
            doorman.stop()
        context.term()


def bound(socket: zmq.Socket, place: Place) -> str:
    """Bind, to any free port for 0; the address."""
    try:
        socket.bind(f"tcp://{written(place.bind)}:{place.port or '*'}")
    except zmq.ZMQError as error:
        raise cannot_listen(place, error) from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def written(host: str) -> str:
    """A host as it stands in an address."""
    return f"[{host.strip('[]')}]" if ":" in host else host


def cannot_listen(place: Place, error: Exception) -> Unusable:
    """What to say where a port cannot be had."""
    return Unusable(f"cannot listen on {written(place.bind)}:{place.port}: {error}")


def serve(host: Host, socket: zmq.Socket, keys: bool) -> None:
    """Answer messages until interrupted."""
    monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    try:
        serve_watched(host, socket, monitor, keys)
    finally:
        socket.disable_monitor()
        monitor.close(0)


def serve_watched(host: Host, socket: zmq.Socket, monitor: zmq.Socket, keys: bool) -> None:
    """Answer messages, with an eye on connections."""
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(monitor, zmq.POLLIN)
    looked = 0.0
    while True:
        events = dict(poller.poll(LOOK_MS))
        # First the connections: a new one may have the number of one that is gone.
        if monitor in events:
            note_lost(host, monitor)
        if socket in events:
            answer_one(host, socket, keys)
        if host.waiting or time.monotonic() - looked >= LOOK_MS / 1000:
            looked = time.monotonic()
            for peer, frames in host.due(looked):
                send(socket, peer, frames)


def note_lost(host: Host, monitor: zmq.Socket) -> None:
    """Tell the host of connections that were lost."""
    while monitor.poll(0):
        event = recv_monitor_message(monitor)
        host.disconnected(int(event["value"]), time.monotonic())


def answer_one(host: Host, socket: zmq.Socket, keys: bool) -> None:
    """Answer a message that has come."""
    try:
        frames = receive_frames(socket, NOBLOCK)
    except zmq.Again:
        return
    peer, content = opened_envelope(frames, keys)
    reply = host.answer(peer, content, time.monotonic())
    if reply is not None:
        send(socket, peer, reply)


def opened_envelope(frames: list[zmq.Frame], keys: bool) -> tuple[Peer, list[Any]]:
    """Who sent the frames (with `keys`, whose), and what is in them."""
    after = 2 if len(frames) > 2 and len(frames[1]) == 0 else 1  # a REQ's empty frame
    route = [frame.bytes for frame in frames[:after]]
    last = frames[-1]
    user = str(last.get("User-Id")) if keys else ""
    return Peer(route, int(last.get(SRCFD)), user), [frame.buffer for frame in frames[after:]]


def send(socket: zmq.Socket, peer: Peer, frames: list[Any]) -> None:
    """Send a reply; to a peer that is gone or does not read, nothing."""
    with contextlib.suppress(zmq.Again):
        send_frames(socket, [*peer.route, *frames], NOBLOCK)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends the server as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
