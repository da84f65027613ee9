"""Ape-X: first priorities come with the rows, and it learns a small world."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scenes import CPU, FLAT, Lanes, Loop, filled, make, spaces_of

from rookery.algorithms.apex import ApeX
from rookery.data.steps import Lanes as Place
from rookery.errors import BadInput
from rookery.learning.actor import Actor
from rookery.networks.build import NetConfig

SMALL = {"capacity": 1_000, "warm_up": 32, "batch_size": 32, "rollout_steps": 4, "gamma": 0.8}


def test_the_paying_arm_is_found():
    def pay(lane, t, action):
        return 1.0 if action == 2 else 0.0

    env = Lanes([[(1, "terminated")]] * 8, pay=pay, action_space=spaces.Discrete(4))
    more = {"learning_rate": 0.02, "samples_per_insert": 8.0, "target_period": 5}
    algorithm = make(ApeX, env, NetConfig(hidden=(8,)), **(SMALL | more))
    Loop(algorithm, env).run(40)
    q = algorithm.network(torch.ones(1, 1))[0].tolist()
    assert q == pytest.approx([0, 0, 1, 0], abs=0.05)


def test_a_time_limit_leaves_the_endless_value():
    env = Lanes([[(3, "truncated")], [(5, "truncated")]] * 4)
    more = {"optimizer": "sgd", "learning_rate": 0.5, "loss": "mse", "samples_per_insert": 8.0}
    more |= {"target_period": 4, "max_grad_norm": 0.0}
    algorithm = make(ApeX, env, NetConfig(hidden=()), **(SMALL | more))
    Loop(algorithm, env).run(80)
    assert algorithm.network(torch.ones(1, 1)).flatten().tolist() == pytest.approx([5, 5], rel=0.02)


def test_each_actor_explores_by_its_place_in_the_run():
    env = Lanes([[(3, "truncated")]] * 2)
    algorithm = make(ApeX, env, **SMALL)
    for first in (0, 4):
        place = Place(first, 2, 6)
        actor = Actor(env, algorithm, algorithm.collection, CPU, 0, None, place)
        actor.collect(10**6)
        by_hand = [0.4 ** (1 + 7 * i / 5) for i in (first, first + 1)]
        assert actor.explore.tolist() == pytest.approx(by_hand, rel=1e-5)


def test_what_is_recorded_is_the_value_taken_and_the_best():
    env = Lanes([[(3, "truncated")]] * 4, lambda b, e, t: [np.sin(b + t)])
    algorithm = make(ApeX, env, **SMALL)
    memory, spy = filled(algorithm, env, rounds=5)
    different = 0
    for obs, _, _, decision in spy.rows:
        with torch.no_grad():
            q = algorithm.network(obs)
        for lane in range(4):
            taken = int(decision.action[lane])
            best = max(q[lane].tolist())
            assert decision.extra["q"][lane].item() == pytest.approx(q[lane, taken].item(), 1e-4)
            assert decision.extra["value"][lane].item() == pytest.approx(best, 1e-4)
            different += taken != int(q[lane].argmax())
    assert different > 0
    stored = memory.ring.extra["q"][:-1].reshape(4, -1)[:, :20].T
    recorded = torch.stack([row[-1].extra["q"] for row in spy.rows])
    assert np.array_equal(stored, recorded.numpy())


def test_without_a_ratio_every_round_has_one_update():
    env = Lanes([[(3, "truncated")]] * 4)
    loop = Loop(make(ApeX, spaces_of(env), **SMALL), env)
    for _ in range(12):
        loop.run(1)
    # Two rounds of 16 rows are the warm-up; each later one, and the second, has its update.
    assert loop.learner.updates == 11


def test_a_core_is_refused():
    with pytest.raises(BadInput, match=r"net\.core=lstm.*r2d2"):
        make(ApeX, FLAT, NetConfig(core="lstm"))
