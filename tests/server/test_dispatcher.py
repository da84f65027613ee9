"""The protocol without sockets: order of requests, room, ends of sessions."""

from __future__ import annotations

import numpy as np
import pytest
from rookery_server.dispatcher import MAX_WAITING, Dispatcher
from rookery_server.factory import EnvFactory, SequentialVector
from rookery_server.messages import MAX_HEADER_BYTES, decode, encode
from rookery_server.session import RECONNECT_GRACE_S, Peer


class Player:
    """A client without a socket."""

    def __init__(self, dispatcher: Dispatcher, number: int = 1, user: str = ""):
        self.dispatcher = dispatcher
        self.peer = Peer([bytes([number])], number, user)
        self.token = bytes([number]) * 16
        self.seq = -1

    def ask(self, op, header=None, arrays=(), now=0.0, seq=None):
        """Header and arrays of the reply; a reply that is no error takes the number."""
        asked = self.seq + 1 if seq is None else seq
        content = {"op": op, "session": self.token, "seq": asked, **(header or {})}
        frames = self.dispatcher.answer(self.peer, encode(content, arrays), now)
        if frames is None:
            return None
        reply, arrays = decode([bytes(frame) for frame in frames])
        if reply["op"] != "error" and seq is None:
            self.seq = asked
        return reply, arrays

    def hello(self, envs=1, now=0.0, **more):
        return self.ask("hello", {"protocol": 1, "envs": envs, **more}, now=now)

    def step(self, *actions, **more):
        return self.ask("step", arrays=[np.array(actions)], **more)


def dispatcher_of(name="worlds:Old", max_envs=4, kwargs=None, **more) -> Dispatcher:
    factory = EnvFactory(name, kwargs=kwargs)
    return Dispatcher(
        lambda n, render: SequentialVector(lambda: factory.make(render), n), name, max_envs, **more
    )


def kind(reply):
    header, arrays = reply
    assert header["op"] == "error"
    assert not arrays
    return header["kind"]


def test_a_repeated_request_gets_the_same_reply_and_no_second_step():
    dispatcher = dispatcher_of()
    player, mirror = Player(dispatcher), Player(dispatcher, 2)
    for each in (player, mirror):
        each.hello()
        each.ask("reset", {"seed": 5})
    first = player.step(1)
    for _ in range(3):
        again = player.step(2, seq=2)  # whatever it says now
        assert again[0] == first[0]
        assert [a.tobytes() for a in again[1]] == [a.tobytes() for a in first[1]]
    mirror.step(1)
    second, other = player.step(2), mirror.step(2)
    assert [a.tobytes() for a in second[1]] == [a.tobytes() for a in other[1]]


def test_a_repeated_hello_makes_no_second_session():
    dispatcher = dispatcher_of(max_envs=1)
    player = Player(dispatcher)
    first = player.hello()
    again = player.ask("hello", {"protocol": 1, "envs": 1}, seq=0)
    assert again[0] == first[0]
    assert dispatcher.free_envs == 0


def test_requests_out_of_order_are_refused_and_keep_their_number_free():
    dispatcher = dispatcher_of()
    player = Player(dispatcher)
    assert kind(player.ask("reset")) == "session"
    assert kind(player.hello(protocol=2)) == "version"
    player.hello()
    assert kind(player.step(0)) == "order"  # before the first reset
    assert kind(player.ask("reset", seq=7)) == "order"
    assert kind(player.ask("jump")) == "malformed"
    assert kind(player.ask("reset", {"seed": -1})) == "malformed"
    assert player.ask("reset")[0] == {
        "op": "reset",
        "session": player.token,
        "seq": 1,
        "arrays": [["<f4", [1, 2]]],
    }
    assert kind(player.hello()) == "order"
    assert player.step(0)[0]["seq"] == 2


@pytest.mark.parametrize(
    "actions",
    [
        [],
        [np.array([0]), np.array([0])],
        [np.array([0, 0])],
        [np.array([[0]])],
        [np.array([0], np.int32)],
        [np.array([0.0])],
        [np.array([3])],
        [np.array([-1])],
    ],
)
def test_actions_outside_their_space_are_refused(actions):
    player = Player(dispatcher_of())
    player.hello()
    player.ask("reset")
    assert kind(player.ask("step", arrays=actions)) == "action"
    assert player.step(2)[0]["op"] == "step"


def test_actions_of_a_multidiscrete_space_respect_its_start():
    player = Player(dispatcher_of("worlds:Mixed"))
    player.hello(envs=2)
    player.ask("reset")
    assert kind(player.ask("step", arrays=[np.array([[0, 0], [1, 0]])])) == "action"
    assert kind(player.ask("step", arrays=[np.array([[4, 0], [1, 0]])])) == "action"
    _, arrays = player.ask("step", arrays=[np.array([[3, 1], [1, 0]])])
    assert arrays[0].tolist() == [1.0, 1 / 3]


