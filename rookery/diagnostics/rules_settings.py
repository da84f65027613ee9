"""Rules about numbers, settings and the environment of a run."""

from __future__ import annotations

import math

import numpy as np

from rookery.diagnostics.history import History, first_step
from rookery.diagnostics.rules import (
    LEARNING,
    LEAST_MEASUREMENTS,
    MEASURED,
    Symptom,
    all_equal,
    rule,
)

JUDGED_EPISODES = 100
UNSCALED = 50.0
"""Size of a network's input above which it counts as not scaled."""
NORMALIZED = 3.0
"""Deviation of normalised inputs, up or down from 1, that is still in order."""
SHORT_HORIZON = 10.0
SMALL_REPLAY = 2_000


# ---------------------------------------------------------------- numbers


@rule(
    "diverged",
    remedy="lower algo.learning_rate, look at the rewards' scale and at the observations"
    " (rookery inspect ENV); log.txt names the first layer and operation",
    source="IEEE arithmetic: nothing recovers from NaN",
    explains=(*LEARNING, "exploding_gradient", "values_off_scale", "learning_rate_high"),
)
def diverged(history: History) -> Symptom | None:
    """The run ended because a loss or gradient was not finite."""
    error = str((history.result or {}).get("error", ""))
    if "diverged" not in error:
        return None
    step = int(history.last("env_steps") or 0)
    return Symptom("loss", math.nan, step, f"the run stopped: {error}")


# ---------------------------------------------------------------- settings


@rule(
    "gamma_short",
    remedy="raise algo.gamma: 1 / (1 - gamma) steps ahead are seen, 0.99 sees 100",
    source="the effective horizon 1 / (1 - gamma); " + MEASURED,
    explains=LEARNING,
)
def gamma_short(history: History) -> Symptom | None:
    """The discount hides nearly all of an episode."""
    gamma, length = history.setting("algo.gamma"), history.last("episode_length_mean")
    if not isinstance(gamma, int | float) or length is None or gamma >= 1:
        return None
    horizon = 1 / (1 - gamma)
    # A discount near 0 is chosen for tasks whose actions have no later effect.
    if gamma <= 0.1 or horizon >= SHORT_HORIZON or horizon >= 0.1 * length:
        return None
    text = f"gamma {gamma:g} sees {horizon:.0f} steps ahead, episodes have {length:.0f} steps"
    return Symptom("algo.gamma", float(gamma), 0, text)


@rule(
    "replay_small",
    remedy="raise algo.capacity to ten thousand rows or more",
    source="Fedus et al. 2020; " + MEASURED,
    explains=LEARNING,
)
def replay_small(history: History) -> Symptom | None:
    """The replay memory forgets before it can be learned from."""
    capacity, length = history.setting("algo.capacity"), history.last("episode_length_mean") or 0.0
    lanes = history.setting("envs") or 1
    if not isinstance(capacity, int) or capacity >= max(SMALL_REPLAY, 2 * length * lanes):
        return None
    text = f"the replay memory holds {capacity:,} rows of {lanes} environments, whose episodes have"
    text += f" {length:.0f} steps"
    return Symptom("algo.capacity", float(capacity), 0, text)


@rule(
    "no_importance_weights",
    remedy="set algo.beta to 0.4 or more",
    source="Schaul et al. 2016, section 3.4",
)
def no_importance_weights(history: History) -> Symptom | None:
    """Prioritized draws are not corrected."""
    alpha, beta = history.setting("algo.alpha"), history.setting("algo.beta")
    if not alpha or beta != 0 or history.setting("algo.beta_end"):
        return None
    text = f"algo.alpha {alpha:g} draws by priority, and algo.beta 0 does not correct for it"
    return Symptom("algo.beta", 0.0, 0, text)


@rule(
    "importance_weights_dropped",
    remedy="multiply the loss of each row by its weight, Batch.weight",
    source="Schaul et al. 2016, section 3.4; " + MEASURED,
)
def importance_weights_dropped(history: History) -> Symptom | None:
    """Importance weights are all 1, although rows are drawn by priority."""
    alpha, beta = history.setting("algo.alpha"), history.setting("algo.beta")
    weights = history.series("replay_weight_mean")
    if not alpha or not beta or not all_equal(weights.values, 1.0):
        return None
    text = f"all importance weights are 1, with algo.alpha {alpha:g} and algo.beta {beta:g}"
    return Symptom("replay_weight_mean", 1.0, int(weights.steps[0]), text)


@rule(
    "epsilon_stuck",
    remedy="lower algo.epsilon_end or algo.epsilon_steps",
    source="Mnih et al. 2015: epsilon falls to 0.1 in a fiftieth of the run",
    explains=LEARNING,
)
def epsilon_stuck(history: History) -> Symptom | None:
    """Most actions are still random at the end."""
    epsilon = history.series("epsilon")
    if not len(epsilon) or history.done < 1 or epsilon.values[-1] <= 0.5:
        return None
    figure = float(epsilon.values[-1])
    text = f"{100 * figure:.0f} % of the actions are random at the end of the run"
    return Symptom("epsilon", figure, first_step(epsilon, epsilon.values > 0.5), text)


# ---------------------------------------------------------------- environment


