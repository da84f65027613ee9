"""Inspection of an environment as training uses it: facts, checks, and the random return."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from rookery.algorithms.base import Spaces
from rookery.diagnostics import inspection_timing as inspection_timing  # adds its checks
from rookery.diagnostics.inspection_checks import (
    CHECKS,
    ENDLESS_ROWS,
    Finding,
    equal_lanes,
    run_checks,
)
from rookery.diagnostics.inspection_plays import (
    Choose,
    Evidence,
    Play,
    ended_episodes,
    first_difference,
    overwrites_observations,
    play_rows,
    shares_observations,
)
from rookery.diagnostics.random_baseline import Baseline, cached_or_measured
from rookery.envs import EnvOptions, make_env, plays_atari
from rookery.envs.engines.atari import MAX_EPISODE_FRAMES
from rookery.envs.factory import resolve_options
from rookery.envs.registry import is_served
from rookery.envs.spaces import Array, dotted, space_leaves
from rookery.envs.wrappers.episodes import estimated_bounds, wrapper_chain
from rookery.envs.wrappers.observations import MASK_KEY
from rookery.learning.policy import RandomPolicy

LEAST_ROWS, MOST_ROWS = 500, ENDLESS_ROWS
ENOUGH_EPISODES = 12
"""Random play ends after LEAST_ROWS rows and so many episodes, or MOST_ROWS, or its time."""
REPEATED_ROWS = 200
REPEATED_S = 3.0
"""Plays that are compared with random play have so many rows, or as many as this time allows."""
ROWS_AFTER_END = 20
HELD_STEPS = 20
"""Steps of the check for observations that are overwritten."""


@dataclass(frozen=True)
class Inspection:
    """Result of an inspection."""

    facts: dict[str, Any]
    """Facts by name, in types of JSON."""
    findings: list[Finding]
    """Faults, errors first."""
    unchecked: dict[str, str]
    """Checks that could not be made, with the reason."""
    baseline: Baseline | None
    """Return of the random policy; None if it could not be measured in the time."""

    def to_dict(self) -> dict[str, Any]:
        """Return facts, findings and the state of every check."""
        found = {finding.check: finding.severity for finding in self.findings}
        states = {check.name: found.get(check.name, "passed") for check in CHECKS}
        return {
            **self.facts,
            "random_return": None if self.baseline is None else self.baseline._asdict(),
            "findings": [finding._asdict() for finding in self.findings],
            "checks": states | dict.fromkeys(self.unchecked, "not checked"),
            "not_checked": self.unchecked,
        }


def inspect_env(
    name: str,
    options: EnvOptions | None = None,
    *,
    num_envs: int = 4,
    seed: int = 1,
    seconds: float = 10.0,
) -> Inspection:
    """Return facts and findings about an environment; random play, and the measurement of the
    random return, take at most `seconds` each."""
    options = options or EnvOptions()
    make = partial(make_env, name, options, num_envs=num_envs)
    described = make()
    facts = env_facts(name, options, described)
    checks_bounds = options.check_bounds and not estimated_bounds(raw_env(described), name)
    described.close()
    evidence = gather_evidence(name, make, seed, seconds, facts["time_limit"], checks_bounds)
    findings, unchecked = run_checks(evidence)
    facts |= played(evidence)
    broken = evidence.free.failure is not None or not evidence.free.rows
    baseline = None if broken else cached_or_measured(name, options, seconds)
    return Inspection(facts, findings, unchecked, baseline)


def gather_evidence(
    name: str,
    make: Callable[[], VectorEnv[Any, Any, Any]],
    seed: int,
    seconds: float,
    time_limit: int | None,
    checks_bounds: bool,
) -> Evidence:
    """Play an environment in several ways and return what the checks need."""
    env = make()
    obs_space, action_space = raw_env(env).single_observation_space, env.single_action_space
    shares_lanes = same_objects(raw_env(env))
    free = play_rows(env, random_actions(env, seed), seed, until(seconds))
    actions, masked = free.action, free.masks is not None
    row_s = free.seconds / max(free.rows, 1)
    affordable = max(20, int(REPEATED_S / max(row_s, 1e-9)))
    rows = min(REPEATED_ROWS, affordable, free.rows)
    end = next((each.row for each in ended_episodes(free)), free.rows)
    has_end = end + 2 <= min(affordable, free.rows)
    long = min(max(rows, end + ROWS_AFTER_END), affordable, free.rows) if has_end else rows
    in_step: list[Play] = []
    for i in range(1, 3):
        if not in_step or equal_lanes(in_step[0]):
            env = make()
            in_step.append(
                play_rows(env, led_by_first(actions, masked), seed + 1000 * i, stop_at(rows))
            )
    other = make()
    return Evidence(
        free=free,
        repeated=play_rows(make(), replayed(actions), seed, stop_at(long)),
        after_ends=(
            play_rows(make(), replayed(changed_after_ends(free, action_space)), seed, stop_at(long))
            if has_end
            else None
        ),
        other_actions=play_rows(other, random_actions(other, seed + 1), seed, stop_at(rows)),
        in_step=in_step,
        obs_space=obs_space,
        action_space=action_space,
        checks_bounds=checks_bounds,
        time_limit=time_limit,
        shares_lanes=shares_lanes,
        overwrites=overwrites(make, actions, seed) if free.rows else None,
        shares_buffers=(
            free.failure is None
            and not is_served(name)
            and shares_observations(make, actions[0], seed)
        ),
    )


def until(seconds: float) -> Callable[[int, int], bool]:
    """Return when random play is long enough."""
    end = time.monotonic() + seconds

    def enough(rows: int, ended: int) -> bool:
        done = rows >= LEAST_ROWS and ended >= ENOUGH_EPISODES
        return done or rows >= MOST_ROWS or time.monotonic() >= end

    return enough


def stop_at(rows: int) -> Callable[[int, int], bool]:
    """Return a function that is True after `rows` rows."""
    return lambda played, ended: played >= rows


def random_actions(env: VectorEnv[Any, Any, Any], seed: int) -> Choose:
    """Return a choice of random legal actions."""
    policy = RandomPolicy(Spaces(env.single_observation_space, env.single_action_space), seed)
    lanes = env.num_envs
    return lambda row, obs: policy.decide(obs, np.zeros(lanes), lanes)[0]


def replayed(actions: Array) -> Choose:
    """Return a choice of recorded actions [T, B, ...]."""
    return lambda row, obs: np.array(actions[row])


def changed_after_ends(free: Play, space: Any) -> Array:
    """Return the actions of a play with others on its reset rows."""
    actions = free.action.copy()
    space.seed(0)
    for row, lane in np.argwhere(free.resetting):
        for _ in range(20):
            actions[row, lane] = space.sample()
            if not np.array_equal(actions[row, lane], free.action[row, lane]):
                break
    return actions


def led_by_first(actions: Array, masked: bool) -> Choose:
    """Return a choice that gives the recorded actions of lane 0 to all lanes; it ends the play
    where a mask of another lane may forbid that."""

    def choose(row: int, obs: Any) -> Array | None:
        if masked and isinstance(obs, dict) and MASK_KEY in obs:
            masks = obs[MASK_KEY].reshape(len(obs[MASK_KEY]), -1)
            if not (masks == masks[0]).all():
                return None
        return np.broadcast_to(actions[row, :1], actions[row].shape).copy()

    return choose


def overwrites(
    make: Callable[[], VectorEnv[Any, Any, Any]], actions: Array, seed: int
) -> bool | None:
    """Return True if single environments change observations that they have returned; None if the
    engine steps no single environments, or they fail."""
    env = make()
    try:
        singles = getattr(raw_env(env), "envs", None)
        if not singles:
            return None
        return overwrites_observations(singles[0], actions[:HELD_STEPS, 0], seed)
    except Exception:
        return None
    finally:
        env.close()


def raw_env(env: VectorEnv[Any, Any, Any]) -> Any:
    """Return the engine's vector environment inside Rookery's wrappers."""
    return list(wrapper_chain(env))[-1] if not hasattr(env, "envs") else env


def same_objects(raw: Any) -> bool:
    """True if a for-loop engine steps one Python object in several lanes."""
    singles = getattr(raw, "envs", None) or []
    return len({id(env.unwrapped) for env in singles}) < len(singles)


def env_facts(name: str, options: EnvOptions, env: Any) -> dict[str, Any]:
    """Return spaces, engine, wrappers and limits of an environment."""
    raw, resolved = raw_env(env), resolve_options(name, options)
    single = (getattr(raw, "envs", None) or [None])[0]
    limit = resolved.time_limit or getattr(env.spec, "max_episode_steps", None)
    if limit is None and plays_atari(name):
        limit = MAX_EPISODE_FRAMES // (resolved.frame_skip or 1)
    return {
        "environment": name,
        "engine": env.engine,
        "num_envs": env.num_envs,
        "observation_space": space_text(raw.single_observation_space),
        "network_input": space_text(env.single_observation_space),
        "action_space": space_text(env.single_action_space),
        "wrappers": [type(layer).__name__ for layer in wrapper_chain(env)],
        "single_wrappers": [type(layer).__name__ for layer in wrapper_chain(single)],
        "autoreset": env.metadata["autoreset_mode"].name,
        "frame_skip": resolved.frame_skip or 1,
        "frame_stack": resolved.frame_stack or 1,
        "time_limit": limit,
    }


def space_text(space: Any) -> str:
    """Return a space in a line; a Box with its shape, type and widest bounds."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        leaves = (f"{dotted(path)}: {space_text(leaf)}" for path, leaf in space_leaves(space))
        return "{" + ", ".join(leaves) + "}"
    if isinstance(space, spaces.Box):
        shape = "x".join(map(str, space.shape)) or "scalar"
        return f"Box {shape} {space.dtype} in [{space.low.min():.4g}, {space.high.max():.4g}]"
    return " ".join(str(space).split())


