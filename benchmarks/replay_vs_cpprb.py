"""Prioritized sampling beside cpprb (a C++ replay buffer): by turns, as a ratio.

    pip install -e '.[bench]'
    python benchmarks/replay_vs_cpprb.py

Both hold 1,000,000 rows of CartPole-like observations, all with random priorities. A batch is 512
one-step transitions drawn with importance weights, and 512 new priorities written back.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import torch

from rookery.algorithms.apex import ApeX, ApeXConfig
from rookery.algorithms.base import Spaces
from rookery.data.steps import Segment, Steps

CAPACITY, LANES, BATCH, ALPHA, BETA = 1_000_000, 10, 512, 0.6, 0.4


def rookery_side() -> Callable[[], None]:
    """One sample and update of our replay."""
    config = ApeXConfig(
        capacity=CAPACITY,
        batch_size=BATCH,
        n_step=1,
        alpha=ALPHA,
        beta=BETA,
        warm_up=0,
        rollout_steps=10_000,
    )
    seen = Spaces(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))
    algorithm = ApeX(seen, config, ApeX.default_net, torch.device("cpu"))
    replay = algorithm.memory(LANES, 1, seed=0)
    shape = (10_000, LANES)
    for _ in range(CAPACITY // LANES // shape[0]):
        one = torch.ones(shape)
        extra = {"q": torch.randn(shape), "value": torch.randn(shape)}
        action = torch.zeros(shape, dtype=torch.int64)
        steps = Steps(torch.randn(*shape, 4), action, one, one, one, extra)
        replay.add(Segment(steps, steps.obs[0], (), (), one[0]))
    priorities = torch.rand(BATCH)

    def work() -> None:
        batch = replay.sample()
        replay.reweigh(batch.keys, priorities)

    return work


def cpprb_side() -> Callable[[], None]:
    """The same of cpprb."""
    from cpprb import PrioritizedReplayBuffer

    fields: dict[str, Any] = {
        "obs": {"shape": 4, "dtype": np.float32},
        "next_obs": {"shape": 4, "dtype": np.float32},
        "act": {"dtype": np.int16},
        "rew": {"dtype": np.float32},
        "done": {"dtype": np.uint8},
    }
    buffer = PrioritizedReplayBuffer(CAPACITY, fields, alpha=ALPHA)
    obs = np.random.default_rng(0).normal(size=(CAPACITY, 4)).astype(np.float32)
    zero = np.zeros(CAPACITY)
    buffer.add(obs=obs, next_obs=obs, act=zero, rew=zero, done=zero, priorities=zero + 1)
    priorities = np.random.default_rng(1).random(BATCH)

    def work() -> None:
        sample = buffer.sample(BATCH, beta=BETA)
        buffer.update_priorities(sample["indexes"], priorities)

    return work


def speed(work: Callable[[], None], batches: int = 1_000) -> float:
    """Batches a second."""
    for _ in range(20):
        work()
    start = time.perf_counter()
    for _ in range(batches):
        work()
    return batches / (time.perf_counter() - start)


def main() -> None:
    """Both sides by turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    ours, theirs = rookery_side(), cpprb_side()
    ratios = []
    for number in range(1, rounds + 1):
        a, b = speed(ours), speed(theirs)
        ratios.append(a / b)
        print(f"round {number}: {a:,.0f} against {b:,.0f} batches/s, {a / b:.2f} x")
    print(f"replay: median {statistics.median(ratios):.2f} x cpprb ({rounds} rounds)")


if __name__ == "__main__":
    main()
