"""Random data in any spaces, for speed measurements or a task whose best return is known."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.envs.builtin.matching import Match, draw_codes, drawer, take_rows
from rookery.envs.builtin.space_spec import NAMED_ACT, NAMED_OBS, parse_space
from rookery.envs.engines.single import SingleLane
from rookery.envs.options import is_whole
from rookery.envs.spaces import Array, value_range
from rookery.errors import BadInput, nearest, require

NAME = "rookery/Synthetic-v1"
SMALL = "{units: {kind: discrete(16)[4], features: float[4,8]}, clock: float[1]}"
DATA = ("generated", "synthetic")
OVERSLEEP_S = 2e-4
"""Last seconds of a sleep that are spent polling, since the system wakes a process late."""


@dataclass(frozen=True, kw_only=True)
class SyntheticSettings:
    """Settings of the synthetic environment, given in `env.kwargs`."""

    obs: str = SMALL
    """Observation space in the syntax of space_spec.py, or "reference"."""
    act: str | None = None
    """Action space; none: "discrete(128)" if obs is "reference", else "discrete(4)"."""
    data: str = "generated"
    """Observations: "generated" for new ones each step, "synthetic" for rows of a fixed pool."""
    pool: int = 256
    """Rows of that pool."""
    pool_seed: int = 0
    """Seed of the pool, the same in every process."""
    length: int = 16
    """Steps of an episode."""
    task: bool = False
    """Reward the action whose code is in the observation; otherwise rewards are noise."""
    delay: int = 0
    """With the task: the code of this many steps ago counts."""
    busy_ms: float = 0.0
    """Milliseconds of additional computation per step of all environments."""
    sleep_ms: float = 0.0
    """Milliseconds of sleep per step of all environments."""

    def __post_init__(self) -> None:
        def check(fits: bool, name: str, wanted: str) -> None:
            require(fits, f"env.kwargs: {name} must be {wanted}, got {getattr(self, name)!r}")

        for name, least in (("pool", 1), ("pool_seed", 0), ("length", 1), ("delay", 0)):
            check(is_whole(getattr(self, name), least), name, f"a whole number >= {least}")
        for name in ("busy_ms", "sleep_ms"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            check(number and 0 <= value < math.inf, name, "a number >= 0")
        check(self.data in DATA, "data", f"one of {', '.join(DATA)}")
        check(isinstance(self.task, bool), "task", "true or false")
        require(
            self.delay == 0 or self.task,
            f"env.kwargs: delay={self.delay} has no effect without task=true",
        )
        check(self.delay < self.length, "delay", f"less than length={self.length}")

    def spaces(self) -> tuple[Space[Any], Space[Any]]:
        """Return the observation space and the action space."""
        obs = parse_space(self.obs, "env.kwargs: obs", NAMED_OBS)
        default = "reference" if self.obs.strip() == "reference" else "discrete(4)"
        text = default if self.act is None else self.act
        act = parse_space(text, "env.kwargs: act", NAMED_ACT)
        box = isinstance(act, spaces.Box) and np.issubdtype(act.dtype, np.floating)
        discrete = isinstance(act, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
        require(
            box or discrete,
            "env.kwargs: act must be discrete, multidiscrete, multibinary or a box of floats,"
            f" got {text!r}",
        )
        return obs, act


def compute(seconds: float) -> None:
    """Use processor time of this thread, holding the interpreter lock."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def sleep(seconds: float) -> None:
    """Sleep and wake on time: the last moments are polled, with the interpreter lock released."""
    end = time.perf_counter() + seconds
    time.sleep(max(0.0, seconds - OVERSLEEP_S))
    while time.perf_counter() < end:
        time.sleep(0)


