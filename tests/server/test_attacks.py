"""Attacks on the server's socket: a good client goes on, and the server's memory stays bounded."""

from __future__ import annotations

import contextlib
import random
import socket as sockets
import struct
import threading
import time

import numpy as np
import pytest
import zmq
from attacker import (
    COMMAND,
    GREETING,
    LONG,
    MORE,
    await_true,
    connect,
    connect_and_greet,
    frame,
    greeting,
    is_closed,
    message,
    open_descriptors,
    resident_bytes,
    send_until_closed,
)
from rookery_server.connections import MAX_CONNECTIONS
from rookery_server.messages import decode, encode
from served import serving

from rookery.envs import EnvOptions, make_env
from rookery.envs.options import RemoteOptions

FRAME_LIMIT = 4 * (65_536 + 8 * 8)
"""Of a server of 8 CartPoles: four times a header and the actions."""


class Target:
    """A server with a good client, whose steps must succeed during an attack."""

    def __init__(self, server):
        self.address = server.address
        self.pid = server.process.pid
        self.env = make_env(
            server.address, EnvOptions(remote=RemoteOptions(timeout_s=20, away_s=1)), num_envs=2
        )
        self.env.reset(seed=0)
        self.step()
        self.before = self.peak = resident_bytes(self.pid)

    def step(self, count=1):
        """Step the good client's environments, and measure the server's memory."""
        for _ in range(count):
            info = self.env.step(np.zeros(2, int))[4]
            assert "notices" not in info
            assert "lost" not in info
        self.peak = max(getattr(self, "peak", 0), resident_bytes(self.pid))

    def grown(self):
        """Return by how many MB the server's memory has grown at most."""
        return (self.peak - self.before) / 1e6

    def step_during(self, attack):
        """Step the good client's environments while `attack` runs in a thread."""
        failed = []

        def run():
            try:
                attack()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        while thread.is_alive():
            self.step()
            time.sleep(0.001)
        thread.join()
        assert not failed, failed


@pytest.fixture
def target():
    with serving("CartPole-v1", "--envs", "8") as server:
        target = Target(server)
        yield target
        target.step(20)
        target.env.close()
        print(f"memory {target.before / 1e6:.0f} MB, at most {target.peak / 1e6:.0f} MB")


def unfinished(body=b"", count=1):
    """Frames of a message that goes on."""
    return frame(body, MORE) * count


HELLO = encode({"op": "hello", "session": b"s" * 16, "seq": 0, "protocol": 1, "envs": 1})


def garbage(draw):
    """Bytes that are no message, or one with a few bytes changed."""
    stream = bytearray(greeting() + message(HELLO) * 2)
    for _ in range(draw.randrange(1, 8)):
        stream[draw.randrange(len(stream))] = draw.randrange(256)
    return draw.choice(
        [
            bytes(stream),
            draw.randbytes(draw.randrange(1, 5_000)),
            greeting() + draw.randbytes(draw.randrange(1, 5_000)),
            greeting() + message([draw.randbytes(draw.randrange(300)) for _ in range(3)]),
            stream[:77],
            b"GET / HTTP/1.1\r\n\r\n",
        ]
    )


def send_garbage(target, connections):
    draw = random.Random(0)
    for number in range(connections):
        opened = connect_and_greet if number % 2 else connect
        with opened(target.address) as socket, contextlib.suppress(OSError):
            socket.sendall(garbage(draw))


def test_garbage_does_not_disturb_a_client(target):
    target.step_during(lambda: send_garbage(target, 300))
    assert target.grown() < 20


@pytest.mark.long
def test_much_garbage_does_not_disturb_a_client(target):
    target.step_during(lambda: send_garbage(target, 20_000))
    assert target.grown() < 20


@pytest.mark.parametrize(
    ("opened", "sent"),
    [
        (connect, GREETING[:12] + b"CURVE".ljust(20, b"\0") + bytes(32)),
        (connect, greeting(b"SUB")),
        (connect_and_greet, struct.pack(">BQ", LONG, FRAME_LIMIT + 1)),
        (connect_and_greet, struct.pack(">BQ", LONG, 1 << 40)),
        (connect_and_greet, struct.pack(">BQ", LONG, (1 << 64) - 1)),
        (connect_and_greet, struct.pack(">BQ", COMMAND | LONG, 1 << 40)),
    ],
    ids=["curve", "sub", "large", "terabyte", "overflow", "command"],
)
def test_a_client_that_breaks_the_protocol_is_disconnected(target, opened, sent):
    with opened(target.address) as socket:
        socket.sendall(sent)
        assert is_closed(socket)


def test_oversized_messages_are_not_held(target):
    body = frame(bytes(FRAME_LIMIT + 1))

    def attack():
        for _ in range(200):
            with connect_and_greet(target.address) as socket, contextlib.suppress(OSError):
                socket.sendall(body)

    target.step_during(attack)
    assert target.grown() < 20


