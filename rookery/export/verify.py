"""Verify an exported policy: the same decisions as the live policy on recorded observations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from rookery.data.tree import to_tensors
from rookery.envs.factory import learning_wrappers
from rookery.envs.spaces import part_at, space_leaves
from rookery.envs.wrappers.episodes import BaseWrapper, Reset
from rookery.envs.wrappers.episodes import Step as EnvStep
from rookery.errors import RookeryError
from rookery.export.formats import Run
from rookery.export.step import Interface
from rookery.learning.policy import Policy

STEPS = 1_000
OUTPUT_TOLERANCE = 1e-4
"""Largest difference allowed, relative to the largest value of the same output (at least 1):
rounding errors grow with the terms of a sum, not with its result."""
EXTREME_OUTPUT = 1e8
"""Larger values mark illegal actions, and are left out of the scale of an output."""
SECOND_BATCH = 7
"""Second batch size to check with if the recording has one environment."""
STAGGER = 5
"""Steps between the restarts of neighbouring batch entries."""


class RawRecorder(BaseWrapper):
    """Wrapper that keeps the raw observations and rewards of the last step."""

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        super().__init__(env)
        self.paths = [path for path, _ in space_leaves(env.single_observation_space)]
        self.obs: list[np.ndarray] = []
        # Not zero, to check that the reward before an episode has no effect.
        self.reward = np.ones(env.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        obs, info = super().reset(seed=seed, options=options)
        self.keep(obs)
        return obs, info

    def step(self, actions: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        self.keep(obs)
        self.reward = np.array(reward, np.float64)
        return obs, reward, terminated, truncated, info

    def keep(self, obs: Any) -> None:
        """Copy the observations: the environment may reuse its buffers."""
        self.obs = [np.array(part_at(obs, path)) for path in self.paths]


class PlayRecording(NamedTuple):
    """Raw observations and rewards, and the answers of the live policy, [T, B, ...]."""

    obs: list[np.ndarray]
    reward: np.ndarray
    first: np.ndarray
    answers: dict[str, np.ndarray]
    """The action, and the values or logits it was chosen by."""


def record(policy: Policy, env: VectorEnv[Any, Any, Any], seed: int) -> PlayRecording:
    """Play the live policy for STEPS steps in total, through the environment's wrappers."""
    env, tap = with_raw_recorder(env)
    lanes = env.num_envs
    obs, _ = env.reset(seed=seed)
    first, resetting = np.ones(lanes, bool), np.zeros(lanes, bool)
    reward, state = np.zeros(lanes), policy.begin(lanes)
    rows: list[tuple[Any, ...]] = []
    for _ in range(-(-STEPS // lanes)):
        rewards = torch.as_tensor(reward, dtype=torch.float32)
        with torch.inference_mode():
            chosen = policy.algorithm.best(to_tensors(obs, policy.device), rewards, state).extra
        answers = {name: value.numpy().copy() for name, value in chosen.items()}
        action, state = policy.decide(obs, reward, state)
        rows.append((tap.obs, tap.reward, first, {"action": action, **answers}))
        obs, reward, terminated, truncated, _ = env.step(action)
        reward = np.where(resetting, 0.0, reward)
        state = policy.carry(state, resetting)
        first, resetting = resetting, terminated | truncated
    seen, received, firsts, answered = zip(*rows, strict=True)
    return PlayRecording(
        [np.stack(leaf) for leaf in zip(*seen, strict=True)],
        np.stack(received),
        np.stack(firsts),
        {name: np.stack([row[name] for row in answered]) for name in answered[0]},
    )


def with_raw_recorder(
    env: VectorEnv[Any, Any, Any],
) -> tuple[VectorEnv[Any, Any, Any], RawRecorder]:
    """Return the environments with a RawRecorder below the wrappers that preprocess."""
    base, layers = learning_wrappers(env)
    tap = RawRecorder(base)
    if not layers:
        return tap, tap
    layers[0].env = tap
    return env, tap


def batch_sizes(recording: PlayRecording) -> list[int]:
    """Return the batch sizes to check with: that of the recording, and a second one."""
    lanes = recording.reward.shape[1]
    return [lanes, 1 if lanes > 1 else SECOND_BATCH]


def order(rows: int, batch: int) -> np.ndarray:
    """Return which row of the recording each batch entry gets at each step, [steps, batch].

    Every entry restarts once, each at a different step, before it goes through all rows: episodes
    then start in one entry while they continue in others, whatever the environment does.
    """
    turn = STAGGER * (1 + np.arange(batch)) % rows
    steps = np.arange(rows + turn.max())[:, None]
    return np.where(steps < turn, steps, (steps - turn) % rows)


def compare_with_recording(
    run: Run, interface: Interface, recording: PlayRecording, batch: int
) -> dict[str, float]:
    """Run an exported policy on a recording in batches of `batch`; return the largest difference
    of each output.

    Raises RookeryError if an action differs, or a number by more than the tolerance.
    """
    rows, played = recording.reward.shape
    lanes = np.arange(batch) % played
    rows = rows if batch <= played else min(rows, -(-STEPS // batch))
    state = [np.zeros((batch, *port.shape), port.dtype) for port in interface.states]
    names = [port.name for port in interface.outputs]
    furthest = dict.fromkeys(recording.answers, 0.0)
    scale = {}
    for name, answers in recording.answers.items():
        sizes = np.abs(answers)
        scale[name] = max(1.0, float(sizes[sizes < EXTREME_OUTPUT].max(initial=0)))
    for number, row in enumerate(order(rows, batch)):
        inputs = [x[row, lanes] for x in (*recording.obs, recording.reward, recording.first)]
        outputs = dict(zip(names, run([*inputs, *state]), strict=True))
        for name, answers in recording.answers.items():
            off = difference(outputs[name], answers[row, lanes]) / scale[name]
            furthest[name] = max(furthest[name], off)
            exact = not np.issubdtype(answers.dtype, np.floating)  # such as discrete actions
            if not off <= (0.0 if exact else OUTPUT_TOLERANCE):
                raise RookeryError(
                    f'export: "{name}" of the exported policy differs from the live one by'
                    f" {off:.3g} (allowed {OUTPUT_TOLERANCE:g}, whole numbers 0) at step {number}"
                    f" of a batch of {batch}; nothing was written"
                )
        state = [outputs[str(port.next)] for port in interface.states]
    return furthest


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """Return the largest difference; infinity if shape or type differ, or for NaN."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    off = np.abs(got.astype(np.float64) - want)
    return float(np.nan_to_num(off, nan=np.inf).max(initial=0.0))