def test_environments_over_all_sessions_are_limited():
    dispatcher = dispatcher_of(max_envs=4)
    one, two, three = (Player(dispatcher, number) for number in (1, 2, 3))
    assert one.hello(envs=3)[0]["envs"] == 3
    refusal = two.hello(envs=2)
    assert kind(refusal) == "room"
    assert refusal[0]["text"] == "1 of 4 environments are free"
    assert kind(three.hello(envs=5, wait=60)) == "room"  # there will never be
    assert kind(three.hello(envs=0)) == "malformed"
    assert two.hello(envs=1)[0]["op"] == "hello"
    one.ask("close")
    assert kind(one.ask("reset")) == "session"
    assert three.hello(envs=3)[0]["op"] == "hello"


def test_waiting_clients_are_admitted_in_order():
    dispatcher = dispatcher_of(max_envs=4)
    players = [Player(dispatcher, number) for number in range(5)]
    players[0].hello(envs=3)
    assert players[1].hello(envs=3, wait=100) is None
    assert players[2].hello(envs=1, wait=100) is None  # would fit, but came later
    assert kind(players[3].hello(envs=1)) == "room"
    assert dispatcher.expire_and_admit(1.0) == []
    players[0].ask("close")
    replies = dispatcher.expire_and_admit(2.0)
    assert [peer.route for peer, _ in replies] == [players[1].peer.route, players[2].peer.route]
    assert [decode([bytes(f) for f in frames]).header["op"] for _, frames in replies] == [
        "hello",
        "hello",
    ]
    assert dispatcher.free_envs == 0


def test_waiting_ends_after_its_time_or_with_its_connection():
    dispatcher = dispatcher_of(max_envs=1)
    first, second, third = (Player(dispatcher, number) for number in (1, 2, 3))
    first.hello()
    second.hello(wait=10)
    third.hello(wait=50)
    dispatcher.disconnected(third.peer.connection, 5.0)
    assert dispatcher.expire_and_admit(9.0) == []
    ((peer, frames),) = dispatcher.expire_and_admit(11.0)
    assert peer == second.peer
    assert decode([bytes(f) for f in frames]).header["kind"] == "room"
    assert not dispatcher.waiting


def test_waiting_clients_are_limited():
    dispatcher = dispatcher_of(max_envs=1)
    Player(dispatcher, 200).hello()
    waiting = [Player(dispatcher, number).hello(wait=9) for number in range(MAX_WAITING)]
    assert waiting == [None] * MAX_WAITING
    assert kind(Player(dispatcher, 100).hello(wait=9)) == "room"


def test_a_silent_session_ends():
    dispatcher = dispatcher_of(max_envs=1, silence=100.0)
    player = Player(dispatcher)
    assert player.hello()[0]["silence"] == 100.0
    player.ask("reset", now=90.0)
    dispatcher.expire_and_admit(150.0)
    assert dispatcher.free_envs == 0
    dispatcher.expire_and_admit(191.0)
    assert dispatcher.free_envs == 1
    assert kind(player.step(0, now=192.0)) == "session"


def test_a_session_survives_a_reconnection_within_the_grace_period():
    dispatcher = dispatcher_of(max_envs=2)
    gone, back = Player(dispatcher, 1), Player(dispatcher, 2)
    for player in (gone, back):
        player.hello()
        player.ask("reset")
        dispatcher.disconnected(player.peer.connection, 0.0)
    back.peer = Peer([b"new"], 77)
    assert back.step(0, now=RECONNECT_GRACE_S / 2)[0]["op"] == "step"
    dispatcher.expire_and_admit(RECONNECT_GRACE_S + 1)
    assert dispatcher.free_envs == 1
    assert back.step(0, now=RECONNECT_GRACE_S + 2)[0]["op"] == "step"
    assert kind(gone.step(0, now=RECONNECT_GRACE_S + 2)) == "session"


def test_a_replaced_session_frees_its_environments():
    dispatcher = dispatcher_of(max_envs=1)
    old, new = Player(dispatcher, 1), Player(dispatcher, 2)
    old.hello()
    assert kind(new.hello()) == "room"
    assert new.hello(replaces=old.token)[0]["op"] == "hello"
    assert kind(old.ask("reset")) == "session"


