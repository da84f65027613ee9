"""The return of a policy of uniformly random actions: measured, and cached for later runs."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from rookery.algorithms.base import Spaces
from rookery.data.tree import Tree
from rookery.envs import EnvOptions, make_env, plays_atari, registered
from rookery.envs.factory import resolve_options
from rookery.envs.registry import is_served
from rookery.errors import RookeryError, RunFailed
from rookery.learning.evaluate import Scores, evaluate
from rookery.learning.policy import RandomPolicy
from rookery.machine import versions
from rookery.runs.files import write_json

BASELINE_EPISODES = 100
BASELINE_LANES = 8
"""Most environments that play in parallel."""
BASELINE_SEED = 1_000_003
SHARE_OF_TIME = 0.5
"""Share of the time that further episodes are planned for, judged by the first ones."""


class Baseline(NamedTuple):
    """Mean return of the random policy."""

    mean: float
    half_width: float
    """Half of the mean's 95 % interval."""
    episodes: int

    def __str__(self) -> str:
        small = 0 < self.half_width < 1
        digits = min(1 - math.floor(math.log10(self.half_width)), 6) if small else 1
        return f"{self.mean:.{digits}f} ± {self.half_width:.{digits}f}"


class TimeUp(Exception):
    """Raised by TimedPolicy."""


