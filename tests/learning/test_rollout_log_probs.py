"""Before the first update the learner sees the log-probabilities and values the actor saw."""

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from scenes import Lanes, Loop, make

from rookery.algorithms.ppo import PPO
from rookery.networks.build import NetConfig
from rookery.networks.recurrent import resets

LANES = [
    [(1, "terminated"), (4, "truncated")],
    [(3, "truncated"), (2, "both")],
    [(7, "terminated")],
    [(50, "truncated")],
]


def see(lane, episode, t):
    return np.sin([lane + 3 * episode + t, 2 * lane + episode + 5 * t])


@pytest.mark.parametrize("core", ["lstm", "gru", "none"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("action", [spaces.Discrete(3), spaces.Box(-1, 1, (2,))], ids=str)
def test_recomputed_log_probs_and_values_are_the_rollouts(core, shared, action):
    box = spaces.Box(-1, 1, (2,), np.float32)
    env = Lanes(LANES, see, obs_space=box, action_space=action)
    net = NetConfig(hidden=(8,), core=core, core_size=6, shared=shared)
    algorithm = make(PPO, env, net, rollout_steps=10, minibatches=2, epochs=1)
    torch.nn.init.normal_(algorithm.network.head.linear.weight)
    loop = Loop(algorithm, env)
    spread = []
    for _ in range(3):  # the later segments start inside episodes, some on a reset row
        segment = loop.actor.collect()
        loop.memory.add(algorithm.prepare(segment))
        rows = 0
        for batch in loop.memory.batches():
            steps = batch.steps
            reset = resets(steps.mask) if core != "none" else None
            params, value = algorithm.network(steps.obs, batch.state, reset)
            log_prob = algorithm.network.head.log_prob(params, steps.action)
            kept = steps.mask > 0
            close = {"atol": 1e-5, "rtol": 1e-5}
            torch.testing.assert_close(log_prob[kept], steps.extra["log_prob"][kept], **close)
            torch.testing.assert_close(value[kept], steps.extra["value"][kept], **close)
            rows += int(kept.sum())
            spread.append(params[kept])
        assert rows == int(segment.steps.mask.sum())
        assert int((segment.steps.mask == 0).sum()) > 0
    assert torch.cat(spread).std(0).max() > 0.1


@pytest.mark.parametrize("shared", [True, False])
def test_the_value_after_a_segment_is_the_next_segments_first(shared):
    box = spaces.Box(-1, 1, (2,), np.float32)
    env = Lanes(LANES, see, obs_space=box)
    net = NetConfig(hidden=(8,), core="lstm", core_size=6, shared=shared)
    algorithm = make(PPO, env, net, rollout_steps=9, minibatches=2, gamma=1.0, lam=0.0)
    actor = Loop(algorithm, env).actor
    one, two = (algorithm.prepare(actor.collect()).steps for _ in range(2))
    # With lambda 0: advantage = reward + discount * next value - value.
    row = {name: x[-1] for name, x in one.extra.items()}
    after = row["advantage"] + row["value"] - one.reward[-1]
    kept = (one.mask[-1] * one.discount[-1]) > 0
    assert int(kept.sum()) >= 2
    torch.testing.assert_close(after[kept], two.extra["value"][0][kept], atol=1e-5, rtol=1e-5)
