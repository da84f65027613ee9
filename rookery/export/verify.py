"""An exported policy beside the live one: the same environment, the same decisions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from rookery.data.tree import to_tensors
from rookery.envs.factory import learnt_layers
from rookery.envs.spaces import at, leaves
from rookery.envs.wrappers.episodes import Layer, Reset
from rookery.envs.wrappers.episodes import Step as EnvStep
from rookery.errors import RookeryError
from rookery.export.formats import Run
from rookery.export.interface import Interface
from rookery.learning.policy import Policy

STEPS = 1_000
TOLERANCE = 1e-4
"""By how much a number may differ, as a share of the largest of its kind, or of 1 if that is less:
what rounding does grows with the terms of a sum, not with what is left of them."""
EXTREME = 1e8
"""Beyond this a number says of an action that it is illegal, and nothing of the others' scale."""
BESIDE = 7
"""Lanes of a second batch size, where one environment was played."""
STAGGER = 5
"""Steps between the restarts of neighbouring lanes."""


class Tap(Layer):
    """Notes what the environments say before anything is made of it."""

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        super().__init__(env)
        self.paths = [path for path, _ in leaves(env.single_observation_space)]
        self.obs: list[np.ndarray] = []
        # What stands here before an episode must not matter.
        self.reward = np.ones(env.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        obs, info = super().reset(seed=seed, options=options)
        self.note(obs)
        return obs, info

    def step(self, actions: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        self.note(obs)
        self.reward = np.array(reward, np.float64)
        return obs, reward, terminated, truncated, info

    def note(self, obs: Any) -> None:
        """Keep a copy: the environment may reuse its buffers."""
        self.obs = [np.array(at(obs, path)) for path in self.paths]


class Recording(NamedTuple):
    """What the environments said and the live policy answered, every array [T, B, ...]."""

    obs: list[np.ndarray]
    reward: np.ndarray
    first: np.ndarray
    answers: dict[str, np.ndarray]
    """The action, and what it was judged by."""


def record(policy: Policy, env: VectorEnv[Any, Any, Any], seed: int) -> Recording:
    """Play the live policy for STEPS steps over all lanes, through the environment's wrappers."""
    env, tap = tapped(env)
    lanes = env.num_envs
    obs, _ = env.reset(seed=seed)
    first, resetting = np.ones(lanes, bool), np.zeros(lanes, bool)
    reward, state = np.zeros(lanes), policy.begin(lanes)
    rows: list[tuple[Any, ...]] = []
    for _ in range(-(-STEPS // lanes)):
        answers = judged(policy, obs, reward, state)
        action, state = policy.decide(obs, reward, state)
        rows.append((tap.obs, tap.reward, first, {"action": action, **answers}))
        obs, reward, terminated, truncated, _ = env.step(action)
        reward = np.where(resetting, 0.0, reward)
        state = policy.carry(state, resetting)
        first, resetting = resetting, terminated | truncated
    seen, rewards, firsts, answered = zip(*rows, strict=True)
    return Recording(
        [np.stack(leaf) for leaf in zip(*seen, strict=True)],
        np.stack(rewards),
        np.stack(firsts),
        {name: np.stack([row[name] for row in answered]) for name in answered[0]},
    )


def tapped(env: VectorEnv[Any, Any, Any]) -> tuple[VectorEnv[Any, Any, Any], Tap]:
    """The environments with a tap below what is made of their rewards and observations."""
    base, layers = learnt_layers(env)
    tap = Tap(base)
    if not layers:
        return tap, tap
    layers[0].env = tap
    return env, tap


@torch.inference_mode()
def judged(policy: Policy, obs: Any, reward: np.ndarray, state: Any) -> dict[str, np.ndarray]:
    """What the live policy judges its actions by."""
    decision = policy.algorithm.best(
        to_tensors(obs, policy.device), torch.as_tensor(reward, dtype=torch.float32), state
    )
    return {name: value.numpy().copy() for name, value in decision.extra.items()}


def batch_sizes(recording: Recording) -> list[int]:
    """The sizes to check with: that of the recording, and another one."""
    lanes = recording.reward.shape[1]
    return [lanes, 1 if lanes > 1 else BESIDE]


def order(rows: int, batch: int) -> np.ndarray:
    """Which row each lane is shown at each step, [steps, batch].

    Every lane starts over once before it goes through all rows, each at another moment, so that
    an episode begins in one lane while it goes on in the others, whatever the environment does.
    """
    turn = STAGGER * (1 + np.arange(batch)) % rows
    steps = np.arange(rows + turn.max())[:, None]
    return np.where(steps < turn, steps, (steps - turn) % rows)


def replay(run: Run, interface: Interface, recording: Recording, batch: int) -> dict[str, float]:
    """Show a recording to an exported policy, in so many lanes; how far its answers are off.

    Raises RookeryError where an action is another one, or a number differs by more than the
    tolerance.
    """
    rows, played = recording.reward.shape
    lanes = np.arange(batch) % played
    rows = rows if batch <= played else min(rows, -(-STEPS // batch))
    state = [np.zeros((batch, *port.shape), port.dtype) for port in interface.states]
    names = [port.name for port in interface.outputs]
    furthest = dict.fromkeys(recording.answers, 0.0)
    scale = {name: scale_of(x) for name, x in recording.answers.items()}
    for number, row in enumerate(order(rows, batch)):
        told = [x[row, lanes] for x in (*recording.obs, recording.reward, recording.first)]
        outputs = dict(zip(names, run([*told, *state]), strict=True))
        for name, answers in recording.answers.items():
            off = difference(outputs[name], answers[row, lanes]) / scale[name]
            furthest[name] = max(furthest[name], off)
            if not off <= limit(answers):
                raise mismatch(name, off, number, batch)
        state = [outputs[str(port.next)] for port in interface.states]
    return furthest


def scale_of(answers: np.ndarray) -> float:
    """How large answers are, at least 1; those that stand for an illegal action left out."""
    sizes = np.abs(answers)
    return max(1.0, float(sizes[sizes < EXTREME].max(initial=0)))


def limit(answers: np.ndarray) -> float:
    """How far answers may be off: whole numbers, such as discrete actions, not at all."""
    return TOLERANCE if np.issubdtype(answers.dtype, np.floating) else 0.0


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference; infinite where the one is of another shape or type, or NaN."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    off = np.abs(got.astype(np.float64) - want)
    return float(np.nan_to_num(off, nan=np.inf).max(initial=0.0))


def mismatch(name: str, off: float, step: int, batch: int) -> RookeryError:
    """The error that refuses an export."""
    return RookeryError(
        f'export: "{name}" of the exported policy differs from the live one by {off:.3g} (allowed'
        f" {TOLERANCE:g}, whole numbers 0) at step {step} of a batch of {batch}; nothing was"
        " written"
    )