class TimedPolicy(RandomPolicy):
    """A random policy that raises TimeUp after the time `until`."""

    until = math.inf

    def decide(self, obs: Tree, reward: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        if time.monotonic() >= self.until:
            raise TimeUp
        return super().decide(obs, reward, state)


def measure_baseline(
    environment: str,
    options: EnvOptions | None = None,
    episodes: int = BASELINE_EPISODES,
    seed: int = BASELINE_SEED,
    seconds: float | None = None,
) -> Scores | None:
    """Return the scores of exactly `episodes` random episodes on environments of their own.

    With `seconds` it returns those of fewer episodes if there is not enough time, and None if
    there is none for one episode in each of up to 8 environments. How many episodes are played is
    decided after the first ones, whatever the length of the later ones, so short episodes are not
    favoured. The global random generators are left as they were.
    """
    start = time.monotonic()
    lanes = min(episodes, BASELINE_LANES)
    with own_random_state():
        env = make_env(environment, options, num_envs=lanes, training=False)
        spaces = Spaces(env.single_observation_space, env.single_action_space)
        policy = TimedPolicy(spaces, seed)
        try:
            if seconds is None:
                return evaluate(policy, env, episodes, seed)
            policy.until = start + seconds
            began = time.monotonic()
            first = evaluate(policy, env, lanes, seed)
            now = time.monotonic()
            rounds = int(SHARE_OF_TIME * (policy.until - now) / (now - began))
            more = min(episodes - lanes, lanes * rounds)
            return joined(first, policy, env, more, seed + lanes) if more > 0 else first
        except TimeUp:
            return None
        finally:
            env.close()


def joined(first: Scores, policy: RandomPolicy, env: Any, episodes: int, seed: int) -> Scores:
    """Return the scores `first` and those of more episodes; `first` alone if time is up."""
    try:
        more = evaluate(policy, env, episodes, seed)
    except TimeUp:
        return first
    return Scores(
        np.concatenate([first.returns, more.returns]), np.concatenate([first.lengths, more.lengths])
    )


@contextmanager
def own_random_state() -> Iterator[None]:
    """Restore Python's, NumPy's and torch's global random generators after the body."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def baseline_of(mean: float, deviation: float, episodes: int) -> Baseline:
    """Return a baseline with the normal 95 % interval, 1.96 s / sqrt(n), where s^2 = deviation^2
    n / (n - 1)."""
    return Baseline(mean, 1.96 * deviation / math.sqrt(max(episodes - 1, 1)), episodes)


def cached(environment: str, options: EnvOptions | None = None) -> Baseline | None:
    """Return the stored baseline of an environment with these options; None if there is none, or
    if the file cannot be read."""
    path = cache_path(environment, options)
    try:
        values = json.loads(path.read_text()) if path is not None else None
        return None if values is None else Baseline(*(values[name] for name in Baseline._fields))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def store(environment: str, options: EnvOptions | None, baseline: Baseline) -> None:
    """Write a baseline to the cache, unless it has fewer than 8 episodes, the cache has one of
    more, or it cannot be written."""
    path = cache_path(environment, options) if baseline.episodes >= BASELINE_LANES else None
    before = cached(environment, options)
    if path is None or (before is not None and before.episodes > baseline.episodes):
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"environment": environment, **baseline._asdict()})
    except (OSError, RookeryError):
        return


def cached_or_measured(
    environment: str, options: EnvOptions | None = None, seconds: float = 1.0
) -> Baseline | None:
    """Return the cached baseline, or measure it for at most `seconds` and store it; None if that
    time is too short, or the environment fails."""
    if (found := cached(environment, options)) is not None:
        return found
    path = cache_path(environment, options)
    slow = None if path is None else path.with_suffix(f".takes_over_{seconds:g}_s")
    if slow is not None and slow.exists():
        return None
    try:
        scores = measure_baseline(environment, options, seconds=seconds)
    except RunFailed:
        return None
    if scores is None:
        # Not to be tried again with the same time at every start of a run.
        with suppress(OSError):
            if slow is not None:
                slow.parent.mkdir(parents=True, exist_ok=True)
                slow.touch()
        return None
    returns = scores.returns
    baseline = baseline_of(float(returns.mean()), float(returns.std()), len(returns))
    store(environment, options, baseline)
    return baseline


def baseline_of_run(environment: str, options: EnvOptions, may_play: bool) -> Baseline | None:
    """Return the cached baseline for a run that starts; if there is none, measure it for at most a
    second, but only if `may_play` and for environments of installed packages: a second copy of a
    user's own environment may not be safe to make. Atari's episodes take longer than a second."""
    installed = environment in gymnasium.registry or environment.startswith("envpool:")
    if may_play and installed and not (plays_atari(environment) or environment in registered()):
        return cached_or_measured(environment, options)
    return cached(environment, options)


def cache_path(environment: str, options: EnvOptions | None) -> Path | None:
    """Return the cache file of an environment, its version and its options; None if the version
    cannot be told, as for a served environment."""
    stamp = version_of(environment)
    if stamp is None:
        return None
    resolved = asdict(resolve_options(environment, options or EnvOptions()))
    key = json.dumps([environment, stamp, resolved], sort_keys=True, default=repr)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = hashlib.sha256(key.encode()).hexdigest()[:24]
    return Path(home) / "rookery" / "random" / f"{name}.json"


def version_of(environment: str) -> dict[str, Any] | None:
    """Return what tells versions of an environment apart: installed packages, and size and time of
    the file that defines it; None if that file is unknown."""
    packages = {name: versions()[name] for name in ("rookery", "gymnasium", "ale_py")}
    if plays_atari(environment) or environment.startswith("envpool:"):
        return packages
    module = module_of(environment)
    try:
        spec = importlib.util.find_spec(module) if module else None
        file = Path(spec.origin).stat() if spec and spec.origin else None
    except (ImportError, ValueError, OSError):
        file = None
    return None if file is None else packages | {"file": [file.st_size, file.st_mtime_ns]}


def module_of(environment: str) -> str | None:
    """Return the name of the module that defines an environment, or None."""
    if is_served(environment):
        return None
    if environment in registered():
        return getattr(registered()[environment], "__module__", None)
    if environment in gymnasium.registry:
        entry = gymnasium.registry[environment].entry_point
        return entry.partition(":")[0] if isinstance(entry, str) else None
    return environment.partition(":")[0] if ":" in environment else None
