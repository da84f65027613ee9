"""Probe environments: episodes of one to four steps with exact answers, each of which only some
part of an algorithm can get wrong. `rookery doctor ALGO` trains on them."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from rookery.envs.spaces import Array


class ProbeEnv(gymnasium.Env[Any, Any]):
    """Base class: observations are `width` numbers from -1 to 1, rewards come with the last step.

    Subclasses say what is observed in `observation`, and override `begin` to draw what an episode
    depends on, `steps`, `reward` and `truncates`.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    width: ClassVar[int] = 1
    actions: ClassVar[int] = 1
    steps: ClassVar[int] = 1
    """Steps of an episode that is not truncated."""

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-1.0, 1.0, (self.width,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(self.actions)
        self.step_number = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.step_number = 0
        self.begin()
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        reward = self.reward(action)
        self.step_number += 1
        terminated = self.step_number == self.steps
        truncated = not terminated and self.truncates()
        return self._observed(), reward, terminated, truncated, {}

    def begin(self) -> None:
        """Draw what the episode depends on."""

    def observation(self) -> list[float]:
        """Return the observation; the one after an episode's last step is not learned from."""
        return [1.0]

    def reward(self, action: Any) -> float:
        """Return the reward of an action, before the step is counted."""
        return float(self.step_number == self.steps - 1)

    def truncates(self) -> bool:
        """True if the episode is cut off after this step."""
        return False

    def draw_sign(self) -> int:
        """Return -1 or 1, each with probability 1/2."""
        return int(2 * self.np_random.integers(2) - 1)

    def _observed(self) -> Array:
        return np.array(self.observation(), np.float32)


class ConstantValue(ProbeEnv):
    """One observation, one action, one step, reward 1: the value is 1."""


class ObservedValue(ProbeEnv):
    """One step that pays the observation, -1 or 1: its value is the observation."""

    def begin(self) -> None:
        self.sign = self.draw_sign()

    def observation(self) -> list[float]:
        return [self.sign]

    def reward(self, action: Any) -> float:
        return float(self.sign)


class DiscountedValue(ProbeEnv):
    """Two steps, of which the second pays 1: the first is worth gamma."""

    steps = 2

    def observation(self) -> list[float]:
        return [-1.0 if self.step_number == 0 else 1.0]


class DelayedReturn(ProbeEnv):
    """Four steps, of which the last pays the episode's sign s: step t is worth gamma^(3 - t) s.

    Entry t of the observation at step t is the sign; the others are 0. Half of the episodes pay -1,
    so that a return that comes from another episode or another environment shows.
    """

    width = 4
    steps = 4

    def begin(self) -> None:
        self.sign = self.draw_sign()

    def observation(self) -> list[float]:
        return [self.sign * (step == self.step_number) for step in range(4)]

    def reward(self, action: Any) -> float:
        return super().reward(action) * self.sign


class BetterAction(ProbeEnv):
    """One observation, one step, two actions: action 1 pays 1, action 0 pays 0."""

    actions = 2

    def reward(self, action: Any) -> float:
        return float(action)


class TwoDecisions(ProbeEnv):
    """Two steps, each with a sign that the action must name (0: -1, 1: 1); the last pays 1 if both
    did. Observations are the sign of the first step, that of the second, and 1 at the second step
    if the first action was right."""

    width = 3
    actions = 2
    steps = 2

    def begin(self) -> None:
        self.sign = self.draw_sign()
        self.right = True

    def observation(self) -> list[float]:
        if self.step_number == 0:
            return [self.sign, 0.0, 0.0]
        return [0.0, self.sign, float(self.right)]

    def reward(self, action: Any) -> float:
        self.right = self.right and 2 * int(action) - 1 == self.sign
        reward = super().reward(action) * self.right
        self.sign = self.draw_sign()
        return reward


class RememberedSign(ProbeEnv):
    """A sign is seen at the first step only; the action of the second must name it to be paid 1."""

    width = 2
    actions = 2
    steps = 2

    def begin(self) -> None:
        self.sign = self.draw_sign()

    def observation(self) -> list[float]:
        return [self.sign, 0.0] if self.step_number == 0 else [0.0, 1.0]

    def reward(self, action: Any) -> float:
        return super().reward(action) * (2 * int(action) - 1 == self.sign)


class CutEpisode(ProbeEnv):
    """Two steps, of which the second pays 1, but half of the episodes are truncated before it.

    The first step is worth gamma in either case, because the value of the final observation is that
    of the same observation in an episode that goes on. An algorithm that takes truncation for
    termination learns gamma / 2.
    """

    width = 2
    steps = 2

    def observation(self) -> list[float]:
        return [1.0, 0.0] if self.step_number == 0 else [0.0, 1.0]

    def truncates(self) -> bool:
        return self.draw_sign() > 0


class ContinuousAction(ProbeEnv):
    """One step, one action from -1 to 1, which pays 1 at 0.5 and less with distance d: 1 - 4 d^2,
    at least 0.

    The reward is symmetric about 0.5, also for actions that were clipped to 1, so that the best
    mean of a symmetric distribution is 0.5 however wide it is.
    """

    def __init__(self, render_mode: str | None = None):
        super().__init__(render_mode)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reward(self, action: Any) -> float:
        return max(0.0, 1.0 - 4.0 * (float(action[0]) - 0.5) ** 2)
