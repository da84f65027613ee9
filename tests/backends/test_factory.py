"""What the factory builds: seeds, shares of episodes, and backends restored from a checkpoint."""

from __future__ import annotations

import io

import pytest
import torch
from scenes import CPU

import rookery
from rookery.algorithms.base import Collection
from rookery.backends.factory import make_backend, seeds, share_of
from rookery.config import resolve
from rookery.envs import statistics
from rookery.errors import BadInput
from rookery.learning.reduce import Reducer

SMALL = {
    "use_preset": False,
    "env_steps": 1_000,
    "envs": 4,
    "threads": 1,
    "algo": {"rollout_steps": 32},
}
APEX = {"capacity": 2_000, "warm_up": 100, "rollout_steps": 4, "batch_size": 16}


def test_episodes_are_divided_over_actors_and_add_up():
    shares = [share_of(Collection(episodes=8), number, 3).episodes for number in range(3)]
    assert shares == [3, 3, 2]
    rows = Collection(steps=5)
    assert share_of(rows, 1, 3) is rows
    with pytest.raises(BadInput, match=r"algo\.episodes=2 is less than one for each of 3 actors"):
        share_of(Collection(episodes=2), 0, 3)


def test_seeds_differ_between_actors_restarts_and_resumptions():
    keys = [(1, actor, step, restart) for actor in (0, 1) for step in (0, 9) for restart in (0, 1)]
    drawn = [seed for key in keys for seed in seeds(*key)]
    assert len(set(drawn)) == len(drawn)
    assert seeds(1, 0, 0, 0) == seeds(1, 0, 0, 0)


def restored(run):
    return make_backend(run.settings, Reducer(), CPU, run.saved)


def test_a_restored_backend_has_the_random_states_of_the_checkpoint(tmp_path):
    run = rookery.train("ppo", "CartPole-v1", runs_dir=tmp_path, console=io.StringIO(), **SMALL)
    backend = restored(run)
    saved = run.saved.tensors["random"]
    assert torch.equal(backend.actor.generator.get_state(), saved["actor.0"])
    assert torch.equal(backend.memory.generator.get_state(), saved["memory.0"])
    backend.close()


def test_a_restored_actor_starts_with_the_statistics_of_the_checkpoint(tmp_path):
    settings = SMALL | {"env": {"normalize_obs": True}}
    run = rookery.train("ppo", "CartPole-v1", runs_dir=tmp_path, console=io.StringIO(), **settings)
    backend = restored(run)
    (moments,) = statistics(backend.actor.env).values()
    state = moments.state()
    merged = run.saved.tensors["normalizer"]["obs.merged"]
    assert torch.equal(torch.as_tensor(state["merged"]), merged)
    assert state["pending"][0] == SMALL["envs"]  # the first observations, counted after it
    backend.close()


def test_actor_threads_play_with_published_weights(tmp_path):
    settings = {"backend": "threads", "actors": 2, "envs": 4, "threads": 1, "algo": APEX}
    settings["learner"] = {"publish_updates": 1}
    config = resolve("apex", "CartPole-v1", settings, use_preset=False).config
    backend = make_backend(config, Reducer(), CPU)
    first = backend.learner.flat.values.detach().clone()
    backend.start()
    try:
        while backend.learner.updates < 5:
            backend.advance(0)
        version, values = backend.weights.newest
        assert version == 5
        assert torch.equal(values, backend.learner.flat.values)
        assert not torch.equal(values, first)
    finally:
        backend.close()
