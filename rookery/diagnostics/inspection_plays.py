"""Plays for `rookery inspect`: rows that an environment returned to recorded or random actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space
from gymnasium.vector import VectorEnv

from rookery.data.tree import tree_leaves, tree_map
from rookery.envs.spaces import Array, Path, part_at, space_leaves
from rookery.envs.wrappers.episodes import BaseWrapper, Guard, Reset, Step, wrapper_chain
from rookery.envs.wrappers.observations import MASK_KEY
from rookery.errors import RunFailed

Choose = Callable[[int, Any], Array | None]
"""Function from a row's number and the observations to the actions; None ends the play."""
KEPT_BYTES = 96_000_000
"""Most bytes of observations that a play keeps; later rows have rewards and ends only."""


@dataclass(frozen=True)
class Play:
    """T rows of B environments, as the engine returned them to Rookery's wrappers.

    The action of row t was chosen at `obs[t]` and led to `obs[t + 1]`.
    """

    obs: dict[Path, Array]
    """Leaves of the observations, [up to T + 1, B, ...]."""
    action: Array
    """[T, B, ...]"""
    reward: Array
    """[T, B]"""
    learner_reward: Array
    """Rewards after clipping and normalisation, [T, B]."""
    terminated: Array
    """[T, B]"""
    truncated: Array
    """[T, B]"""
    masks: Array | None
    """Masks of legal actions in observations or infos, [T + 1, B, A]."""
    seconds: float
    """Time in the environments' `step`."""
    final_in_info: bool = False
    """True if an info had the key "final_obs", as in SAME_STEP autoreset mode."""
    changed_actions: bool = False
    """True if the environment wrote into an array of actions."""
    failure: str | None = None
    """Message of the error that ended the play."""

    @property
    def rows(self) -> int:
        """T."""
        return len(self.reward)

    @property
    def resetting(self) -> Array:
        """True for rows whose action is ignored, since the row before ended an episode, [T, B]."""
        done = self.terminated | self.truncated
        return np.concatenate([np.zeros_like(done[:1]), done[:-1]])


@dataclass(frozen=True)
class Evidence:
    """Recorded plays and facts that the checks judge."""

    free: Play
    """Random actions, different in every lane."""
    repeated: Play
    """Seed and actions of `free`, in new environments."""
    after_ends: Play | None
    """As `repeated`, but with other actions on reset rows; None: no episode ended soon enough."""
    other_actions: Play
    """The seed of `free` with other random actions."""
    in_step: list[Play]
    """Plays with other seeds in which all lanes get the actions of lane 0 of `free`; a second one
    is made only if all lanes of the first are equal."""
    obs_space: Space[Any]
    """Space of a single environment's observations, before Rookery's wrappers."""
    action_space: Space[Any]
    checks_bounds: bool = True
    """False: the bounds of the space are only estimates."""
    time_limit: int | None = None
    """Known time limit in agent steps."""
    shares_lanes: bool = False
    """True if several lanes are the same Python object."""
    overwrites: bool | None = None
    """True if a single environment changes an observation that it has returned; None: unknown."""
    shares_buffers: bool = False
    """True if the observations of one environment change while another is stepped."""


class Ended(NamedTuple):
    """A whole episode of a play."""

    lane: int
    row: int
    """Row of its last action."""
    length: int
    terminated: bool
    truncated: bool


def ended_episodes(play: Play) -> list[Ended]:
    """Return the episodes that ended, in order."""
    found = []
    lengths = np.zeros(play.reward.shape[1:], int)
    resetting = play.resetting
    for row in range(play.rows):
        lengths = np.where(resetting[row], 0, lengths + 1)
        done = (play.terminated[row] | play.truncated[row]) & ~resetting[row]
        for lane in np.flatnonzero(done):
            ends = bool(play.terminated[row, lane]), bool(play.truncated[row, lane])
            found.append(Ended(int(lane), row, int(lengths[lane]), *ends))
    return found


def first_difference(one: Play, other: Play, rows: int, lanes: Sequence[int] = ()) -> int | None:
    """Return the first of `rows` rows after which two plays differ, -1 for the first observations;
    None if they are equal. With `lanes` only those of both plays are compared."""
    if one.rows < rows or other.rows < rows:
        # One of them failed earlier than the other; rows beyond both cannot be compared.
        rows = max(min(one.rows, rows), min(other.rows, rows))
    chosen = list(lanes) or slice(None)
    pairs = [(one.obs[path], other.obs[path], 1) for path in one.obs]
    pairs += [
        (getattr(one, name), getattr(other, name), 0)
        for name in ("reward", "terminated", "truncated")
    ]
    found = []
    for mine, theirs, ahead in pairs:
        length = min(len(mine), len(theirs), rows + ahead)
        a, b = mine[:length, chosen], theirs[:length, chosen]
        same = (a == b) | ((a != a) & (b != b))
        rest = tuple(range(1, same.ndim))
        different = np.flatnonzero(~same.all(axis=rest))
        if len(different):
            found.append(int(different[0]) - ahead)
    if not found and min(one.rows, other.rows) < rows:
        found.append(min(one.rows, other.rows))
    return min(found, default=None)