@pytest.mark.parametrize("size", [0, 40, 1_000, 60_000])
def test_a_message_without_end_is_cut_off(target, size):
    data = unfinished(bytes(size), max(1, 20_000 // (size + 2)))

    def attack():
        for _ in range(5):
            with connect_and_greet(target.address) as socket:
                assert send_until_closed(socket, data, 10**9) < 10**9

    target.step_during(attack)
    assert target.grown() < 100


def test_a_message_without_end_in_small_packets_is_cut_off(target):
    """libzmq keeps a buffer of 8 KiB for each packet."""
    with connect_and_greet(target.address) as socket:
        socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        one = unfinished(bytes(40))
        target.step_during(lambda: send_until_closed(socket, one, 10**7))
        assert is_closed(socket)
    assert target.grown() < 200


def test_messages_without_end_over_many_connections_are_cut_off(target):
    """Each stays below the limit of one connection; together they do not."""
    data = unfinished(count=FRAME_LIMIT // 2 - 1_000)

    def attack():
        with contextlib.ExitStack() as stack:
            connections = [connect_and_greet(target.address) for _ in range(100)]
            opened = [stack.enter_context(socket) for socket in connections]
            for socket in opened:
                with contextlib.suppress(OSError):
                    socket.sendall(data)
            await_true(lambda: open_descriptors(target.pid) < 50)

    target.step_during(attack)
    assert target.grown() < 70


def test_a_message_of_very_many_frames_is_refused(target):
    data = unfinished(count=100_000) + frame(b"")
    with connect_and_greet(target.address) as socket:
        target.step_during(lambda: send_until_closed(socket, data, 10**8))
        assert is_closed(socket)
    assert target.grown() < 100


def half_open(target, stack, count):
    """Connections that send nothing; one beyond the limit may be refused."""
    for _ in range(count):
        with contextlib.suppress(OSError):
            stack.enter_context(connect(target.address))


def test_half_open_connections_are_limited(target):
    with contextlib.ExitStack() as stack:
        target.step_during(lambda: half_open(target, stack, 1_500))
        await_true(lambda: open_descriptors(target.pid) < MAX_CONNECTIONS + 100)
        target.step(50)
    assert target.grown() < 60


@pytest.mark.long
def test_half_open_connections_are_closed_in_time(target):
    with contextlib.ExitStack() as stack:
        half_open(target, stack, 1_500)
        time.sleep(15)
        assert open_descriptors(target.pid) < 100
        other = make_env(target.address, num_envs=1)
        other.reset(seed=0)
        other.close()


def send_slowly(target, connections, bytes_each):
    """Half of them greet byte by byte, the others begin a frame of the largest size that way."""
    start = struct.pack(">BQ", LONG, FRAME_LIMIT)
    with contextlib.ExitStack() as stack:
        half = range(connections // 2)
        silent = [stack.enter_context(connect(target.address)) for _ in half]
        greeted = [stack.enter_context(connect_and_greet(target.address)) for _ in half]
        for socket in greeted:
            socket.sendall(start)
        for byte in (greeting() * 10)[:bytes_each]:
            for socket in silent + greeted:
                with contextlib.suppress(OSError):
                    socket.send(bytes((byte,)))


def test_slow_senders_do_not_disturb_a_client(target):
    target.step_during(lambda: send_slowly(target, 200, 30))
    assert target.grown() < 60


@pytest.mark.long
def test_many_slow_senders_do_not_disturb_a_client(target):
    target.step_during(lambda: send_slowly(target, 450, 400))
    assert target.grown() < 150


def test_a_client_that_does_not_read_is_not_sent_more():
    """A reply has 1 MB; the client asks for two thousand."""
    with serving("worlds:Large", "--envs", "8") as server:
        target = Target(server)

        def attack():
            with connect_and_greet(server.address) as socket:
                socket.sendall(message(HELLO))
                socket.sendall(message(encode({"op": "reset", "session": b"s" * 16, "seq": 1})))
                for seq in range(2, 2_000):
                    step = {"op": "step", "session": b"s" * 16, "seq": seq}
                    socket.sendall(message(encode(step, [np.zeros(1, int)])))
                time.sleep(0.5)

        target.step_during(attack)
        target.step(20)
        target.env.close()
        assert target.grown() < 30


def test_no_reply_is_lost_while_clients_read_them():
    """Each client has one request under way, as the protocol wants it."""
    with serving("CartPole-v1") as server, zmq.Context() as context:
        poller, left = zmq.Poller(), {}
        for _ in range(4):
            socket = context.socket(zmq.DEALER)
            socket.linger = 0
            socket.connect(server.address)
            socket.send(b"no message")
            poller.register(socket, zmq.POLLIN)
            left[socket] = 4_000
        while left:
            events = poller.poll(5_000)
            assert events, "a reply was lost"
            for socket, _ in events:
                assert decode(socket.recv_multipart()).header["op"] == "error"
                left[socket] -= 1
                if left[socket]:
                    socket.send(b"no message")
                else:
                    del left[socket]
                    poller.unregister(socket)
                    socket.close(0)
