"""Actors: step vector environments with the current policy and collect segments of rows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from rookery.algorithms.base import Algorithm, Collection, carry
from rookery.data.steps import Decision, FinishedEpisode, Lanes, Segment, Steps
from rookery.data.tree import Tree, to_tensors, tree_map, tree_replace


def episodes_per_lane(episodes: int, lanes: int) -> np.ndarray:
    """Return how many of `episodes` each lane plays, [lanes]."""
    return episodes // lanes + (np.arange(lanes) < episodes % lanes)


def finished_episode(ended: Mapping[str, np.ndarray], lane: int) -> FinishedEpisode:
    """Return the episode that ended in a lane, from `info["episode"]` (see EpisodeStatistics)."""
    return FinishedEpisode(
        float(ended["return"][lane]), int(ended["length"][lane]), bool(ended["truncated"][lane])
    )


def stacked(rows: Sequence[Any]) -> Any:
    """Return arrays or tensors stacked into one; a single one is not copied."""
    if len(rows) == 1:
        return rows[0][None]
    return torch.stack(tuple(rows)) if isinstance(rows[0], torch.Tensor) else np.stack(rows)


class Stopped(Exception):
    """Raised by `collect` when the actor was asked to stop."""


class Pooled(Protocol):
    """Environments whose observations are rows of a pool that was made once."""

    pool: Tree
    """All observations, [P, ...]."""

    @property
    def rows(self) -> np.ndarray | None:
        """Indices [B] of the last observations in the pool."""
        ...


class Times(NamedTuple):
    """Seconds an actor or a learner spent since it started."""

    env_s: float = 0.0
    """In the environments."""
    inference_s: float = 0.0
    """Choosing actions."""
    transfer_s: float = 0.0
    """Copying observations to the network's device, and actions back."""
    learn_s: float = 0.0
    reduce_s: float = 0.0
    """In sums over ranks."""
    wait_s: float = 0.0
    """Waiting for batches or segments to learn from."""
    cpu_s: float = 0.0
    """CPU time of all threads of its process."""

    def plus(self, other: Times) -> Times:
        return Times(*(a + b for a, b in zip(self, other, strict=True)))


class Played(NamedTuple):
    """Progress of an actor since it was last asked."""

    env_steps: int
    """Steps without reset rows."""
    episodes: list[FinishedEpisode]
    notices: list[str]
    """Lines for the log from the environments and the algorithm."""
    times: Times
    """Since the actor started."""
    exploration: torch.Tensor
    """Exploration of each environment, [B]."""
    memory_mb: float = 0.0
    """In RAM now, of a process that plays only."""


class StepRow(NamedTuple):
    """One step of every lane."""

    obs: Tree
    decision: Decision
    reward: np.ndarray
    discount: np.ndarray
    mask: np.ndarray


