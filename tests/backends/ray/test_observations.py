"""What actor 0 has recorded reaches the driver, or nothing does."""

import pickle

import numpy as np
import ray

from rookery.backends.ray.workers import ActorWorker
from rookery.envs.wrappers.observation_record import observations_of

SMALL = {"envs": 2, "actors": 2, "threads": 1, "algo": {"rollout_steps": 8, "minibatches": 2}}


def test_actor_0_answers_until_it_is_lost(drive, monkeypatch):
    here, driver, _ = drive("ppo", "CartPole-v1", inspect_every=100, **SMALL)
    for _ in range(3):
        driver.advance(0)
    first, second = here.workers(ActorWorker)
    shown = pickle.loads(pickle.dumps(driver.observations()))
    assert shown.seen[()].shape == shown.raw[()].shape == (1 + 3 * 8, 4)
    np.testing.assert_array_equal(shown.seen[()][-1], first.player.actor.obs[0])
    assert observations_of(second.player.actor.env) is None

    monkeypatch.setattr(ray, "wait", lambda references, num_returns, timeout: ([], references))
    assert driver.observations() is None
    monkeypatch.setattr(ray, "wait", here.wait)
    here.end(first)
    assert driver.observations() is None
    for _ in range(2):  # the first finds out, the second plays with another actor 0
        driver.advance(0)
    assert len(driver.observations().seen[()]) == 1 + 8


def test_nothing_is_recorded_by_default(drive):
    _, driver, _ = drive("ppo", "CartPole-v1", **SMALL)
    driver.advance(0)
    assert driver.observations() is None
