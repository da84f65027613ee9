"""ZeroMQ's protocol over plain sockets: libzmq understands it, and nothing that is sent ends it."""

from __future__ import annotations

import contextlib
import random
import socket as sockets
import struct
import threading
import time

import msgpack
import pytest
import zmq
from rookery_server import lines as serving_lines
from rookery_server.lines import MOST_LINES, Lines
from rookery_server.wire import decode, encode
from rookery_server.zmtp import (
    COMMAND,
    GREETING,
    LONG,
    MORE,
    MOST_FRAMES,
    Closed,
    Inbox,
    OtherMechanism,
    Outbox,
    Violation,
    command,
    on_the_wire,
    opening,
    prepare_plain,
)
from test_host import host_of

from rookery.envs.remote.transport import PlainWire
from rookery.errors import BadInput

HELLO = {"op": "hello", "session": b"s" * 16, "seq": 0, "protocol": 1, "envs": 1}


@pytest.fixture
def pair():
    """A plain socket, and another whose end of the talk is `Inbox`'s."""
    ours, theirs = sockets.socketpair()
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def joined(frames):
    return b"".join(bytes(piece) for piece in on_the_wire(frames))


def test_messages_come_as_they_were_sent_however_the_bytes_are_cut(pair):
    ours, theirs = pair
    draw = random.Random(0)
    sizes = [0, 1, 2, 255, 256, 257, 4_095, 4_096, 4_097, 65_535, 65_536, 70_000]
    messages = [
        [draw.randbytes(draw.choice(sizes)) for _ in range(draw.randrange(1, 5))] for _ in range(60)
    ]
    stream = opening(b"DEALER") + b"".join(map(joined, messages))
    inbox, found = Inbox(theirs, 1 << 20), []
    while stream:
        count = draw.choice([1, 2, 9, 64, 1_000, 50_000])
        ours.sendall(stream[:count])
        stream = stream[count:]
        while (frames := inbox.receive()) is not None:
            found.append([bytes(frame) for frame in frames])
            assert not any(memoryview(frame).readonly for frame in frames)
    assert found == messages
    assert inbox.peer == b"DEALER"


def test_a_message_goes_out_whole_however_little_the_system_takes(pair):
    ours, theirs = pair
    theirs.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, 4_096)
    frames = [random.Random(1).randbytes(300_000), b"", b"x" * 700]
    expected, outbox = joined(frames), Outbox(theirs)
    outbox.put(on_the_wire(frames))
    assert outbox.pieces
    got = b""
    while len(got) < len(expected):
        got += ours.recv(10_000)
        outbox.flush()
    assert got == expected
    assert outbox.flush()


READY = opening(b"DEALER")


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"GET / HTTP/1.1\r\n", Violation),
        (GREETING[:10] + b"\x01" + GREETING[11:], Violation),
        (GREETING[:12] + b"CURVE".ljust(20, b"\0") + bytes(32), OtherMechanism),
        (GREETING + joined([b"too soon"]), Violation),
        (GREETING + command(b"PING", b"\0\0"), Violation),
        (GREETING + command(b"READY", b"\x0bSocket-Type\0\0"), Violation),
        (GREETING + command(b"READY", b"\x04Name\0\0\0\x01x"), Violation),
        (READY + command(b"ERROR", b"\x02no"), Violation),
        (READY + b"\x08\x01x", Violation),
        (READY + bytes([COMMAND | MORE, 1]) + b"x", Violation),
        (READY + struct.pack(">BQ", LONG, 1 << 63), Violation),
        (READY + struct.pack(">BQ", LONG, 100_001), Violation),
        (READY + joined([b"x" * 60_000, b"y" * 60_000]), Violation),
        (READY + bytes([COMMAND | LONG]) + struct.pack(">Q", 5_000), Violation),
        (READY + bytes([MORE, 0]) * (MOST_FRAMES + 1), Violation),
    ],
)
def test_what_is_not_the_protocol_is_refused(pair, sent, error):
    ours, theirs = pair
    ours.sendall(sent)
    with pytest.raises(error):
        Inbox(theirs, 100_000).receive()


