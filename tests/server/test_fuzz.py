"""Random and mutated messages: no crash, no hang, bounded memory, and good clients go on."""

from __future__ import annotations

import random
from typing import Any

import mutator
import numpy as np
import pytest
import zmq
from attacker import resident_bytes
from rookery_server.dispatcher import Dispatcher
from rookery_server.factory import EnvFactory, SequentialVector
from rookery_server.messages import decode
from rookery_server.session import Peer
from served import serving

from rookery.envs import EnvOptions, make_env
from rookery.envs.options import RemoteOptions


def attack_dispatcher(count: int, seed: int = 0) -> tuple[dict[str, int], int]:
    """Replies by their op or kind of error, and how much the memory grew after a warm-up."""
    draw, factory = random.Random(seed), EnvFactory("worlds:Old")
    dispatcher = Dispatcher(
        lambda n, render: SequentialVector(lambda: factory.make(render), n), "old", 6, silence=50.0
    )
    seqs: dict[bytes, int] = {}
    seen: dict[str, int] = {}
    before = 0
    for number in range(count):
        now = number / 100
        peer = Peer([draw.randbytes(4)], draw.randrange(9), draw.choice(["", "", "key"]))
        replies = [dispatcher.answer(peer, mutator.message(draw, seqs), now)]
        replies += [frames for _, frames in dispatcher.expire_and_admit(now)]
        if draw.random() < 0.02:
            dispatcher.disconnected(draw.randrange(9), now)
        for frames in filter(None, replies):
            header = decode([bytes(frame) for frame in frames]).header
            word = header["kind"] if header["op"] == "error" else header["op"]
            seen[word] = seen.get(word, 0) + 1
            if header["op"] != "error":
                seqs[header["session"]] = header["seq"]
        assert len(dispatcher.sessions) <= 6
        assert len(dispatcher.waiting) <= 64
        if number == count // 4:
            before = resident_bytes()
    grown = resident_bytes() - before
    dispatcher.close()
    return seen, grown


KINDS = {"malformed", "size", "version", "room", "session", "order", "action", "render"}
OPS = {"hello", "reset", "step", "close"}


def test_thousands_of_mutated_messages_get_every_kind_of_reply():
    seen, grown = attack_dispatcher(6_000)
    assert set(seen) >= KINDS | OPS
    assert grown < 20e6


@pytest.mark.long
def test_a_hundred_thousand_mutated_messages():
    seen, grown = attack_dispatcher(100_000, seed=1)
    assert set(seen) >= KINDS | OPS
    assert grown < 20e6


def attack_server(count: int) -> int:
    """A good client beside an attacker on the real socket; how much the server's memory grew."""
    context = zmq.Context()
    try:
        with serving("CartPole-v1", "--envs", "8") as server:
            env = make_env(server.address, EnvOptions(remote=RemoteOptions(away_s=1)), num_envs=2)
            env.reset(seed=0)
            attack(context, server.address, count // 4, env, seed=2)
            before = resident_bytes(server.process.pid)
            attack(context, server.address, count, env, seed=3)
            assert "lost" not in env.step(np.zeros(2, int))[4]
            assert server.process.poll() is None
            grown = resident_bytes(server.process.pid) - before
            env.close()
            return grown
    finally:
        context.destroy(0)


def attack(context: zmq.Context, address: str, count: int, env: Any, seed: int) -> None:
    """Messages over connections that are dropped now and then; replies are read, and are sound."""
    draw, seqs = random.Random(seed), {}
    socket = connected(context, address)
    for number in range(count):
        socket.send_multipart(mutator.message(draw, seqs) or [b""])
        if number % 20 == 0:
            env.step(np.zeros(2, int))
        if draw.random() < 0.01:
            socket.close(0)
            socket = connected(context, address)
        while socket.poll(0):
            frames = socket.recv_multipart()
            header = decode(frames if frames[0] else frames[1:]).header  # as to a REQ
            if header["op"] != "error":
                seqs[header["session"]] = header["seq"]
    socket.close(0)


def connected(context: zmq.Context, address: str) -> zmq.Socket:
    socket = context.socket(zmq.DEALER)
    socket.connect(address)
    return socket


def test_a_good_client_steps_during_an_attack():
    assert attack_server(1_500) < 30e6


@pytest.mark.long
def test_a_good_client_steps_during_a_long_attack():
    assert attack_server(30_000) < 30e6
