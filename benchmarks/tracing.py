"""Times updates and acting plain, traced, traced without one of the parts of tracing, and compiled.

python benchmarks/tracing.py                          # every kind of work
python benchmarks/tracing.py "dqn Pong" --seconds 10 --compile

The variants take turns call by call, so that other load on the machine slows all of them. Printed
is the CPU time of plain code divided by that of each variant, medians over the turns.
"""

from __future__ import annotations

import argparse
import time
from itertools import islice
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from rookery.backends.factory import make_backend
from rookery.backends.serial import Serial
from rookery.config import resolve
from rookery.data.steps import Batch
from rookery.learning.reduce import Reducer
from rookery.tracing import program, trace

REPLAY = {"warm_up": 200, "capacity": 4_000}
WORK: dict[str, tuple[str, str, bool, dict[str, Any]]] = {
    "ppo CartPole, 64 environments": (
        *("ppo", "CartPole-v1", False),
        {"envs": 64, "algo": {"rollout_steps": 128, "epochs": 4, "minibatches": 4}},
    ),
    "ppo CartPole, preset": ("ppo", "CartPole-v1", True, {}),
    "dqn CartPole": (
        *("dqn", "CartPole-v1", False),
        {"envs": 8, "algo": {**REPLAY, "batch_size": 64, "samples_per_insert": 16}},
    ),
    "dqn CartPole, preset": ("dqn", "CartPole-v1", True, {"algo": REPLAY}),
    "ppo LunarLander, preset": ("ppo", "LunarLander-v3", True, {}),
    "dqn Pong, preset": ("dqn", "PongNoFrameskip-v4", True, {"envs": 8, "algo": REPLAY}),
    "apex Pong, preset": ("apex", "PongNoFrameskip-v4", True, {"envs": 8, "algo": REPLAY}),
}
"""Algorithm, environment, whether its preset is used, and other settings."""


class Case:
    """A learner and an actor, after enough calls to be traced or compiled."""

    def __init__(self, work: str, settings: dict[str, Any]):
        algorithm, environment, use_preset, own = WORK[work]
        settings = {**own, **settings, "backend": "serial", "threads": 1}
        config = resolve(algorithm, environment, settings, use_preset=use_preset).config
        backend = make_backend(config, Reducer(), torch.device("cpu"))
        assert isinstance(backend, Serial)
        self.learner, self.actor, memory = backend.learner, backend.actor, backend.memory
        batches: list[Batch] = []
        while not batches:
            memory.add(self.learner.algorithm.prepare(self.actor.collect()))
            batches = list(islice(memory.batches(self.learner.precompute), 1))
        self.batch = batches[0]
        for _ in range(16):
            self.update()
            self.act()

    def update(self) -> None:
        self.learner.update(self.batch)

    def act(self) -> None:
        self.actor.decide()


def make_cases(work: str, with_compile: bool) -> dict[str, Case]:
    """Return the variants by name."""
    without: dict[str, tuple[Any, str, Any]] = {
        "without NumPy": (program, "SET_ASIDE", 0),
        "without fold_constants": (trace, "fold_constants", lambda calls, _: (calls, [])),
    }
    cases = {"plain": Case(work, {"learner": {"trace": False}}), "traced": Case(work, {})}
    for name, change in without.items():
        with patch.object(*change):
            cases[name] = Case(work, {})
    if with_compile:
        cases["--compile"] = Case(work, {"compile": True})
    return cases


def measure(cases: dict[str, Case], what: str, seconds: float) -> dict[str, list[float]]:
    """Return the CPU times of single calls by variant, in turns."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times["plain"]) < 5:
        for name, case in cases.items():
            call = getattr(case, what)
            call()  # brings its data into the cache
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", nargs="*", help="words from the names of the kinds of work")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement")
    parser.add_argument("--compile", action="store_true", help="measure --compile too")
    args = parser.parse_args()
    chosen = [w for w in WORK if not args.work or any(words in w for words in args.work)]
    for work in chosen:
        cases = make_cases(work, args.compile)
        for what in ("update", "act"):
            times = measure(cases, what, args.seconds)
            print(f"{work}, {what}: plain {1e3 * median(times['plain']):.2f} ms", flush=True)
            for name, own in times.items():
                ratio = median(a / b for a, b in zip(times["plain"], own, strict=True))
                print(f"    {name:28} {ratio:5.2f}", flush=True)


if __name__ == "__main__":
    main()
