"""Replay memories on Ray scale their rows by the statistics that all actors gather together."""

import numpy as np
import pytest

from rookery.backends.ray.workers import ActorWorker, LearnerWorker, ShardWorker
from rookery.envs import statistics

ALGO = {"capacity": 2_000, "warm_up": 40, "batch_size": 4, "rollout_steps": 5}
BOTH = {"normalize_obs": True, "normalize_reward": True}


@pytest.mark.parametrize(("algorithm", "keeper"), [("dqn", LearnerWorker), ("apex", ShardWorker)])
def test_rows_are_scaled_by_what_all_actors_have_seen(drive, algorithm, keeper):
    here, driver, _ = drive(algorithm, "CartPole-v1", actors=3, envs=2, env=BOTH, algo=ALGO)
    for _ in range(12):
        driver.advance(0)
    of_run = {name: moments.mean for name, moments in statistics(driver.env).items()}
    assert set(of_run) == {"obs", "reward"}
    played = len(driver.actors) * 12 * 5 * 2
    for worker in here.workers(keeper):
        memory = worker.memory
        normalizer = memory.ring.layout.normalizer
        count = normalizer.statistics()["obs"].count
        assert count > 0.5 * played
        for name, moments in normalizer.statistics().items():
            np.testing.assert_allclose(moments.mean, of_run[name], rtol=0.3, atol=0.1)
        # Raw rows: rewards of CartPole are 1, whatever they are scaled to.
        stored = memory.ring.reward[memory.ring.mask > 0]
        assert set(stored.tolist()) == {1.0}
        scaled = memory.take(8).steps.reward
        assert not np.isin(scaled.numpy(), [1.0, 2.0, 3.0]).any()
    assert len(here.workers(ActorWorker)) == 3
