"""Distribution of the actors' environments over servers."""

from collections import Counter

import pytest

from rookery.envs import turned
from rookery.envs.remote.vector import even_shares

SERVERS = ["tcp://a:1", "tcp://b:2", "tcp://c:3"]
NAME = ",".join(SERVERS)


def load(actors, envs):
    """How many environments each server gets."""
    count = Counter()
    for actor in range(actors):
        order = turned(NAME, actor * envs).split(",")
        assert sorted(order) == SERVERS
        count += Counter(dict(zip(order, even_shares(envs, 3), strict=True)))
    return [count[server] for server in SERVERS]


@pytest.mark.parametrize(
    ("actors", "envs", "expected"),
    [
        (1, 3, [1, 1, 1]),
        (3, 1, [1, 1, 1]),
        (6, 1, [2, 2, 2]),
        (2, 2, [2, 1, 1]),
        (3, 4, [4, 4, 4]),
        (3, 5, [5, 5, 5]),
    ],
)
def test_actors_spread_over_the_servers(actors, envs, expected):
    assert load(actors, envs) == expected


def test_names_without_several_addresses_are_unchanged():
    assert turned("CartPole-v1", 3) == "CartPole-v1"
    assert turned("tcp://a:1", 3) == "tcp://a:1"
