"""Checks of an environment: pure functions over recorded plays, in one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from rookery.diagnostics.inspection_plays import Evidence, Play, ended_episodes, first_difference
from rookery.envs.spaces import Array, located, space_leaves
from rookery.envs.wrappers.episodes import leaf_check
from rookery.envs.wrappers.observations import MASK_KEY

Severity = Literal["error", "warning"]
FEW_EPISODES = 5
"""Episodes that must have ended before their ends are judged."""
FEW_ROWS = 100
"""Rows that must have been played before a constant observation is reported."""
ENDLESS_ROWS = 10_000
"""Rows without an end, in any lane, after which episodes count as endless."""
SHORTEST_LIMIT = 10
"""Episodes of fewer steps that always have the same length are taken for the task itself."""
REWARD_SCALE = (1e-3, 100.0)
"""Root mean square of the learner's rewards other than 0 that is not reported."""
NAMED_COMPONENTS = 8
"""Constant components that a message names."""


class Unchecked(NamedTuple):
    """Why a check could not be made."""

    reason: str


CheckOutcome = str | Unchecked | None
"""The fault in words, the reason why it is unknown, or None: there is none."""


class EnvCheck(NamedTuple):
    """One check of an environment."""

    name: str
    severity: Severity
    find: Callable[[Evidence], CheckOutcome]
    remedy: str


class Finding(NamedTuple):
    """A fault that a check has found."""

    check: str
    severity: Severity
    message: str
    remedy: str


CHECKS: list[EnvCheck] = []
"""All checks of `rookery inspect`, in the order in which they are made."""

Find = Callable[[Evidence], CheckOutcome]


def check(name: str, severity: Severity, remedy: str) -> Callable[[Find], Find]:
    """Return a decorator that adds a function to the checks."""

    def add(find: Find) -> Find:
        CHECKS.append(EnvCheck(name, severity, find, remedy))
        return find

    return add


def run_checks(evidence: Evidence) -> tuple[list[Finding], dict[str, str]]:
    """Return the findings, errors first, and the reasons of checks that could not be made."""
    findings, unchecked = [], {}
    for each in CHECKS:
        outcome = each.find(evidence)
        if isinstance(outcome, Unchecked):
            unchecked[each.name] = outcome.reason
        elif outcome is not None:
            findings.append(Finding(each.name, each.severity, outcome, each.remedy))
    findings.sort(key=lambda finding: finding.severity != "error")
    return findings, unchecked


@check("raises", "error", "correct the environment; 'rookery train' would stop at this")
def raises(e: Evidence) -> CheckOutcome:
    """An error of the environment that no other check explains."""
    explained = e.free.failure and (not_finite(e) or outside_space(e))
    return None if explained else e.free.failure


@check("nan", "error", "look for divisions by 0, logarithms of 0 and overflows in the environment")
def not_finite(e: Evidence) -> CheckOutcome:
    """NaN or infinity in observations or rewards."""
    for path, rows in e.free.obs.items():
        if np.issubdtype(rows.dtype, np.floating) and not np.isfinite(rows).all():
            row, lane = np.argwhere(~np.isfinite(rows))[0][:2]
            return f"the observation{located(path)} of row {row}, environment {lane}, is not finite"
    if not np.isfinite(e.free.reward).all():
        row, lane = np.argwhere(~np.isfinite(e.free.reward))[0]
        return f"the reward of row {row}, environment {lane}, is {e.free.reward[row, lane]}"
    return None


@check(
    "outside_space",
    "error",
    "correct the observation space; env.check_bounds=false accepts bounds that are estimates",
)
def outside_space(e: Evidence) -> CheckOutcome:
    """Finite observations that are not in the observation space, as the training guard sees it."""
    for path, leaf in space_leaves(e.obs_space):
        rows, in_space = e.free.obs[path], leaf_check(leaf, e.checks_bounds)
        if in_space is None or not len(rows):
            continue
        if isinstance(leaf, spaces.Box):
            rows = np.where(np.isfinite(rows), rows, np.clip(0, leaf.low, leaf.high))
        if wrong := in_space(rows.reshape(-1, *rows.shape[2:])):
            return f"the environment returned {wrong}{located(path)}"
    return None


@check(
    "seeding",
    "error",
    "draw every random number from self.np_random, which reset(seed=...) seeds, and set the"
    " whole state in reset",
)
def seed_repeats(e: Evidence) -> CheckOutcome:
    """The same seed and actions must give the same rows."""
    row = first_difference(e.free, e.repeated, e.repeated.rows)
    if row is None:
        return None
    where = "the first observations" if row < 0 else f"row {row}"
    return f"the same seed and actions in a new environment gave other values from {where} on"


@check(
    "copied_lanes",
    "error",
    "make a new environment at every call, and pass reset(seed=...) on to its generator",
)
def copied_lanes(e: Evidence) -> CheckOutcome:
    """Environments that run in parallel must not be copies of each other."""
    if e.shares_lanes:
        return "several of the parallel environments are the same Python object"
    lanes = e.free.reward.shape[1]
    if lanes < 2:
        return Unchecked("needs two environments")
    if not all(equal_lanes(each) for each in e.in_step) or len(e.in_step) < 2:
        return None
    random_seed = first_difference(e.in_step[0], e.in_step[1], e.in_step[1].rows) is not None
    if not random_seed and not starts_vary(e.free):
        return None  # nothing is random here, so that equal actions must give equal rows
    return f"with equal actions all {lanes} environments return equal rows, though they are random"


