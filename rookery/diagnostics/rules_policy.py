"""Rules about policy, values and the outcome of a run."""

from __future__ import annotations

import numpy as np

from rookery.diagnostics.history import History, first_step
from rookery.diagnostics.rules import (
    LEARNING,
    LEAST_MEASUREMENTS,
    MEASURED,
    Symptom,
    rule,
)

NEAR_UNIFORM, FAR_FROM_SURE, COLLAPSED = 0.97, 0.85, 0.05
"""Entropy relative to the uniform policy's."""
LARGE_BONUS = 10.0
"""Entropy bonus relative to the policy loss."""
WIDE_ADVANTAGES = 100.0
OFF_SCALE = 2.0
"""Size of a value relative to the largest discounted sum of rewards."""
FLAT_TARGETS = 0.05
"""Deviation of value targets relative to their mean, below which there is little to explain."""


# ---------------------------------------------------------------- policy


@rule(
    "advantage_scale",
    remedy="set algo.normalize_advantage, or scale the rewards (--env.normalize_reward)",
    source="Andrychowicz et al. 2021; " + MEASURED,
    explains=("exploding_gradient", "entropy_collapse", "values_off_scale", *LEARNING),
)
def advantage_scale(history: History) -> Symptom | None:
    """Advantages that are not normalised are large."""
    spread = history.series("advantage_std")
    if history.setting("algo.normalize_advantage") is not False or len(spread) < LEAST_MEASUREMENTS:
        return None
    figure = float(np.median(spread.values))
    if figure < WIDE_ADVANTAGES:
        return None
    text = f"advantages are not normalised, and their deviation is {figure:.3g}"
    return Symptom("advantage_std", figure, int(spread.steps[0]), text)


@rule(
    "entropy_collapse",
    remedy="raise algo.entropy_coef, or lower algo.learning_rate",
    source="Ahmed et al. 2019",
    trap=True,
    explains=("constant_actions", *LEARNING),
)
def entropy_collapse(history: History) -> Symptom | None:
    """The policy became deterministic before it was better than random."""
    share = history.series("entropy_share")
    if len(share) < LEAST_MEASUREMENTS or history.learned:
        return None
    if (share.values[-LEAST_MEASUREMENTS:] >= COLLAPSED).any():
        return None
    figure = float(share.values[-1])
    text = f"the policy's entropy fell to {100 * figure:.1f} % of the uniform policy's"
    text += ", and the return is no better than random"
    return Symptom("entropy_share", figure, first_step(share, share.values < COLLAPSED), text)


@rule(
    "entropy_stuck",
    remedy="lower algo.entropy_coef; if it is small, look whether rewards depend on actions"
    " ('rookery inspect ENV')",
    source=MEASURED,
    explains=LEARNING,
)
def entropy_stuck(history: History) -> Symptom | None:
    """The policy stays uniform."""
    share = history.series("entropy_share")
    if len(share) < LEAST_MEASUREMENTS or history.done < 0.5:
        return None
    figure = float(np.median(share.late()))
    bonus = (history.setting("algo.entropy_coef") or 0.0) * history.series("entropy").late()
    gain = np.abs(history.series("policy_loss").late()).mean() if len(bonus) else 0.0
    is_large = len(bonus) > 0 and bonus.mean() > LARGE_BONUS * gain
    if figure < (FAR_FROM_SURE if is_large else NEAR_UNIFORM):
        return None
    text = f"the policy stays nearly uniform: {100 * figure:.1f} % of the highest entropy"
    if is_large:
        text += f", and the entropy bonus is {bonus.mean() / max(gain, 1e-9):.0f} times the loss"
    return Symptom("entropy_share", figure, int(share.steps[0]), text)


@rule(
    "constant_actions",
    remedy="look at the action space and at exploration; 'rookery inspect ENV' says whether actions"
    " have an effect",
    source="arithmetic",
    trap=True,
    explains=LEARNING,
)
def constant_actions(history: History) -> Symptom | None:
    """One action is played always, without being better than random."""
    if history.learned:
        return None
    for action, series in history.by_layer("action_share"):
        newest = series.values[-LEAST_MEASUREMENTS:]
        if len(newest) == LEAST_MEASUREMENTS and (newest >= 0.999).all():
            text = f"action {action} is played always"
            step = first_step(series, series.values >= 0.999)
            return Symptom(f"action_share/{action}", float(newest[-1]), step, text)
    return None


# ---------------------------------------------------------------- values


