"""Rows on both sides of a lost segment are never taken for neighbours."""

import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rookery.backends.ray.cluster import cluster_now
from rookery.backends.ray.workers import ActorWorker, LearnerWorker, ShardWorker
from rookery.envs import register_env


class Counting(gymnasium.Env):
    """Shows how many steps it was played, and pays 1 a step: rows that are missing are seen."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count += 1
        self.begun = self.count
        return self.seen(), {}

    def step(self, action):
        self.count += 1
        return self.seen(), 1.0, False, self.count - self.begun == 17, {}

    def seen(self):
        return np.array([self.count], np.float32)


def check_neighbours(memory):
    """Raise unless the rows of every window and of every stack were played one after the other."""
    index = (memory.row_at >= 0).nonzero()[0]
    steps, _ = memory.windows.assemble(
        memory.ring, index // memory.ring.starts, memory.row_at[index]
    )
    frames = steps.obs.squeeze(-1).numpy()  # [2, windows, frames]
    first, last = frames[..., -1]
    np.testing.assert_array_equal(last - first, steps.reward[0])
    older = frames[..., 0]
    assert (older[older > 0] == frames[..., -1][older > 0] - 1).all()
    assert (older > 0).any()


@pytest.fixture
def start(drive):
    """Starts a driver in this process whose actors count."""
    register_env("test/Counting", Counting, replace=True)
    algo = {"capacity": 2_000, "warm_up": 40, "batch_size": 4, "rollout_steps": 5}
    algo |= {"n_step": 3, "gamma": 1.0, "samples_per_insert": None}

    def start(algorithm, **settings):
        stacked = {"envs": 2, "env": {"frame_stack": 2}, "algo": algo}
        return drive(algorithm, "test/Counting", **settings, **stacked)

    return start


def lose(here, actor, numbers):
    """Lose those of an actor's segments, once they are played."""

    count = itertools.count()

    def called(worker, name, made):
        if worker is actor and name == "collect" and next(count) in numbers:
            made[0].lose()

    here.called = called


def test_a_dropped_round_is_a_cut_for_all_its_writers(start):
    here, driver, told = start("dqn", actors=3)
    lose(here, here.workers(ActorWorker)[1], {3})
    for _ in range(8):
        driver.advance(0)
    assert told == ["segments were lost with their node; playing them again"]
    (learner,) = here.workers(LearnerWorker)
    assert learner.memory.head.tolist() == [35, 35, 35]
    assert learner.memory.origin.tolist() == [15, 15, 15]
    check_neighbours(learner.memory)


def test_a_lost_actor_is_a_cut_for_its_writer_only(start):
    here, driver, told = start("dqn", actors=3)
    for _ in range(4):
        driver.advance(0)
    here.end(here.workers(ActorWorker)[2])
    for _ in range(4):
        driver.advance(0)
    assert told[-1] == "actor 2 restarted on here (ababab), restart 1 of at most 3"
    (learner,) = here.workers(LearnerWorker)
    assert learner.memory.origin.tolist() == [0, 0, 20]
    check_neighbours(learner.memory)


def test_an_actor_that_joins_does_not_go_on_where_one_that_left_ended(start):
    here, driver, told = start("dqn", cpus=3, actors="auto")
    for _ in range(4):
        driver.advance(0)
    driver.actors[-1].place = None
    for here.cpus in (2, 3):
        driver.cluster = cluster_now()
        driver.follow_cluster()
    for _ in range(4):
        driver.advance(0)
    assert [line.partition(":")[0] for line in told] == ["actor 2 leaves", "actor 2 joins"]
    (learner,) = here.workers(LearnerWorker)
    assert learner.memory.origin.tolist() == [0, 0, 20]
    check_neighbours(learner.memory)


def test_a_shard_cuts_where_a_segment_was_lost_on_its_way(start):
    """The one after it was sent before the driver heard of the loss."""
    here, driver, told = start("apex", actors=2)
    lose(here, here.workers(ActorWorker)[1], {4, 7})
    (shard,) = here.workers(ShardWorker)
    for _ in range(12):
        driver.advance(0)
    assert told == []
    assert shard.memory.head[0] - shard.memory.head[1] == 10
    assert shard.memory.origin.tolist() == [0, 30]
    check_neighbours(shard.memory)