class Actor:
    """Collects segments of experience with the algorithm's current policy."""

    def __init__(
        self,
        env: VectorEnv,
        algorithm: Algorithm,
        collection: Collection,
        device: torch.device,
        seed: int,
        env_seed: int | None = None,
        lanes: Lanes | None = None,
        pooled: Pooled | None = None,
        turn: AbstractContextManager[Any] | None = None,
    ):
        self.env = env
        self.algorithm = algorithm
        self.collection = collection
        self.device = device
        self.lanes = lanes or Lanes(0, env.num_envs, env.num_envs)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.action_dtype = env.single_action_space.dtype
        self.pooled = pooled
        self.pool = None if pooled is None else to_tensors(pooled.pool, device)
        self.turn = turn or nullcontext()
        """Held while the actor computes; actors that share one take turns."""
        self.stopped = False
        self.env_steps = 0
        self.env_s = 0.0
        self.inference_s = 0.0
        self.transfer_s = 0.0
        self.episodes: list[FinishedEpisode] = []
        self.notices: list[str] = []
        self.explore = algorithm.exploration(0, self.lanes)
        self.begin(seed if env_seed is None else env_seed)

    def begin(self, seed: int | None) -> None:
        """Start every lane on a new episode."""
        self.obs, info = self.env.reset(seed=seed)
        self.notices += info.get("notices", ())
        self.raw_obs = info.get("raw_obs", {})
        self.resetting = np.zeros(self.env.num_envs, dtype=bool)
        self.reward = torch.zeros(self.env.num_envs, device=self.device)
        self.kept_reward = self.reward
        """The last reward, without normalisation if `collection.raw`."""
        self.state = self.algorithm.initial_state(self.env.num_envs)

    def collect(self, env_steps: int = 0) -> Segment:
        """Return the next segment, `env_steps` into the run."""
        self.explore = self.algorithm.exploration(env_steps, self.lanes)
        if self.collection.episodes is not None:
            return self.collect_episodes(self.collection.episodes)
        assert self.collection.steps is not None
        before = self.state, self.kept_reward
        rows = [self.step() for _ in range(self.collection.steps)]
        return self.segment(rows, *before)

    def collect_episodes(self, count: int) -> Segment:
        """Return a segment of exactly `count` whole episodes.

        Each lane's number is fixed beforehand, since taking whichever end first would favour short
        ones. What a lane plays after its last episode is masked.
        """
        left = episodes_per_lane(count, self.env.num_envs)
        self.begin(None)
        before = self.state, self.kept_reward
        rows = []
        while (left > 0).any():
            playing = left > 0
            row = self.step(playing)
            rows.append(row._replace(mask=row.mask & playing))
            left -= playing & self.resetting & row.mask
        return self.segment(rows, *before)

    def step(self, counted: np.ndarray | None = None) -> StepRow:
        """Act once in every lane; episodes that end in lanes `counted` (None: all) are recorded."""
        if self.stopped:
            raise Stopped
        with self.turn:
            obs, decision, action = self.decide()
            kept = self.kept(obs)
        start = time.perf_counter()
        self.obs, reward, terminated, truncated, info = self.env.step(action)
        self.env_s += time.perf_counter() - start
        with self.turn:
            if "episode" in info:
                ended = info["episode"]
                done = ended["done"] if counted is None else ended["done"] & counted
                self.episodes += [finished_episode(ended, lane) for lane in done.nonzero()[0]]
            self.notices += info.get("notices", ())
            mask = ~self.resetting
            if "lost" in info:  # a server is unreachable: no step was made there
                mask &= ~info["lost"]
            raw_reward = info.get("raw_reward", reward)
            reward = (reward * mask).astype(np.float32)
            self.reward = self.kept_reward = to_tensors(reward, self.device)
            if self.collection.raw:
                self.raw_obs = info.get("raw_obs", {})
                reward = (raw_reward * mask).astype(np.float32)
                self.kept_reward = to_tensors(reward, self.device)
            self.state = carry(decision.state, self.resetting)
            self.resetting = terminated | truncated
            self.env_steps += int(np.count_nonzero(mask))
            return StepRow(kept, decision, reward, ~terminated, mask)

    def kept(self, obs: Tree) -> Tree:
        """Return the part of an observation [B, ...] that a row stores."""
        if self.collection.newest_frame:
            obs = tree_map(lambda x: x[:, -1], obs)
        if self.collection.raw:
            # Copied: the environment may reuse its buffers.
            raw = {path: np.copy(leaf) for path, leaf in self.raw_obs.items()}
            obs = tree_replace(obs, raw)
        return obs

    def decide(self) -> tuple[Tree, Decision, np.ndarray]:
        """Return the observation, the decision, and the action as the environment takes it."""
        start = time.perf_counter()
        obs = self.observed()
        with torch.inference_mode():
            seen = self.on_device(obs)
            brought = time.perf_counter()
            decision = self.algorithm.act(
                seen, self.reward, self.state, self.generator, self.explore
            )
            decided = time.perf_counter()
            action = decision.env_action.cpu().numpy().astype(self.action_dtype, copy=False)
        self.inference_s += decided - brought
        self.transfer_s += time.perf_counter() - decided + brought - start
        return obs, decision, action

    def observed(self) -> Tree:
        """Return a copy of the observations, or their indices in the pool."""
        if self.pooled is not None:
            return np.array(self.pooled.rows)
        # Copied: the environment may reuse its buffers.
        return tree_map(np.copy, self.obs)

    def on_device(self, observed: Tree) -> Tree:
        """Return observations on the actor's device; a pool's are there already."""
        tensors = to_tensors(observed, self.device)
        return tensors if self.pool is None else tree_map(lambda x: x[tensors], self.pool)

    def segment(self, rows: list[StepRow], state: Tree, reward: torch.Tensor) -> Segment:
        """Return rows stacked into [T, B, ...] on the actor's device."""

        def stack(name: str) -> torch.Tensor:
            values = stacked([getattr(row, name) for row in rows])
            return to_tensors(values.astype(np.float32), self.device)

        decisions = [row.decision for row in rows]
        mask = stack("mask")
        steps = Steps(
            obs=self.on_device(tree_map(lambda *x: stacked(x), *[r.obs for r in rows])),
            action=stacked([d.action for d in decisions]),
            reward=stack("reward") * mask,
            discount=stack("discount"),
            mask=mask,
            extra=tree_map(lambda *x: stacked(x), *[d.extra for d in decisions]),
        )
        next_obs = self.on_device(self.observed())
        # Cloned: tensors made in inference mode may take no part in a gradient.
        state, next_state = tree_map(torch.clone, (state, self.state))
        return Segment(steps, next_obs, state, next_state, reward)

    @property
    def times(self) -> Times:
        return Times(self.env_s, self.inference_s, self.transfer_s)

    def take_played(self) -> Played:
        """Return what was played since the last call."""
        env_steps, self.env_steps = self.env_steps, 0
        episodes, self.episodes = self.episodes, []
        notices, self.notices = self.notices, []
        notices += self.algorithm.take_notices()
        return Played(env_steps, episodes, notices, self.times, self.explore)
