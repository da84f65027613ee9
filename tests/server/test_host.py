"""The protocol without sockets: order, room, ends."""

from __future__ import annotations

import numpy as np
import pytest
from rookery_server.factory import Recipe
from rookery_server.host import GONE_S, LEAST_REQUEST_BYTES, MAX_WAITING, Host, Peer
from rookery_server.vector import Copies
from rookery_server.wire import decode, encode


class Player:
    """A client without a socket."""

    def __init__(self, host: Host, number: int = 1, user: str = ""):
        self.host = host
        self.peer = Peer([bytes([number])], number, user)
        self.token = bytes([number]) * 16
        self.seq = -1

    def ask(self, op, header=None, arrays=(), now=0.0, seq=None):
        """Header and arrays of the reply; a reply that is no error takes the number."""
        asked = self.seq + 1 if seq is None else seq
        content = {"op": op, "session": self.token, "seq": asked, **(header or {})}
        frames = self.host.answer(self.peer, encode(content, arrays), now)
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


def host_of(name="worlds:Old", most=4, kwargs=None, **more) -> Host:
    recipe = Recipe(name, kwargs=kwargs)
    return Host(lambda n, render: Copies(lambda: recipe.make(render), n), name, most, **more)


def kind(reply):
    header, arrays = reply
    assert header["op"] == "error"
    assert not arrays
    return header["kind"]


def test_a_request_that_is_repeated_is_answered_again_and_not_carried_out_again():
    host = host_of()
    player, mirror = Player(host), Player(host, 2)
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


def test_a_hello_that_is_repeated_makes_no_second_session():
    host = host_of(most=1)
    player = Player(host)
    first = player.hello()
    again = player.ask("hello", {"protocol": 1, "envs": 1}, seq=0)
    assert again[0] == first[0]
    assert host.room == 0


def test_requests_out_of_order_are_refused_and_count_for_nothing():
    host = host_of()
    player = Player(host)
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
    player = Player(host_of())
    player.hello()
    player.ask("reset")
    assert kind(player.ask("step", arrays=actions)) == "action"
    assert player.step(2)[0]["op"] == "step"


def test_actions_of_a_multidiscrete_space_start_where_it_says():
    player = Player(host_of("worlds:Mixed"))
    player.hello(envs=2)
    player.ask("reset")
    assert kind(player.ask("step", arrays=[np.array([[0, 0], [1, 0]])])) == "action"
    assert kind(player.ask("step", arrays=[np.array([[4, 0], [1, 0]])])) == "action"
    _, arrays = player.ask("step", arrays=[np.array([[3, 1], [1, 0]])])
    assert arrays[0].tolist() == [1.0, 1 / 3]


def test_there_is_room_for_so_many_and_no_more():
    host = host_of(most=4)
    one, two, three = (Player(host, number) for number in (1, 2, 3))
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


def test_those_who_wait_are_admitted_in_their_order_and_not_overtaken():
    host = host_of(most=4)
    players = [Player(host, number) for number in range(5)]
    players[0].hello(envs=3)
    assert players[1].hello(envs=3, wait=100) is None
    assert players[2].hello(envs=1, wait=100) is None  # would fit, but came later
    assert kind(players[3].hello(envs=1)) == "room"
    assert host.due(1.0) == []
    players[0].ask("close")
    replies = host.due(2.0)
    assert [peer.route for peer, _ in replies] == [players[1].peer.route, players[2].peer.route]
    assert [decode([bytes(f) for f in frames]).header["op"] for _, frames in replies] == [
        "hello",
        "hello",
    ]
    assert host.room == 0


def test_waiting_ends_in_time_and_with_the_connection():
    host = host_of(most=1)
    first, second, third = (Player(host, number) for number in (1, 2, 3))
    first.hello()
    second.hello(wait=10)
    third.hello(wait=50)
    host.disconnected(third.peer.connection, 5.0)
    assert host.due(9.0) == []
    ((peer, frames),) = host.due(11.0)
    assert peer == second.peer
    assert decode([bytes(f) for f in frames]).header["kind"] == "room"
    assert not host.waiting


def test_few_may_wait():
    host = host_of(most=1)
    Player(host, 200).hello()
    waiting = [Player(host, number).hello(wait=9) for number in range(MAX_WAITING)]
    assert waiting == [None] * MAX_WAITING
    assert kind(Player(host, 100).hello(wait=9)) == "room"