def equal_lanes(play: Play) -> bool:
    """True if all lanes of a play are equal."""
    columns = [play.reward, play.terminated, play.truncated, *play.obs.values()]
    return all(bool((column == column[:, :1]).all()) for column in columns)


def starts_vary(play: Play) -> bool:
    """True if episodes of the same lane begin with different observations."""
    rows = next((len(leaf) for leaf in play.obs.values()), 0)
    resetting = play.resetting[: max(rows - 1, 0)]
    for leaf in play.obs.values():
        first = leaf[0]
        for row, lane in np.argwhere(resetting):
            if not np.array_equal(leaf[row + 1, lane], first[lane]):
                return True
    return False


@check(
    "ignored_actions", "error", "check that step uses its action, and that a wrapper passes it on"
)
def ignores_actions(e: Evidence) -> CheckOutcome:
    """Other actions must lead to other rows."""
    if getattr(e.action_space, "n", 2) == 1:
        return Unchecked("there is only one action")
    rows = min(e.free.rows, e.other_actions.rows)
    if rows < 2:
        return Unchecked("no row was played")
    if first_difference(e.free, e.other_actions, rows) is not None:
        return None
    return f"other actions gave the same observations, rewards and ends in {rows} rows"


@check(
    "autoreset",
    "error",
    "reset on the step after the end (AutoresetMode.NEXT_STEP): that step ignores its action,"
    " pays 0 and returns the first observation",
)
def autoreset(e: Evidence) -> CheckOutcome:
    """The row after an episode's end must reset and ignore its action (NEXT_STEP)."""
    if e.free.final_in_info:
        return 'infos contain "final_obs": the last observation is not in the stream of rows'
    paid = e.free.reward[e.free.resetting]
    if np.any(paid != 0):
        return f"a row after an episode's end pays {paid[paid != 0][0]:g}, so it is no reset row"
    if e.after_ends is None:
        return Unchecked("no episode ended in the rows that were repeated")
    if first_difference(e.free, e.repeated, e.repeated.rows) is not None:
        return Unchecked("seeding does not repeat")
    row = first_difference(e.repeated, e.after_ends, e.repeated.rows)
    if row is None:
        return None
    return f"the action on the row after an episode's end has an effect (row {row})"


@check(
    "final_observation",
    "warning",
    "return the last observation of the episode from the step that ends it, and do not"
    " reset inside step",
)
def final_observation(e: Evidence) -> CheckOutcome:
    """An episode's last observation must not be the first one of the next episode."""
    if isinstance(autoreset(e), str):
        return None  # that explains it
    play = e.free
    kept = min((len(leaf) for leaf in play.obs.values()), default=0)
    ended = [each for each in ended_episodes(play) if each.row + 1 < kept]
    if len(ended) < FEW_EPISODES:
        return Unchecked(f"fewer than {FEW_EPISODES} episodes ended")
    resets = np.argwhere(play.resetting[: kept - 1])
    like_first, before_like_first = np.ones(len(ended), bool), np.ones(len(ended), bool)
    rows, lanes = np.array([x.row for x in ended]), np.array([x.lane for x in ended])
    for path, leaf in space_leaves(e.obs_space):
        obs = play.obs[path]
        firsts = np.concatenate([obs[0], obs[resets[:, 0] + 1, resets[:, 1]]])
        like_first &= among(firsts, obs[rows + 1, lanes], leaf)
        before_like_first &= among(firsts, obs[rows, lanes], leaf)
    if like_first.mean() < 0.8 or before_like_first.mean() > 0.5:
        return None
    return (
        f"the last observation of {np.count_nonzero(like_first)} of {len(ended)} episodes looks"
        " like the first one of an episode, and the one before it does not"
    )


def among(firsts: Array, values: Array, leaf: Space[Any]) -> Array:
    """Return for each of `values` [N, ...] if it lies among `firsts` [M, ...]: within twice their
    range for a Box, equal to one of them otherwise; [N]."""
    rest = tuple(range(1, values.ndim))
    if isinstance(leaf, spaces.Box):
        low, high = firsts.min(0).astype(np.float64), firsts.max(0).astype(np.float64)
        slack = (high - low) / 2
        return ((values >= low - slack) & (values <= high + slack)).all(axis=rest)
    known = {row.tobytes() for row in firsts}
    return np.array([value.tobytes() in known for value in values])