def test_a_client_cannot_use_the_session_of_another_key():
    dispatcher = dispatcher_of(max_envs=2)
    owner, thief = Player(dispatcher, 1, "key one"), Player(dispatcher, 2, "key two")
    owner.hello()
    thief.token, thief.seq = owner.token, owner.seq
    assert kind(thief.ask("close")) == "session"
    thief.token, thief.seq = b"t" * 16, -1
    assert thief.hello(replaces=owner.token)[0]["op"] == "hello"
    assert owner.ask("reset")[0]["op"] == "reset"


@pytest.mark.parametrize(("action", "text"), [(1, "the wheel came off"), (2, "SystemExit")])
def test_an_environment_that_fails_ends_its_session_and_no_other(action, text):
    dispatcher = dispatcher_of("worlds:Failing")
    unlucky, other = Player(dispatcher, 1), Player(dispatcher, 2)
    for player in (unlucky, other):
        player.hello()
        player.ask("reset")
    reply = unlucky.step(action)
    assert kind(reply) == "environment"
    assert text in reply[0]["text"]
    assert kind(unlucky.step(0)) == "session"
    assert other.step(0)[0]["op"] == "step"
    assert dispatcher.free_envs == 3


def test_an_environment_that_cannot_be_made_is_reported_as_an_error():
    factory, made = EnvFactory("worlds:Old"), []

    def make(number, render):
        made.append(number)
        if len(made) > 1:
            raise OSError("no display")
        return SequentialVector(lambda: factory.make(render), number)

    dispatcher = Dispatcher(make, "old", 4)
    reply = Player(dispatcher).hello()
    assert kind(reply) == "environment"
    assert "no display" in reply[0]["text"]
    assert dispatcher.free_envs == 4


def test_render_needs_to_be_requested_in_hello():
    dispatcher = dispatcher_of(max_envs=4)
    blind, seeing = Player(dispatcher, 1), Player(dispatcher, 2)
    blind.hello()
    blind.ask("reset")
    assert kind(blind.ask("render", {"lane": 0})) == "render"
    seeing.hello(envs=2, render=True)
    assert kind(seeing.ask("render", {"lane": 0})) == "render"  # before the first reset
    seeing.ask("reset")
    seeing.step(0, 0)
    _, (picture,) = seeing.ask("render", {"lane": 1})
    assert picture.shape == (2, 3, 3)
    assert (picture == 1).all()
    assert kind(seeing.ask("render", {"lane": 2})) == "malformed"


def test_a_failed_render_does_not_end_the_session():
    player = Player(dispatcher_of("worlds:Failing"))
    player.hello(render=True)
    player.ask("reset")
    assert kind(player.ask("render", {"lane": 0})) == "render"
    assert player.step(0)[0]["op"] == "step"


def test_requested_numbers_of_the_infos_are_sent():
    player = Player(dispatcher_of("worlds:Mixed"))
    player.hello(envs=2, infos=["lives", "note", "nothing"])
    _, arrays = player.ask("reset")
    lives, note, nothing = arrays[-3:]
    assert lives.tolist() == [3.0, 3.0]
    assert np.isnan(note).all()
    assert np.isnan(nothing).all()
    _, arrays = player.ask("step", arrays=[np.array([[1, 0], [1, 0]])])
    assert arrays[-3].tolist() == [0.0, 0.0]  # six steps are left of seven, modulo three


@pytest.mark.parametrize(
    "wrong",
    [
        {"envs": 1.0},
        {"envs": True},
        {"envs": "1"},
        {"wait": -1},
        {"wait": float("nan")},
        {"wait": 1e9},
        {"render": 1},
        {"infos": "lives"},
        {"infos": ["x"] * 17},
        {"infos": [3]},
        {"infos": ["x" * 65]},
        {"replaces": b"short"},
    ],
)
def test_a_hello_with_an_invalid_value_is_refused(wrong):
    dispatcher = dispatcher_of()
    assert kind(Player(dispatcher).hello(**wrong)) == "malformed"
    assert dispatcher.free_envs == 4


def test_an_error_repeats_session_and_seq_if_they_are_valid():
    dispatcher = dispatcher_of()
    frames = dispatcher.answer(Peer([b""]), [b"\xff"], 0.0)
    header = decode([bytes(f) for f in frames]).header
    assert (header["session"], header["seq"]) == (None, None)
    frames = dispatcher.answer(
        Peer([b""]), encode({"op": "reset", "session": "abc", "seq": 3}), 0.0
    )
    header = decode([bytes(f) for f in frames]).header
    assert (header["session"], header["seq"]) == (None, 3)


def test_a_request_that_is_too_large_is_refused():
    dispatcher = dispatcher_of()
    player = Player(dispatcher)
    player.hello()
    player.ask("reset")
    reply = player.ask("step", arrays=[np.zeros(MAX_HEADER_BYTES)])
    assert kind(reply) == "size"
    assert player.step(0)[0]["op"] == "step"