@rule(
    "equal_seeds",
    remedy="give each worker its own seed; do not seed inside the environment",
    source="copies of one stream of experience are not more data",
    trap=True,
)
def equal_seeds(history: History) -> Symptom | None:
    """Workers play the same episodes."""
    alike = history.series("workers_alike")
    if len(alike) < LEAST_MEASUREMENTS or np.median(alike.values) < 0.9:
        return None
    figure = float(np.median(alike.values))
    text = f"{100 * figure:.0f} % of the episodes of a worker are those of another"
    return Symptom("workers_alike", figure, int(alike.steps[0]), text)


@rule(
    "reward_never_seen",
    remedy="explore more, shape the reward, or start from easier states; 'rookery inspect ENV'"
    " shows the rewards of random actions",
    source="no gradient without a difference in return",
    trap=True,
    explains=(*LEARNING, "entropy_stuck", "constant_actions", "learning_rate_low"),
)
def reward_never_seen(history: History) -> Symptom | None:
    """All episodes had the same return."""
    lowest, highest = history.series("episode_return_min"), history.series("episode_return_max")
    # Agents that learn well may see nothing in the first third of a run, as on Acrobot.
    if history.done < 0.5 or (history.last("episodes") or 0) < JUDGED_EPISODES or not len(lowest):
        return None
    if lowest.values.min() != highest.values.max():
        return None
    figure = float(lowest.values[-1])
    text = f"all episodes had the return {figure:g}: nothing tells good actions from bad ones"
    return Symptom("episode_return_max", figure, int(lowest.steps[0]), text)


@rule(
    "obs_constant",
    remedy="look at the observations with 'rookery inspect ENV'",
    source="a constant input has no information",
    trap=True,
    explains=LEARNING,
)
def obs_constant(history: History) -> Symptom | None:
    """The network sees the same input always."""
    share = history.series("obs_constant")
    if not all_equal(share.values, 1.0):
        return None
    text = "every component of the observations is constant"
    return Symptom("obs_constant", 1.0, int(share.steps[0]), text)


@rule(
    "obs_unscaled",
    remedy="set --env.normalize_obs, or scale the observations to about -1 to 1; pixels as uint8 in"
    " a Box from 0 to 255 are scaled by Rookery",
    source="LeCun et al. 1998; " + MEASURED,
    trap=True,
    explains=("saturated_units", "dead_units", "exploding_gradient", *LEARNING),
)
def obs_unscaled(history: History) -> Symptom | None:
    """The network's inputs are far from the size that its weights are made for."""
    low, high = history.series("obs_min"), history.series("obs_max")
    count = min(len(low), len(high))
    if count < LEAST_MEASUREMENTS:
        return None
    sizes = np.maximum(np.abs(low.values[:count]), np.abs(high.values[:count]))
    figure = float(np.median(sizes))
    if figure <= UNSCALED:
        return None
    text = f"the network's inputs reach {figure:.3g}; about 1 suits it"
    return Symptom("obs_max", figure, int(low.steps[0]), text)


@rule(
    "obs_statistics",
    remedy="look at the statistics of normalisation: the network's input must have a deviation near"
    " 1",
    source="by construction; " + MEASURED,
    explains=("learning_rate_low", *LEARNING),
)
def obs_statistics(history: History) -> Symptom | None:
    """Normalised observations are not on the scale 1."""
    spread = history.series("obs_std")
    if not history.setting("env.normalize_obs") or len(spread) < LEAST_MEASUREMENTS:
        return None
    figure = float(np.median(spread.late()))
    if 1 / NORMALIZED <= figure <= NORMALIZED:
        return None
    text = f"observations are normalised, but their deviation is {figure:.3g}"
    return Symptom("obs_std", figure, int(spread.steps[0]), text)


@rule(
    "truncation_varies",
    remedy="return terminated=True where the task ends, and truncated=True only at a time limit:"
    " a truncated episode is continued by the value of its last state",
    source="Pardo et al. 2018",
    explains=LEARNING,
)
def truncation_varies(history: History) -> Symptom | None:
    """All episodes end by truncation, but at different lengths: no time limit does that."""
    share, spread = history.series("episode_truncated_share"), history.series("episode_length_std")
    length = history.last("episode_length_mean")
    if not all_equal(share.values, 1.0) or not len(spread) or not length:
        return None
    figure = float(np.median(spread.values))
    if figure < 0.05 * length:
        return None
    text = (
        f"every episode is truncated, but after different numbers of steps (deviation {figure:.0f}"
        f" of {length:.0f}): terminations seem to be reported as truncation"
    )
    return Symptom("episode_truncated_share", 1.0, int(share.steps[0]), text)


@rule(
    "time_limit_terminates",
    remedy="report the end by a time limit as truncated=True, not as terminated=True",
    source="Pardo et al. 2018",
)
def time_limit_terminates(history: History) -> Symptom | None:
    """Episodes end by termination at a length that they reach and never exceed."""
    share, longest = history.series("episode_truncated_share"), history.series("episode_length_max")
    if not all_equal(share.values, 0.0) or len(longest) < LEAST_MEASUREMENTS:
        return None
    limit = longest.values.max()
    at_limit = longest.values == limit
    mean, first = history.last("episode_length_mean"), float(longest.values[0])
    if mean is None or mean < 0.9 * limit or first == limit or at_limit.sum() < LEAST_MEASUREMENTS:
        return None
    step = int(longest.steps[np.flatnonzero(at_limit)[0]])
    text = f"episodes became longer up to {limit:.0f} steps and then all terminate there"
    return Symptom("episode_length_max", float(limit), step, text)