@check(
    "limit_terminates",
    "warning",
    "return truncated=True at a time limit, or let env.time_limit do it; if the task itself"
    " has this length, it is right as it is",
)
def limit_terminates(e: Evidence) -> CheckOutcome:
    """A time limit must truncate an episode, not terminate it."""
    ended = ended_episodes(e.free)
    if len(ended) < FEW_EPISODES:
        return Unchecked(f"fewer than {FEW_EPISODES} episodes ended")
    longest = max(each.length for each in ended)
    at_limit = [each for each in ended if each.length == longest]
    if longest < SHORTEST_LIMIT or any(each.truncated for each in at_limit):
        return None
    if len(at_limit) < max(FEW_EPISODES - 1, 0.25 * len(ended)):
        return None
    return (
        f"{len(at_limit)} of {len(ended)} episodes terminated after exactly {longest} steps, which"
        " looks like a time limit; training would take the future beyond it as worth 0"
    )


@check(
    "failure_truncates",
    "warning",
    "return terminated=True where the task has ended, by success or failure",
)
def failure_truncates(e: Evidence) -> CheckOutcome:
    """Truncation must come from a limit, not from success or failure."""
    ended = ended_episodes(e.free)
    cut = [each.length for each in ended if each.truncated and not each.terminated]
    if len(ended) < FEW_EPISODES:
        return Unchecked(f"fewer than {FEW_EPISODES} episodes ended")
    if len(set(cut)) < 3 or len(cut) < FEW_EPISODES:
        return None
    return (
        f"{len(cut)} episodes were truncated after {min(cut)} to {max(cut)} steps, so no time limit"
        " did it; training would go on to expect rewards beyond those ends"
    )


@check("endless", "warning", "set env.time_limit to a number of agent steps")
def endless(e: Evidence) -> CheckOutcome:
    """Episodes must end, if only by a time limit."""
    done, rows = e.free.terminated | e.free.truncated, e.free.rows
    if done.any() or e.free.failure:
        return None
    if e.time_limit is not None and rows <= e.time_limit:
        return None
    if e.time_limit is not None:
        return f"no episode ended in {rows:,} rows, beyond the time limit of {e.time_limit:,} steps"
    if rows < ENDLESS_ROWS:
        return Unchecked(f"no episode ended, but only {rows:,} rows were played; no limit is known")
    return f"no episode ended in {rows:,} rows of {done.shape[1]} environments; no limit is known"


@check(
    "constant_observation",
    "warning",
    "check that it is computed anew at every step; leave out what carries no information",
)
def constant(e: Evidence) -> CheckOutcome:
    """Observations must change."""
    for path, leaf in space_leaves(e.obs_space):
        rows = e.free.obs[path]
        if path[-1:] == (MASK_KEY,):
            continue
        if len(rows) < FEW_ROWS:
            return Unchecked(f"fewer than {FEW_ROWS} observations were recorded")
        still = (rows == rows[0, 0]).all(axis=(0, 1))
        if still.all():
            return f"the observation{located(path)} never changed in {len(rows):,} rows"
        vector = isinstance(leaf, spaces.Box) and len(leaf.shape) == 1
        if vector and still.any():
            which = np.flatnonzero(still)
            names = ", ".join(map(str, which[:NAMED_COMPONENTS]))
            more = ", ..." if len(which) > NAMED_COMPONENTS else ""
            return (
                f"{len(which)} of {still.size} components of the observation{located(path)} never"
                f" changed in {len(rows):,} rows: {names}{more}"
            )
    return None


@check("reused_buffers", "warning", "return a copy, obs.copy(), and change a copy of the actions")
def reused_buffers(e: Evidence) -> CheckOutcome:
    """Arrays that were handed over must not be changed afterwards."""
    if e.free.changed_actions:
        return "the environment writes into the array of actions that it is given"
    if e.shares_buffers:
        return "the observations of one environment change while another one is stepped"
    if e.overwrites:
        return "an observation changes after it was returned, when the next step is made"
    return None


@check(
    "reward_scale",
    "warning",
    "set env.normalize_reward=true or env.clip_reward=true, or scale rewards in the environment",
)
def reward_scale(e: Evidence) -> CheckOutcome:
    """The learner's rewards should be of the order of 1."""
    rewards = e.free.learner_reward
    rewards = rewards[~e.free.resetting[: len(rewards)]]
    rewards = rewards[np.isfinite(rewards) & (rewards != 0)]
    if not len(rewards):
        return None if e.free.rows else Unchecked("no row was played")
    scale = float(np.sqrt(np.mean(rewards**2)))
    if REWARD_SCALE[0] <= scale <= REWARD_SCALE[1]:
        return None
    return (
        f"rewards are of the order of {scale:.3g} (root mean square of those other than 0,"
        f" {rewards.min():.3g} to {rewards.max():.3g})"
    )


@check(
    "empty_mask",
    "error",
    'allow at least one action in every "action_mask" except after an episode\'s end',
)
def empty_masks(e: Evidence) -> CheckOutcome:
    """Some action must be legal wherever one is chosen."""
    if e.free.masks is None:
        return None
    none_legal = ~e.free.masks[: e.free.rows].any(-1) & ~e.free.resetting
    if not none_legal.any():
        return None
    row, lane = np.argwhere(none_legal)[0]
    return (
        f"no action is legal in {np.count_nonzero(none_legal):,} of {none_legal.size:,} masks,"
        f" first in row {row}, environment {lane}"
    )