def played(evidence: Evidence) -> dict[str, Any]:
    """Return what the plays show: speed, rewards, episodes, seeds and ranges."""
    free, ended = evidence.free, ended_episodes(evidence.free)
    lanes = free.reward.shape[1]
    rewards = free.reward[~free.resetting]
    lengths = [each.length for each in ended]
    same = first_difference(free, evidence.repeated, evidence.repeated.rows) is None
    seeds = first_difference(free, evidence.in_step[0], evidence.in_step[0].rows, [0]) is not None
    return {
        "rows": free.rows,
        "env_steps_per_second": lanes * free.rows / free.seconds if free.seconds else None,
        "reward_min": float(rewards.min()) if len(rewards) else None,
        "reward_max": float(rewards.max()) if len(rewards) else None,
        "episodes": len(ended),
        "terminated": sum(each.terminated for each in ended),
        "truncated": sum(each.truncated and not each.terminated for each in ended),
        "length_min": min(lengths, default=None),
        "length_max": max(lengths, default=None),
        "same_seed_repeats": same,
        "other_seed_differs": seeds,
        "lanes_differ": lanes > 1 and not equal_lanes(evidence.in_step[0]),
        "ranges": {
            dotted(path) or "observation": [float(rows.min()), float(rows.max())]
            for path, rows in free.obs.items()
            if rows.size
        },
    }
