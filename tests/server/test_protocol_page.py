"""The byte examples of docs/protocol.md equal the replies of the server."""

from __future__ import annotations

import re
from pathlib import Path

from rookery_server.dispatcher import Dispatcher
from rookery_server.factory import EnvFactory, SequentialVector
from rookery_server.session import Peer

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
FENCE = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def frames_of(block: str) -> list[bytes]:
    """The frames in a block: a line that has a length after its mark begins one."""
    found: list[tuple[int, bytes]] = []
    for line in block.splitlines():
        length, data = line[2:6].strip(), bytes.fromhex(line[6:])
        if length:
            found.append((int(length), data))
        else:
            found[-1] = (found[-1][0], found[-1][1] + data)
    assert all(length == len(data) for length, data in found)
    return [data for _, data in found]


def test_byte_examples_equal_the_replies_of_the_server():
    factory = EnvFactory("CartPole-v1")
    dispatcher = Dispatcher(
        lambda n, render: SequentialVector(lambda: factory.make(render), n),
        "CartPole-v1",
        max_envs=2,
    )
    blocks = FENCE.findall(PAGE.read_text())
    requests = [frames_of(block) for block in blocks if block.startswith(">")]
    replies = [frames_of(block) for block in blocks if block.startswith("<")]
    assert len(requests) == len(replies) == 5
    for request, reply in zip(requests, replies, strict=True):
        answer = dispatcher.answer(Peer([b"route"]), request, now=0.0)
        assert answer is not None
        assert [bytes(frame) for frame in answer] == reply
