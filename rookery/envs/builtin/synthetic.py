"""Random data in any spaces, for speed measurements or a task whose best return is known."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, fields
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.envs.builtin.draws import codes as draw_codes
from rookery.envs.builtin.draws import drawer, take_rows
from rookery.envs.builtin.matching import Match
from rookery.envs.builtin.space_spec import NAMED_ACT, NAMED_OBS, parse_space
from rookery.envs.options import is_whole
from rookery.envs.wrappers.moments import Array
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
        for name, least in (("pool", 1), ("pool_seed", 0), ("length", 1), ("delay", 0)):
            value = getattr(self, name)
            require(
                is_whole(value, least),
                f"env.kwargs: {name} must be a whole number >= {least}, got {value!r}",
            )
        for name in ("busy_ms", "sleep_ms"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            require(
                number and 0 <= value < math.inf,
                f"env.kwargs: {name} must be a number >= 0, got {value!r}",
            )
        require(
            self.data in DATA,
            f"env.kwargs: data must be one of {', '.join(DATA)}, got {self.data!r}",
        )
        require(
            isinstance(self.task, bool),
            f"env.kwargs: task must be true or false, got {self.task!r}",
        )
        require(
            self.delay == 0 or self.task,
            f"env.kwargs: delay={self.delay} has no effect without task=true",
        )
        require(
            self.delay < self.length,
            f"env.kwargs: delay must be less than length={self.length}, got {self.delay}",
        )

    @classmethod
    def of(cls, kwargs: dict[str, Any]) -> SyntheticSettings:
        """Return settings from keyword arguments; raise for an unknown one."""
        known = [field.name for field in fields(cls)]
        for key in kwargs:
            if key not in known:
                raise BadInput(f'env.kwargs: {NAME} has no setting "{key}".{nearest(key, known)}')
        return cls(**kwargs)

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


class World:
    """Observations, rewards and episode ends of lanes that run in lockstep."""

    def __init__(self, lanes: int, settings: SyntheticSettings):
        self.lanes, self.settings = lanes, settings
        self.obs_space, self.act_space = settings.spaces()
        self.best_return = float(settings.length - settings.delay) if settings.task else 0.0
        self.match = Match(self.obs_space, self.act_space) if settings.task else None
        self.pool: Any = None
        self.rows: Array | None = None
        self.time = 0
        self._draw = drawer(self.obs_space)
        self._least, self._most = action_range(self.act_space)
        self._action_shape = (lanes, *(self.act_space.shape or ()))
        # The codes of the last observations; the oldest one is rewarded.
        self._shown: deque[Array] = deque(maxlen=settings.delay + 1)
        self._pool_codes: Array | None = None
        if settings.data == "synthetic":
            random = np.random.default_rng(settings.pool_seed)
            self.pool, self._pool_codes = self._fresh(random, settings.pool)

    def begin(self, random: np.random.Generator) -> Any:
        """Start an episode in every lane; return the observations."""
        self.time = 0
        self._shown.clear()
        return self._observe(random)

    def step(self, random: np.random.Generator, actions: Any) -> tuple[Any, Array, bool]:
        """Return observations, rewards [B], and True if the episodes have ended."""
        actions = np.asarray(actions)
        self._check(actions)
        if self.match is None:
            reward = random.standard_normal(self.lanes)
        elif len(self._shown) <= self.settings.delay:
            reward = np.zeros(self.lanes)
        else:
            reward = self.match.reward(actions, self._shown[0])
        self.time += 1
        return self._observe(random), reward, self.time >= self.settings.length

    def spend_time(self) -> None:
        """Spend the computation and the sleep that the settings add to a step."""
        if self.settings.busy_ms:
            compute(self.settings.busy_ms / 1000)
        if self.settings.sleep_ms:
            sleep(self.settings.sleep_ms / 1000)

    def _observe(self, random: np.random.Generator) -> Any:
        if self.pool is None:
            obs, codes = self._fresh(random, self.lanes)
        else:
            self.rows = draw_codes(random, self.settings.pool, (self.lanes,))
            obs = take_rows(self.pool, self.rows)
            codes = None if self._pool_codes is None else self._pool_codes[self.rows]
        if codes is not None:
            self._shown.append(codes)
        return obs

    def _fresh(self, random: np.random.Generator, n: int) -> tuple[Any, Array | None]:
        """Return observations [n, ...] and, with the task, their codes [n]."""
        obs = self._draw(random, n)
        return obs, None if self.match is None else self.match.hide(obs, random, n)

    def _check(self, actions: Array) -> None:
        # Gymnasium's `contains` would take longer than the rest of a step with a pool.
        fits = actions.shape == self._action_shape
        if not fits or not ((actions >= self._least) & (actions <= self._most)).all():
            raise ValueError(f"actions {actions.tolist()} are not all in {self.act_space}")


def action_range(act: Space[Any]) -> tuple[Any, Any]:
    """Return the smallest and the largest value of each part of an action."""
    if isinstance(act, spaces.Box):
        return act.low, act.high
    if isinstance(act, spaces.Discrete):
        return 0, act.n - 1
    return 0, act.nvec - 1 if isinstance(act, spaces.MultiDiscrete) else 1


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


class Synthetic(gymnasium.Env[Any, Any]):
    """A single synthetic environment; see SyntheticSettings and docs/synthetic.md.

    It gives the same stream as a SyntheticVector of one lane with the same seed.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, **settings: Any):
        self.world = World(1, SyntheticSettings.of(settings))
        self.render_mode = render_mode
        self.observation_space = self.world.obs_space
        self.action_space = self.world.act_space
        self.best_return = self.world.best_return
        self.pool = self.world.pool

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return take_rows(self.world.begin(self.np_random), 0), {}

    def step(self, action: Any) -> Any:
        self.world.spend_time()
        obs, reward, terminated = self.world.step(self.np_random, np.asarray(action)[None])
        return take_rows(obs, 0), float(reward[0]), terminated, False, {}


class SyntheticVector(VectorEnv[Any, Any, Any]):
    """Vectorized Synthetic; all lanes end an episode together.

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
        **settings: Any,
    ):
        self.world = World(num_envs, SyntheticSettings.of(settings))
        self.num_envs, self.render_mode = num_envs, render_mode
        self.max_episode_steps = max_episode_steps
        self.single_observation_space = self.world.obs_space
        self.single_action_space = self.world.act_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.best_return = self.world.best_return
        self.pool = self.world.pool
        self._resetting = False

    @property
    def rows(self) -> Array | None:
        """Rows of the pool in the last observations, [B]."""
        return self.world.rows

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._resetting = False
        return self.world.begin(self.np_random), {}

    def step(self, actions: Any) -> Any:
        self.world.spend_time()
        terminated = truncated = False
        if self._resetting:
            obs, reward = self.world.begin(self.np_random), np.zeros(self.num_envs)
        else:
            obs, reward, terminated = self.world.step(self.np_random, actions)
            limit = self.max_episode_steps
            truncated = limit is not None and self.world.time >= limit
        self._resetting = terminated or truncated
        flags = np.full(self.num_envs, terminated), np.full(self.num_envs, truncated)
        return obs, reward, *flags, {}
