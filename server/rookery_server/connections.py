"""Limits on the clients' connections that libzmq does not have.

libzmq accepts connections as long as there are file descriptors, and holds a message that has begun
until its last frame has come, however many frames there are. Both are bounded here by looking at
the TCP connections from outside: libzmq reports their file descriptors, the system counts their
bytes, and a connection that is shut down is closed and forgotten by libzmq.
"""

from __future__ import annotations

import contextlib
import socket as sockets
import struct
import threading
from collections import deque
from typing import Any

try:
    import fcntl
    import termios
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

import zmq
from zmq.utils.monitor import recv_monitor_message

# As plain integers, for the same reason as in sockets.py; `poll` takes longer still.
EVENTS, POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
MAX_CONNECTIONS = 512
CHECK_S = 0.02
"""Seconds between checks. A fast sender on the same machine sends some 10 MB in that time."""
DISCARDED_BYTES = 1 << 20
WANTED_DESCRIPTORS = 4_096
BYTES_RECEIVED_OFFSET = 128
"""Of `tcpi_bytes_received` in Linux's `struct tcp_info` (since 4.1)."""


class Connection:
    """One TCP connection that libzmq accepted; it owns the file descriptor, this only looks."""

    def __init__(self, descriptor: int):
        self._socket = sockets.socket(fileno=descriptor)
        self._delivered = 0
        self.is_cut = False
        """True if it was shut down here, and libzmq has not reported yet that it is lost."""
        try:
            self._peer = self._socket.getpeername()
        except OSError:
            self.forget()
            raise

    def held_bytes(self) -> int:
        """Return how many bytes libzmq has read since the last whole message was delivered."""
        return self._bytes_read() - self._delivered

    def note_delivered(self) -> None:
        """Count everything that libzmq has read so far as delivered."""
        self._delivered = self._bytes_read()

    def shut_down(self) -> None:
        """Cut the connection, unless its descriptor stands for something else by now."""
        self.is_cut = True
        with contextlib.suppress(OSError):
            if self._socket.getpeername() == self._peer:
                at_once = struct.pack("ii", 1, 0)  # drop what is still to be sent or read
                self._socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, at_once)
                self._socket.shutdown(sockets.SHUT_RDWR)
                # libzmq would read all that waits in the system's buffer before it sees the end.
                self._socket.setblocking(False)
                while self._socket.recv(DISCARDED_BYTES):
                    pass

    def forget(self) -> None:
        """Let go of the descriptor, which is libzmq's to close."""
        self._socket.detach()

    def _bytes_read(self) -> int:
        """Bytes that came minus those that still wait in the system's buffer; 0 if unknown."""
        if fcntl is None:
            return 0
        try:
            info = self._socket.getsockopt(
                sockets.IPPROTO_TCP, sockets.TCP_INFO, BYTES_RECEIVED_OFFSET + 8
            )
            unread = fcntl.ioctl(self._socket.fileno(), termios.FIONREAD, bytes(4))
        except OSError:  # closed, and libzmq's report of that is under way
            return self._delivered
        if len(info) < BYTES_RECEIVED_OFFSET + 8:
            return 0
        (received,) = struct.unpack_from("=Q", info, BYTES_RECEIVED_OFFSET)
        return received - struct.unpack("=i", unread)[0]


class ConnectionLimits:
    """A thread that watches the connections of a bound socket and cuts those beyond the limits.

    It is a thread because the one that serves may be busy in an environment for minutes.
    """

    def __init__(self, socket: zmq.Socket, max_held_bytes: int):
        self.max_held_bytes = max_held_bytes
        self.connections: dict[int, Connection] = {}
        self._lost: deque[int] = deque()
        self._socket = socket
        self._events = socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def note_delivered(self, descriptor: int) -> None:
        """Note that a message of a connection was delivered.

        All that libzmq reported before that message is taken in first: a new connection may have
        the descriptor of one that was lost.
        """
        with self._lock:
            self._take_events()
            if descriptor in self.connections:
                self.connections[descriptor].note_delivered()

    def lost(self) -> list[int]:
        """Return the descriptors of connections that were lost since the last call."""
        return [self._lost.popleft() for _ in range(len(self._lost))]

    def shut_down(self, descriptor: int) -> None:
        with self._lock:
            if descriptor in self.connections:
                self.connections[descriptor].shut_down()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self._socket.disable_monitor()
        self._events.close(0)
        for connection in self.connections.values():
            connection.forget()

    def _watch(self) -> None:
        while not self._ends.wait(CHECK_S):
            with self._lock:
                self._take_events()
                self._cut_greedy()

    def _take_events(self) -> None:
        while int(self._events.getsockopt(EVENTS)) & POLLIN:
            message: Any = recv_monitor_message(self._events)
            descriptor = int(message["value"])
            if message["event"] == zmq.EVENT_ACCEPTED:
                self._accept(descriptor)
            else:
                self._forget(descriptor)

    def _accept(self, descriptor: int) -> None:
        self._forget(descriptor)
        try:
            connection = Connection(descriptor)
        except OSError:  # closed already
            return
        if len(self.connections) < MAX_CONNECTIONS:
            self.connections[descriptor] = connection
        else:
            connection.shut_down()
            connection.forget()

    def _forget(self, descriptor: int) -> None:
        connection = self.connections.pop(descriptor, None)
        if connection is not None:
            connection.forget()
            self._lost.append(descriptor)

    def _cut_greedy(self) -> None:
        """Cut connections, those with the most first, until libzmq holds no more than the limit for
        all of them together. Valid requests stay far below it: it is a multiple of a request for
        all of the server's environments."""
        watched = [each for each in self.connections.values() if not each.is_cut]
        held = [(max(0, each.held_bytes()), each) for each in watched]
        total = sum(count for count, _ in held)
        for count, connection in sorted(held, key=lambda pair: -pair[0]):
            if total <= self.max_held_bytes:
                return
            connection.shut_down()
            total -= count


def raise_descriptor_limit() -> None:
    """Allow this process enough file descriptors for all connections, if the system permits it."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