class Tap(BaseWrapper):
    """Keeps copies of what a vector environment gets and returns."""

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        super().__init__(env)
        self.leaves = [path for path, _ in space_leaves(env.single_observation_space)]
        self.obs: list[list[Array]] = []
        self.kept = 0
        self.actions: list[Array] = []
        self.returned: list[tuple[Array, Array, Array]] = []
        self.masks: list[Array] = []
        self.seconds = 0.0
        self.final_in_info = self.changed_actions = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        obs, info = super().reset(seed=seed, options=options)
        self.keep(obs, info)
        return obs, info

    def step(self, actions: Any) -> Step:
        given = np.array(actions)
        start = time.perf_counter()
        obs, reward, terminated, truncated, info = self.env.step(actions)
        self.seconds += time.perf_counter() - start
        self.changed_actions |= not np.array_equal(given, actions)
        self.actions.append(given)
        self.returned.append((np.array(reward), np.array(terminated), np.array(truncated)))
        self.final_in_info |= "final_obs" in info or "final_observation" in info
        self.keep(obs, info)
        return obs, reward, terminated, truncated, info

    def keep(self, obs: Any, info: dict[str, Any]) -> None:
        """Keep the observations while there is room, and masks of legal actions."""
        mask = obs.get(MASK_KEY) if isinstance(obs, dict) else None
        mask = info.get(MASK_KEY) if mask is None else mask
        if mask is not None and np.ndim(mask) == 2 and np.all(info.get(f"_{MASK_KEY}", True)):
            self.masks.append(np.array(mask) != 0)
        if self.kept < KEPT_BYTES:
            rows = [np.array(part_at(obs, path)) for path in self.leaves]
            self.kept += sum(row.nbytes for row in rows)
            self.obs.append(rows)


def tapped(env: VectorEnv[Any, Any, Any]) -> Tap:
    """Insert a Tap between the engine and Rookery's wrappers, and return it."""
    guard = next(layer for layer in wrapper_chain(env) if isinstance(layer, Guard))
    guard.env = Tap(guard.env)
    return guard.env


def play_rows(
    env: VectorEnv[Any, Any, Any],
    choose: Choose,
    seed: int,
    enough: Callable[[int, int], bool],
) -> Play:
    """Play from a seeded reset until `enough(rows, ended episodes)`, or until the environment
    fails; then close it."""
    tap = tapped(env)
    learner_rewards: list[Array] = []
    failure, ended = None, 0
    try:
        obs, _ = env.reset(seed=seed)
        while not enough(len(tap.returned), ended):
            actions = choose(len(tap.returned), obs)
            if actions is None:
                break
            obs, reward, terminated, truncated, _ = env.step(actions)
            learner_rewards.append(np.array(reward, np.float64))
            ended += int(np.count_nonzero(terminated | truncated))
    except RunFailed as error:
        failure = str(error)
    finally:
        env.close()
    return play_of(tap, learner_rewards, failure)


def play_of(tap: Tap, learner_rewards: list[Array], failure: str | None) -> Play:
    """Return what a Tap has kept as a Play."""
    lanes, rows = tap.num_envs, len(tap.returned)
    reward, terminated, truncated = (
        np.array([row[i] for row in tap.returned]).reshape(rows, lanes) for i in range(3)
    )
    return Play(
        obs={
            path: np.array([row[i] for row in tap.obs]) if tap.obs else np.zeros((0, lanes))
            for i, path in enumerate(tap.leaves)
        },
        action=np.array(tap.actions),
        reward=reward.astype(np.float64),
        learner_reward=np.array(learner_rewards).reshape(len(learner_rewards), lanes),
        terminated=terminated.astype(bool),
        truncated=truncated.astype(bool),
        masks=np.array(tap.masks) if len(tap.masks) == rows + 1 else None,
        seconds=tap.seconds,
        final_in_info=tap.final_in_info,
        changed_actions=tap.changed_actions,
        failure=failure,
    )


def overwrites_observations(env: Any, actions: Array, seed: int) -> bool | None:
    """Return True if a single environment changes an observation after it has returned it, by the
    next step; None if no two steps could be made."""
    obs, _ = env.reset(seed=seed)
    steps = 0
    for action in actions:
        held = [np.asarray(part_at(obs, path)) for path, _ in space_leaves(env.observation_space)]
        copies = [leaf.copy() for leaf in held]
        obs, _, terminated, truncated, _ = env.step(action)
        steps += 1
        if not all(np.array_equal(a, b) for a, b in zip(held, copies, strict=True)):
            return True
        if terminated or truncated:
            break
    return False if steps >= 2 else None


def shares_observations(
    make: Callable[[], VectorEnv[Any, Any, Any]], action: Array, seed: int
) -> bool:
    """Return True if the observations of one vector environment change while another one, made by
    the same function, is stepped."""
    one, other = make(), make()
    try:
        obs, _ = one.reset(seed=seed)
        copy = tree_map(np.array, obs)
        other.reset(seed=seed + 1)
        other.step(action)
        return not same_tree(obs, copy)
    finally:
        one.close()
        other.close()


def same_tree(one: Any, other: Any) -> bool:
    """True if two nested observations are equal; NaN equals NaN."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
