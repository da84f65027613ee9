"""Random and mutated messages: no crash, no hang, no growth, and good clients go on."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import mutator
import numpy as np
import pytest
import zmq
from rookery_server.factory import Recipe
from rookery_server.host import Host, Peer
from rookery_server.vector import Copies
from rookery_server.wire import decode
from served import serving

from rookery.envs import make_env


def resident_bytes(pid: int | str = "self") -> int:
    """Memory of a process that is really there."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def attack_host(count: int, seed: int = 0) -> tuple[dict[str, int], int]:
    """Replies by their op or kind of error, and how much the memory grew after a warm-up."""
    draw, recipe = random.Random(seed), Recipe("worlds:Old")
    host = Host(lambda n, render: Copies(lambda: recipe.make(render), n), "old", 6, silence=50.0)
    seqs: dict[bytes, int] = {}
    seen: dict[str, int] = {}
    before = 0
    for number in range(count):
        now = number / 100
        peer = Peer([draw.randbytes(4)], draw.randrange(9), draw.choice(["", "", "key"]))
        replies = [host.answer(peer, mutator.message(draw, seqs), now)]
        replies += [frames for _, frames in host.due(now)]
        if draw.random() < 0.02:
            host.disconnected(draw.randrange(9), now)
        for frames in filter(None, replies):
            header = decode([bytes(frame) for frame in frames]).header
            word = header["kind"] if header["op"] == "error" else header["op"]
            seen[word] = seen.get(word, 0) + 1
            if header["op"] != "error":
                seqs[header["session"]] = header["seq"]
        assert len(host.guests) <= 6
        assert len(host.waiting) <= 64
        if number == count // 4:
            before = resident_bytes()
    grown = resident_bytes() - before
    host.close()
    return seen, grown


KINDS = {"malformed", "size", "version", "room", "session", "order", "action", "render"}
OPS = {"hello", "reset", "step", "close"}


def test_a_few_thousand_messages_and_every_kind_of_answer():
    seen, grown = attack_host(6_000)
    assert set(seen) >= KINDS | OPS
    assert grown < 20e6


@pytest.mark.long
def test_a_hundred_thousand_messages():
    seen, grown = attack_host(100_000, seed=1)
    assert set(seen) >= KINDS | OPS
    assert grown < 20e6


def attack_server(count: int) -> int:
    """A good client beside an attacker on the real socket; how much the server's memory grew."""
    context = zmq.Context()
    try:
        with serving("CartPole-v1", "--envs", "8") as server:
            env = make_env(server.address, num_envs=2)
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


def test_a_good_client_goes_on_beside_an_attacker():
    assert attack_server(1_500) < 30e6


@pytest.mark.long
def test_a_good_client_goes_on_beside_a_stubborn_attacker():
    assert attack_server(30_000) < 30e6
