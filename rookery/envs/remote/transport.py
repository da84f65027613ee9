"""The connection of a client to one server: a ZeroMQ socket that reconnects by itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import zmq
from rookery_server.errors import Unusable
from rookery_server.keys import use_client_keys
from rookery_server.sockets import configure, receive_frames, send_frames
from zmq.utils.monitor import recv_monitor_message

from rookery.errors import BadInput

POLL_MS = 50
"""How long to wait for a reply before the state of the connection is checked."""
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


class ServerConnection:
    """A DEALER socket, encrypted by CURVE if there are keys.

    The last request is sent again after the connection broke and was made again.
    """

    def __init__(self, address: str, keys: str | None):
        self.address = address
        self.keys = keys
        self.connected = self.broke = False
        self.down_since = time.monotonic()
        """When the last connection broke, or the first was attempted."""
        self.request: Sequence[Any] = ()
        # The process's own context is never terminated: an environment that was not closed cannot
        # keep the process from ending.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self.socket = context.socket(zmq.DEALER)
        configure(self.socket)
        self.socket.reconnect_ivl_max = MAX_RETRY_MS
        self.socket.ipv6 = "[" in address
        if keys is not None:
            try:
                use_client_keys(self.socket, keys)
            except Unusable as error:
                self.socket.close()
                raise BadInput(f"env.remote.keys: {error}") from error
        self.events = self.socket.get_monitor_socket(EVENTS)
        self.socket.connect(address)

    def send(self, frames: Sequence[Any]) -> None:
        """Send a request, as soon as there is a connection."""
        self.request = frames
        send_frames(self.socket, frames)

    def receive(self, wait_ms: int) -> list[Any] | None:
        """Return the frames of the next message, or None if none comes within `wait_ms`."""
        self.socket.rcvtimeo = wait_ms
        try:
            return [frame.buffer for frame in receive_frames(self.socket)]
        except zmq.Again:
            return None

    def update_state(self) -> None:
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
            elif not self._was_interrupted(event):
                raise BadInput(f"envs: the server {self.address} {KEY_ERRORS[event]}")

    def close(self) -> None:
        """Close the socket; requests that were not sent are dropped."""
        self.socket.disable_monitor()
        self.events.close(0)
        self.socket.close()

    def _was_interrupted(self, event: int) -> bool:
        """True if a failed handshake does not say that keys are wrong: the server just ended."""
        without_detail = event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        return without_detail and (self.keys is None or self.broke)