class SyntheticVector(VectorEnv[Any, Any, Any]):
    """Random observations, rewards and episode ends of lanes that run in lockstep; see
    SyntheticSettings and docs/synthetic.md.

    `best_return` is the expected return of the best policy (0 where rewards are noise). With
    data="synthetic", `pool` is the tree of arrays [P, ...] that observations are taken from, and
    `rows` (int64 [B]) are the rows of it that the last `reset` or `step` returned; otherwise both
    are None. Returned arrays are never overwritten.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": [],
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        **kwargs: Any,
    ):
        known = [field.name for field in fields(SyntheticSettings)]
        for key in kwargs:
            if key not in known:
                raise BadInput(f'env.kwargs: {NAME} has no setting "{key}".{nearest(key, known)}')
        self.settings = settings = SyntheticSettings(**kwargs)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.max_episode_steps = max_episode_steps
        obs, act = settings.spaces()
        self.single_observation_space, self.single_action_space = obs, act
        self.observation_space = batch_space(obs, num_envs)
        self.action_space = batch_space(act, num_envs)
        self.best_return = float(settings.length - settings.delay) if settings.task else 0.0
        self.match = Match(obs, act) if settings.task else None
        self.pool: Any = None
        self.rows: Array | None = None
        self._time = 0
        self._resetting = False
        self._draw = drawer(obs)
        self._least, self._most = value_range(act)
        # The codes of the last observations; the oldest one is rewarded.
        self._shown: deque[Array] = deque(maxlen=settings.delay + 1)
        self._pool_codes: Array | None = None
        if settings.data == "synthetic":
            random = np.random.default_rng(settings.pool_seed)
            self.pool, self._pool_codes = self._fresh(random, settings.pool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._resetting = False
        return self._begin(), {}

    def step(self, actions: Any) -> Any:
        if self.settings.busy_ms:
            compute(self.settings.busy_ms / 1000)
        if self.settings.sleep_ms:
            sleep(self.settings.sleep_ms / 1000)
        terminated = truncated = False
        if self._resetting:
            obs, reward = self._begin(), np.zeros(self.num_envs)
        else:
            reward = self._reward(np.asarray(actions))
            obs = self._observe()
            self._time += 1
            limit = self.max_episode_steps
            terminated = self._time >= self.settings.length
            truncated = limit is not None and self._time >= limit
        self._resetting = terminated or truncated
        flags = np.full(self.num_envs, terminated), np.full(self.num_envs, truncated)
        return obs, reward, *flags, {}

    def _begin(self) -> Any:
        """Start an episode in every lane; return the observations."""
        self._time = 0
        self._shown.clear()
        return self._observe()

    def _reward(self, actions: Array) -> Array:
        # Gymnasium's `contains` would take longer than the rest of a step with a pool.
        fits = actions.shape == self.action_space.shape
        if not fits or not ((actions >= self._least) & (actions <= self._most)).all():
            raise ValueError(
                f"actions {actions.tolist()} are not all in {self.single_action_space}"
            )
        if self.match is None:
            return self.np_random.standard_normal(self.num_envs)
        if len(self._shown) <= self.settings.delay:
            return np.zeros(self.num_envs)
        return self.match.reward(actions, self._shown[0])

    def _observe(self) -> Any:
        if self.pool is None:
            obs, codes = self._fresh(self.np_random, self.num_envs)
        else:
            self.rows = draw_codes(self.np_random, self.settings.pool, (self.num_envs,))
            obs = take_rows(self.pool, self.rows)
            codes = None if self._pool_codes is None else self._pool_codes[self.rows]
        if codes is not None:
            self._shown.append(codes)
        return obs

    def _fresh(self, random: np.random.Generator, n: int) -> tuple[Any, Array | None]:
        """Return observations [n, ...] and, with the task, their codes [n]."""
        obs = self._draw(random, n)
        return obs, None if self.match is None else self.match.hide(obs, random, n)


class Synthetic(SingleLane):
    """A single synthetic environment, with the stream of a SyntheticVector of one lane."""

    def __init__(self, render_mode: str | None = None, **kwargs: Any):
        vector = SyntheticVector(1, render_mode=render_mode, **kwargs)
        super().__init__(vector)
        self.best_return = vector.best_return