def test_a_silent_session_ends():
    host = host_of(most=1, silence=100.0)
    player = Player(host)
    assert player.hello()[0]["silence"] == 100.0
    player.ask("reset", now=90.0)
    host.due(150.0)
    assert host.room == 0
    host.due(191.0)
    assert host.room == 1
    assert kind(player.step(0, now=192.0)) == "session"


def test_a_session_outlives_its_connection_for_a_moment():
    host = host_of(most=2)
    gone, back = Player(host, 1), Player(host, 2)
    for player in (gone, back):
        player.hello()
        player.ask("reset")
        host.disconnected(player.peer.connection, 0.0)
    back.peer = Peer([b"new"], 77)
    assert back.step(0, now=GONE_S / 2)[0]["op"] == "step"
    host.due(GONE_S + 1)
    assert host.room == 1
    assert back.step(0, now=GONE_S + 2)[0]["op"] == "step"
    assert kind(gone.step(0, now=GONE_S + 2)) == "session"


def test_a_session_that_is_replaced_makes_room():
    host = host_of(most=1)
    old, new = Player(host, 1), Player(host, 2)
    old.hello()
    assert kind(new.hello()) == "room"
    assert new.hello(replaces=old.token)[0]["op"] == "hello"
    assert kind(old.ask("reset")) == "session"


def test_a_session_is_its_users_own():
    host = host_of(most=2)
    owner, thief = Player(host, 1, "key one"), Player(host, 2, "key two")
    owner.hello()
    thief.token, thief.seq = owner.token, owner.seq
    assert kind(thief.ask("close")) == "session"
    thief.token, thief.seq = b"t" * 16, -1
    assert thief.hello(replaces=owner.token)[0]["op"] == "hello"
    assert owner.ask("reset")[0]["op"] == "reset"


@pytest.mark.parametrize(("action", "text"), [(1, "the wheel came off"), (2, "SystemExit")])
def test_an_environment_that_fails_ends_its_session_and_no_other(action, text):
    host = host_of("worlds:Failing")
    unlucky, other = Player(host, 1), Player(host, 2)
    for player in (unlucky, other):
        player.hello()
        player.ask("reset")
    reply = unlucky.step(action)
    assert kind(reply) == "environment"
    assert text in reply[0]["text"]
    assert kind(unlucky.step(0)) == "session"
    assert other.step(0)[0]["op"] == "step"
    assert host.room == 3


def test_an_environment_that_cannot_be_made_is_an_error_too():
    recipe, made = Recipe("worlds:Old"), []

    def make(number, render):
        made.append(number)
        if len(made) > 1:
            raise OSError("no display")
        return Copies(lambda: recipe.make(render), number)

    host = Host(make, "old", 4)
    reply = Player(host).hello()
    assert kind(reply) == "environment"
    assert "no display" in reply[0]["text"]
    assert host.room == 4


def test_pictures_are_drawn_for_those_who_said_so():
    host = host_of(most=4)
    blind, seeing = Player(host, 1), Player(host, 2)
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


def test_an_environment_that_cannot_draw_goes_on():
    player = Player(host_of("worlds:Failing"))
    player.hello(render=True)
    player.ask("reset")
    assert kind(player.ask("render", {"lane": 0})) == "render"
    assert player.step(0)[0]["op"] == "step"


def test_numbers_of_the_infos_are_sent_to_those_who_asked():
    player = Player(host_of("worlds:Mixed"))
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
def test_a_hello_is_read_with_suspicion(wrong):
    host = host_of()
    assert kind(Player(host).hello(**wrong)) == "malformed"
    assert host.room == 4


def test_an_error_has_what_could_be_read_of_the_request():
    host = host_of()
    frames = host.answer(Peer([b""]), [b"\xff"], 0.0)
    header = decode([bytes(f) for f in frames]).header
    assert (header["session"], header["seq"]) == (None, None)
    frames = host.answer(Peer([b""]), encode({"op": "reset", "session": "abc", "seq": 3}), 0.0)
    header = decode([bytes(f) for f in frames]).header
    assert (header["session"], header["seq"]) == (None, 3)


def test_a_request_has_so_many_bytes_at_most():
    host = host_of()
    player = Player(host)
    player.hello()
    player.ask("reset")
    reply = player.ask("step", arrays=[np.zeros(LEAST_REQUEST_BYTES // 8)])
    assert kind(reply) == "size"
    assert player.step(0)[0]["op"] == "step"