def test_an_end_is_told(pair):
    ours, theirs = pair
    inbox = Inbox(theirs, 100)
    assert inbox.receive() is None
    ours.sendall(READY + b"\x00\x05ab")
    assert inbox.receive() is None
    ours.close()
    with pytest.raises(Closed):
        inbox.receive()
    with pytest.raises(Closed):
        Outbox(theirs).put([memoryview(b"x")])


# ---------------------------------------------------------------- the client beside libzmq


@pytest.fixture
def router():
    """A server's socket of libzmq, which wants to hear at once that someone is there."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        socket.heartbeat_ivl, socket.heartbeat_timeout = 50, 200
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        yield socket, f"tcp://127.0.0.1:{port}"


@contextlib.contextmanager
def connection(address):
    wire = PlainWire(address)
    try:
        yield wire
    finally:
        wire.close()


def receive(wire, seconds=5.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (frames := wire.receive(20)) is not None:
            return [bytes(frame) for frame in frames]
    return None


def test_the_client_talks_to_libzmq(router):
    socket, address = router
    large = random.Random(2).randbytes(1 << 20)
    with connection(address) as wire:
        for number in range(20):
            wire.send([b"ask", bytes([number]), large])
            end = time.monotonic() + 5
            while not socket.poll(0):
                assert wire.receive(1) is None
                assert time.monotonic() < end
            route, *frames = socket.recv_multipart()
            assert frames == [b"ask", bytes([number]), large]
            socket.send_multipart([route, b"reply", b"", large])
            assert receive(wire) == [b"reply", b"", large]


def test_the_client_answers_pings(router):
    socket, address = router
    with connection(address) as wire:
        wire.send([b"ask"])
        assert receive(wire, 1.0) is None  # five times the router's patience
        assert wire.connected
        assert wire.down_since < time.monotonic() - 0.9
        assert socket.poll(5_000)
        route, frame = socket.recv_multipart()
        socket.send_multipart([route, frame])
        assert receive(wire) == [b"ask"]


def test_a_request_is_said_again_over_a_new_connection():
    with sockets.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with connection(f"tcp://127.0.0.1:{port}") as wire:
            wire.send([b"ask"])
            for _ in range(3):
                came = []
                talk = threading.Thread(target=lambda came=came: came.append(hear(listener)))
                talk.start()
                while talk.is_alive():
                    wire.receive(5)
                assert came == [[b"ask"]]
            assert receive(wire, 0.2) is None


def hear(listener):
    """A message over a connection that is closed then."""
    socket, _ = listener.accept()
    with socket:
        socket.sendall(opening(b"ROUTER"))
        socket.setblocking(False)
        inbox = Inbox(socket, 1_000)
        end = time.monotonic() + 5
        while (frames := inbox.receive()) is None and time.monotonic() < end:
            time.sleep(0.001)
        return frames


def test_a_server_with_keys_is_told_from_one_that_is_away():
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(sockets.create_server(("127.0.0.1", 0)))
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        wire = stack.enter_context(connection(address))
        socket = stack.enter_context(listener.accept()[0])
        socket.sendall(GREETING[:12] + b"CURVE".ljust(20, b"\0") + bytes(32))
        with pytest.raises(BadInput, match="keys where this client has none"):
            receive(wire)


# ---------------------------------------------------------------- the server


@pytest.fixture
def idle_lines():
    """A server that does nothing by itself."""
    listener = sockets.create_server(("127.0.0.1", 0))
    prepare_plain(listener)
    lines = Lines(host_of(most=4), listener, 1 << 20)
    yield lines
    lines.host.close()
    lines.close()


@pytest.fixture
def lines(idle_lines):
    """A server in a thread."""
    lines = idle_lines
    stop = threading.Event()

    def serve():
        while not stop.is_set():
            lines.turn(0.0 if lines.more else 0.01)
            lines.look(time.monotonic())

    thread = threading.Thread(target=serve)
    thread.start()
    yield lines
    stop.set()
    thread.join()


def dial(lines):
    socket = sockets.create_connection(lines.listener.getsockname())
    socket.settimeout(5)
    return socket


def reply(socket):
    """The header of the next message."""
    socket.setblocking(False)
    inbox = Inbox(socket, 1 << 24)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if (frames := inbox.receive()) is not None:
            return decode([bytes(frame) for frame in frames]).header
        time.sleep(0.001)
    raise AssertionError("no reply")


def is_closed(socket):
    socket.settimeout(5)
    try:
        while socket.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def greets(lines):
    """Whether the server still begins a session."""
    with dial(lines) as socket:
        socket.sendall(READY + joined(encode({**HELLO, "session": random.randbytes(16)})))
        return reply(socket)["op"] == "hello"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        GREETING[:12] + b"CURVE".ljust(20, b"\0") + bytes(32),
        opening(b"SUB"),
        READY + struct.pack(">BQ", LONG, 1 << 40),
        READY + b"\xff\xff\xff",
    ],
)
def test_who_breaks_the_protocol_is_shown_the_door_and_nobody_else(lines, sent):
    with dial(lines) as bystander, dial(lines) as socket:
        bystander.sendall(READY)
        socket.sendall(sent)
        assert is_closed(socket)
        bystander.sendall(joined(encode(HELLO)))
        assert reply(bystander)["op"] == "hello"


def test_any_bytes_at_all(lines):
    draw = random.Random(3)
    good = READY + joined(encode(HELLO))
    for _ in range(150):
        stream = bytearray(good * 2)
        for _ in range(draw.randrange(1, 8)):
            stream[draw.randrange(len(stream))] = draw.randrange(256)
        with dial(lines) as socket, contextlib.suppress(OSError):
            socket.sendall(draw.choice([bytes(stream), draw.randbytes(200), stream[:77]]))
    lines.host.silence = 0.0  # whoever got a session that way gives it back
    time.sleep(0.2)
    lines.host.silence = 3600.0
    assert greets(lines)


def test_a_peer_that_does_not_read_is_not_read_from_either(idle_lines):
    """Its requests stay where they are, and others are served."""
    lines = idle_lines
    lines.listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, 8_192)
    asked = joined([msgpack.packb({"op": "jump", "session": b"x" * 16, "seq": 0, "arrays": []})])
    with dial(lines) as socket, dial(lines) as other:
        socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 8_192)
        socket.sendall(READY)
        socket.setblocking(False)
        turns = full = 0
        while full < 500:
            turns += 1
            assert turns < 100_000
            with contextlib.suppress(BlockingIOError):
                socket.send(asked)
            lines.turn(0)
            waiting = [line for line in lines.lines.values() if line.outbox.pieces]
            full += bool(waiting)
        (line,) = waiting
        assert sum(piece.nbytes for piece in line.outbox.pieces) < 10_000
        other.sendall(READY + joined(encode(HELLO)))
        for _ in range(100):
            lines.turn(0.01)
        assert reply(other)["op"] == "hello"


def test_several_messages_at_once_are_answered_in_turn(lines):
    messages = [{**HELLO, "session": bytes([n]) * 16} for n in range(3)]
    with dial(lines) as socket:
        socket.sendall(READY + b"".join(joined(encode(message)) for message in messages))
        socket.setblocking(False)
        inbox, came = Inbox(socket, 1 << 20), []
        end = time.monotonic() + 5
        while len(came) < 3 and time.monotonic() < end:
            if (frames := inbox.receive()) is not None:
                came.append(decode([bytes(frame) for frame in frames]).header["session"])
        assert came == [message["session"] for message in messages]


def test_who_does_not_greet_is_shown_the_door(lines, monkeypatch):
    monkeypatch.setattr(serving_lines, "HANDSHAKE_S", 0.1)
    with dial(lines) as silent, dial(lines) as greeted:
        greeted.sendall(READY)
        assert is_closed(silent)
        greeted.sendall(joined(encode(HELLO)))
        assert reply(greeted)["op"] == "hello"


def test_there_is_a_last_connection(lines):
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_LINES):
            stack.enter_context(dial(lines)).sendall(READY)
        end = time.monotonic() + 10
        while len(lines.lines) < MOST_LINES and time.monotonic() < end:
            time.sleep(0.01)
        assert is_closed(stack.enter_context(dial(lines)))
    end = time.monotonic() + 10
    while lines.lines and time.monotonic() < end:
        time.sleep(0.01)
    assert greets(lines)