@rule(
    "values_off_scale",
    remedy="lower algo.learning_rate, update the target network less often, or use algo.double",
    source="van Hasselt et al. 2018: no discounted sum exceeds the largest reward / (1 - gamma)",
    trap=True,
    explains=LEARNING,
)
def values_off_scale(history: History) -> Symptom | None:
    """Value targets exceed every possible discounted sum of the rewards."""
    gamma = history.setting("algo.gamma")
    names = ("reward_min", "reward_max", "target_min", "target_max")
    parts = [history.series(name) for name in names]
    enough = all(len(part) >= LEAST_MEASUREMENTS for part in parts)
    if not isinstance(gamma, int | float) or gamma >= 1 or not enough:
        return None
    lowest, highest, target_min, target_max = (part.values for part in parts)
    reward = float(max(np.abs(lowest).max(), np.abs(highest).max()))
    # A truncated episode is continued by the value of its last state, one that ended is not.
    longest = history.last("episode_length_max")
    truncated = history.last("episode_truncated_share")
    known = longest is not None and truncated == 0.0
    horizon = (1 - gamma ** (longest or 0.0) if known else 1.0) / (1 - gamma)
    limit = OFF_SCALE * (reward * horizon + 1)
    sizes = np.maximum(np.abs(target_min), np.abs(target_max))
    if np.median(sizes[-LEAST_MEASUREMENTS:]) <= limit:
        return None
    text = f"value targets reach {sizes[-1]:.3g}; rewards up to {reward:.3g}"
    text += f" allow {reward * horizon:.3g}"
    return Symptom("target_max", float(sizes[-1]), first_step(parts[2], sizes > limit), text)


@rule(
    "value_not_learned",
    remedy="raise algo.value_coef or algo.learning_rate, look at the rewards' scale and at whether"
    " observations tell states apart",
    source="explained variance near 0: values no better than their mean",
)
def value_not_learned(history: History) -> Symptom | None:
    """The value function explains nothing of the returns, and the agent has not learned."""
    explained = history.series("explained_variance")
    if len(explained) < LEAST_MEASUREMENTS or history.done < 0.5 or history.learned:
        return None
    spread, mean = history.last("target_std") or 0.0, history.last("target_mean") or 0.0
    figure = float(np.median(explained.late()))
    if figure > 0.1 or spread < FLAT_TARGETS * abs(mean):
        return None
    text = f"values explain {100 * figure:.0f} % of the variance of the returns"
    return Symptom("explained_variance", figure, int(explained.steps[0]), text)


# ---------------------------------------------------------------- outcome


@rule(
    "reward_sign",
    remedy="look for a minus sign between the environment's reward and the algorithm",
    source="the mean reward of a batch has the sign of return / length",
    explains=("worse_than_random", "entropy_collapse", "constant_actions", *LEARNING),
)
def reward_sign(history: History) -> Symptom | None:
    """The algorithm gets rewards of the opposite sign of the episodes' returns."""
    rewards, returns = history.series("reward_mean"), history.series("episode_return_mean")
    length = history.last("episode_length_mean")
    if len(rewards) < LEAST_MEASUREMENTS or not len(returns) or not length:
        return None
    per_step = float(np.median(returns.values)) / length
    learned_from = float(np.median(rewards.values))
    opposite = bool((np.sign(rewards.values) == -np.sign(per_step)).all()) and per_step != 0
    if not opposite or not 0.3 < abs(learned_from / per_step) < 10:
        return None
    text = f"rewards are {learned_from:.3g} in the mean where episodes have {per_step:.3g} a step"
    return Symptom("reward_mean", learned_from, int(rewards.steps[0]), text)


@rule(
    "worse_than_random",
    remedy="look at the sign of the reward and of the loss, and at the order of the actions",
    source="a policy that learns the opposite is below random",
    explains=("not_learning",),
)
def worse_than_random(history: History) -> Symptom | None:
    """The agent is worse than a random policy."""
    verdict = history.verdict()
    if verdict.kind != "worse" or history.done < 0.5 or verdict.mean is None:
        return None
    text = (
        f"the mean return {verdict.mean:.4g} is below that of a random policy, {verdict.random:.4g}"
    )
    return Symptom("episode_return_mean", verdict.mean, int(history.last("env_steps") or 0), text)


@rule(
    "not_learning",
    remedy="'rookery doctor ALGO' runs small tasks with known answers through the algorithm with"
    " your settings, 'rookery inspect ENV' checks the environment; then train longer",
    source="normal test of the mean return against that of a random policy",
)
def not_learning(history: History) -> Symptom | None:
    """The agent is no better than a random policy, and no rule says why."""
    verdict = history.verdict()
    if history.done < 0.5 or verdict.mean is None or verdict.kind != "equal":
        return None
    text = f"the mean return {verdict.mean:.4g} is no better than a random policy's"
    text += f" {verdict.random:.4g}"
    return Symptom("episode_return_mean", verdict.mean, int(history.last("env_steps") or 0), text)
