"""A trained agent as a function from observation to action."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rookery.algorithms.base import Algorithm, Spaces, carry
from rookery.data.steps import Lanes
from rookery.data.tree import Tree, to_tensors, tree_map
from rookery.memory.returns import unrescale
from rookery.networks.encoders import legal_actions_of, mask_illegal

LONG_AFTER = 10**12
"""Environment steps for exploration as at the end of training."""


@dataclass(eq=False)
class Policy:
    """`policy(obs) -> action` for one environment; recurrent state is kept inside.

    Call `reset()` when an episode starts. Greedy by default, except for a share `epsilon`
    of actions drawn evenly. An agent that sees the previous reward takes it as `policy(obs,
    reward)`, in the form it was trained on (with env.clip_reward: its sign). `preprocess` maps a
    raw observation to what the network was trained on, where they differ (normalisation).
    """

    algorithm: Algorithm
    spaces: Spaces
    device: torch.device
    preprocess: Callable[[Any], Any] = lambda obs: obs
    greedy: bool = True
    seed: int = 0
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.drawn = EvenDraw(self.spaces, self.seed)
        self.generator = torch.Generator(self.device).manual_seed(self.seed)
        self.reset()

    def reset(self) -> None:
        """Clear the recurrent state before an episode."""
        self.state: Tree = self.algorithm.initial_state(1)

    def __call__(self, obs: Any, reward: float = 0.0) -> Any:
        """Return the action for one observation and the reward that came with it."""
        rows = self.preprocess(tree_map(lambda x: np.asarray(x)[None], obs))
        action, self.state = self.decide(rows, np.array([reward]), self.state)
        return action[0]

    @torch.inference_mode()
    def decide(self, obs: Tree, reward: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        """Return actions for preprocessed observations [B, ...], and the state after them."""
        lanes = Lanes(0, len(reward), len(reward))
        decision = self.algorithm.act(
            to_tensors(obs, self.device),
            torch.as_tensor(reward, dtype=torch.float32, device=self.device),
            state,
            self.generator,
            None if self.greedy else self.algorithm.exploration(LONG_AFTER, lanes),
        )
        action = decision.env_action.cpu().numpy().astype(self.spaces.action.dtype)
        drawn = (self.random.random(len(action)) < self.epsilon).nonzero()[0]
        if not len(drawn):
            return action, decision.state
        for lane in drawn:
            action[lane] = self.drawn(obs, int(lane))
        return action, self.algorithm.replace_action(
            decision.state, torch.as_tensor(action, device=self.device)
        )

    @torch.inference_mode()
    def values(self, obs: Tree, reward: np.ndarray, state: Tree) -> np.ndarray | None:
        """Return predicted values [B] of preprocessed observations, V(s) or max Q(s, a) over legal
        actions, on the scale of returns; None if the algorithm computes none.

        With noise in the weights it is that of the last decision: none if greedy.
        """
        rows = to_tensors(obs, self.device)
        before = torch.as_tensor(reward, dtype=torch.float32, device=self.device)
        extra = self.algorithm.best(rows, before, state).extra
        value = extra.get("value")
        if "q" in extra:
            legality = self.drawn.legality
            legal = None if legality is None else legality(rows)
            value = on_return_scale(self.algorithm, mask_illegal(extra["q"], legal, -math.inf))
            value = value.amax(-1)
        return None if value is None else value.cpu().numpy()

    def begin(self, lanes: int) -> Tree:
        """Return the state at the start of `lanes` episodes."""
        return self.algorithm.initial_state(lanes)

    def carry(self, state: Tree, resetting: np.ndarray) -> Tree:
        """Return the state with the lanes of reset rows cleared."""
        return carry(state, resetting)


def on_return_scale(algorithm: Algorithm, q: torch.Tensor) -> torch.Tensor:
    """Return action values on the scale of returns: with algo.rescale they are on the scale h."""
    return unrescale(q) if getattr(algorithm.config, "rescale", False) else q


class EvenDraw:
    """Draws actions uniformly from the action space, or from the legal ones."""

    def __init__(self, spaces: Spaces, seed: int = 0):
        self.space = spaces.action
        self.space.seed(seed)
        self.legality = legal_actions_of(spaces.obs, spaces.action)

    def __call__(self, obs: Tree, lane: int) -> Any:
        """Return an action for one lane of observations [B, ...]."""
        if self.legality is None:
            return self.space.sample()
        row = to_tensors(tree_map(lambda x: x[lane], obs), torch.device("cpu"))
        return self.space.sample(self.legality(row).numpy().astype(np.int8))


class RandomPolicy(EvenDraw):
    """A policy that draws actions uniformly."""

    def decide(self, obs: Tree, reward: np.ndarray, state: Tree) -> tuple[np.ndarray, Tree]:
        """Return a random action for each lane."""
        lanes = range(len(reward))
        return np.stack([np.asarray(self(obs, lane)) for lane in lanes]), state

    def begin(self, lanes: int) -> Tree:
        """Return an empty state."""
        return ()
