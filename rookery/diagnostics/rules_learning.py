"""Rules about gradients, weights, units, policy, values and the outcome of a run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rookery.diagnostics.history import History, Series, first_step
from rookery.diagnostics.rules import (
    LEARNING,
    LEAST_MEASUREMENTS,
    MEASURED,
    Symptom,
    all_equal,
    rule,
)

NEAR_UNIFORM = 0.97
COLLAPSED = 0.05
"""Entropy relative to the uniform policy's."""
DEAD = 0.8
SATURATED = 0.5
"""Share of a layer's units."""
HIGH_RATIO = 0.03
LOW_RATIO = 3e-5
"""Size of an update relative to the weights; 1e-3 is usual."""
HIGH_KL = 0.1
HIGH_CLIP = 0.4
MANY_UPDATES = 5_000
"""Updates after which a target network must have moved; twice the default period."""
STALE_UPDATES = 2_000
"""Updates by which an actor's weights may be old."""
WIDE_ADVANTAGES = 20.0
OFF_SCALE = 2.0
"""Largest value relative to the largest discounted sum of rewards."""


def late_layers(history: History, name: str) -> Iterator[tuple[str, Series, float]]:
    """Yield layer, series and late median of the columns `name/LAYER` with enough values."""
    for layer, series in history.by_layer(name):
        if len(series) >= LEAST_MEASUREMENTS:
            yield layer, series, float(np.median(series.late()))


# ---------------------------------------------------------------- gradient and weights


@rule(
    "zero_gradient",
    remedy="look for a detach or no_grad in the loss; 'rookery graph ALGO ENV' marks parameters"
    " that get no gradient",
    source="arithmetic",
    trap=True,
    explains=(
        *("layer_without_gradient", "frozen_weights", "learning_rate_low", "entropy_stuck"),
        *LEARNING,
    ),
)
def zero_gradient(history: History) -> Symptom | None:
    """No parameter gets a gradient."""
    norms = history.series("grad_norm")
    if not all_equal(norms.values[-LEAST_MEASUREMENTS:], 0.0):
        return None
    return Symptom("grad_norm", 0.0, first_step(norms, norms.values == 0), "the gradient is zero")


@rule(
    "layer_without_gradient",
    remedy="'rookery graph ALGO ENV' shows where the layer is cut off from the loss",
    source="arithmetic",
    trap=True,
    explains=("frozen_weights", *LEARNING),
)
def layer_without_gradient(history: History) -> Symptom | None:
    """A layer never gets a gradient."""
    for layer, series in history.by_layer("gradient_norm"):
        if all_equal(series.values, 0.0):
            text = f"the layer {layer} gets no gradient"
            return Symptom(f"gradient_norm/{layer}", 0.0, int(series.steps[0]), text)
    return None


@rule(
    "frozen_weights",
    remedy="look whether the optimizer has all parameters, and at algo.learning_rate",
    source="arithmetic",
    trap=True,
    explains=LEARNING,
)
def frozen_weights(history: History) -> Symptom | None:
    """A layer's weights do not change."""
    for layer, series in history.by_layer("update_ratio"):
        if all_equal(series.values, 0.0):
            text = f"the weights of {layer} stay the same"
            return Symptom(f"update_ratio/{layer}", 0.0, int(series.steps[0]), text)
    return None


@rule(
    "target_never_moves",
    remedy="lower algo.target_period, or set algo.target_tau",
    source="Mnih et al. 2015: the target is copied every 10,000 updates of millions",
    trap=True,
    explains=LEARNING,
)
def target_never_moves(history: History) -> Symptom | None:
    """The target network is still the first one."""
    change, updates = history.series("target_change"), history.last("updates") or 0
    enough = updates >= (MANY_UPDATES if history.done < 1 else MANY_UPDATES / 10)
    if not enough or not all_equal(change.values, 0.0):
        return None
    text = f"the target network did not change in {updates:,.0f} updates"
    return Symptom("target_change", 0.0, int(change.steps[0]), text)


@rule(
    "stale_actors",
    remedy="lower learner.publish_updates, or look at what holds the actors up",
    source="Horgan et al. 2018: actors fetch weights every 400 frames; " + MEASURED,
    trap=True,
    explains=LEARNING,
)
def stale_actors(history: History) -> Symptom | None:
    """Actors play with old weights."""
    lag, period = history.series("policy_lag_mean"), history.setting("learner.publish_updates")
    if len(lag) < LEAST_MEASUREMENTS or not isinstance(period, int):
        return None
    figure = float(np.median(lag.late()))
    if figure * period < STALE_UPDATES:
        return None
    text = f"actors play with weights that are {figure * period:,.0f} updates old"
    step = first_step(lag, lag.values * period > STALE_UPDATES)
    return Symptom("policy_lag_mean", figure, step, text)


# ---------------------------------------------------------------- units


@rule(
    "dead_units",
    remedy="lower algo.learning_rate, use another net.activation, or start from new weights",
    source="Sokar et al. 2023 (dormant units, tau 0.025); " + MEASURED,
    trap=True,
    explains=LEARNING,
)
def dead_units(history: History) -> Symptom | None:
    """Most units of a layer are dormant."""
    for layer, series, figure in late_layers(history, "dormant"):
        if figure >= DEAD:
            text = f"{100 * figure:.0f} % of the units of {layer} are dormant"
            return Symptom(
                f"dormant/{layer}", figure, first_step(series, series.values >= DEAD), text
            )
    return None


@rule(
    "saturated_units",
    remedy="scale the observations (--env.normalize_obs), or lower algo.learning_rate",
    source="Glorot and Bengio 2010; " + MEASURED,
    trap=True,
    explains=LEARNING,
)
def saturated_units(history: History) -> Symptom | None:
    """Most units of a layer are at a limit of their activation function."""
    for layer, series, figure in late_layers(history, "saturated"):
        if figure >= SATURATED:
            text = f"{100 * figure:.0f} % of the units of {layer} are saturated"
            step = first_step(series, series.values >= SATURATED)
            return Symptom(f"saturated/{layer}", figure, step, text)
    return None


# ---------------------------------------------------------------- size of updates


@rule(
    "learning_rate_high",
    remedy="lower algo.learning_rate by a factor of 3 to 10",
    source="updates of about 1e-3 of the weights are usual; PPO keeps KL at 0.01 to 0.03 (Schulman"
    " et al. 2017); " + MEASURED,
    trap=True,
    explains=(
        *("exploding_gradient", "entropy_collapse", "dead_units", "saturated_units"),
        *("values_off_scale", "constant_actions", *LEARNING),
    ),
)
def learning_rate_high(history: History) -> Symptom | None:
    """Updates change weights or policy by too much."""
    limits = {"kl": HIGH_KL, "clip_fraction": HIGH_CLIP}
    for name, limit in limits.items():
        series = history.series(name)
        if len(series) >= LEAST_MEASUREMENTS and np.median(series.values) > limit:
            figure = float(np.median(series.values))
            text = f"{name} is {figure:.3g} in the median, above {limit:g}"
            return Symptom(name, figure, int(series.steps[0]), text)
    found = [
        (float(np.median(s.values)), layer) for layer, s, _ in late_layers(history, "update_ratio")
    ]
    if not found or min(found)[0] < HIGH_RATIO:
        return None
    figure, layer = min(found)
    text = f"an update changes the weights of every layer by {100 * figure:.1f} % or more"
    first = next(history.by_layer("update_ratio"))[1]
    return Symptom(f"update_ratio/{layer}", figure, int(first.steps[0]), text)


@rule(
    "learning_rate_low",
    remedy="raise algo.learning_rate by a factor of 10",
    source="updates of about 1e-3 of the weights are usual; " + MEASURED,
    explains=("entropy_stuck", *LEARNING),
)
def learning_rate_low(history: History) -> Symptom | None:
    """Updates change no layer by enough to learn in the time."""
    found = []
    for layer, series in history.by_layer("update_ratio"):
        early = series.values[: max(1, len(series) // 2)]
        if len(series) >= LEAST_MEASUREMENTS and series.values.max() > 0:
            found.append((float(np.median(early)), layer))
    if not found or history.learned or max(found)[0] >= LOW_RATIO:
        return None
    figure, layer = max(found)
    text = f"an update changes the weights of no layer by more than {figure:.1e}"
    return Symptom(f"update_ratio/{layer}", figure, 0, text)


@rule(
    "exploding_gradient",
    remedy="lower algo.learning_rate or algo.max_grad_norm; look at the rewards' scale",
    source="Pascanu et al. 2013",
    trap=True,
)
def exploding_gradient(history: History) -> Symptom | None:
    """The gradient grew by orders of magnitude."""
    norms = history.series("grad_norm")
    if len(norms) < 4 * LEAST_MEASUREMENTS or history.learned:
        return None
    early = float(np.median(norms.values[: len(norms) // 4]))
    late = float(np.median(norms.late(0.25)))
    if late < 1_000 * max(early, 1e-6):
        return None
    text = f"the gradient's norm grew from {early:.2g} to {late:.2g}"
    return Symptom("grad_norm", late, first_step(norms, norms.values > 1_000 * early), text)


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
    if figure < NEAR_UNIFORM:
        return None
    text = f"the policy is still nearly uniform: {100 * figure:.1f} % of the highest entropy"
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
    parts = [
        history.series(name) for name in ("reward_min", "reward_max", "target_min", "target_max")
    ]
    if not isinstance(gamma, int | float) or gamma >= 1:
        return None
    if any(len(part) < LEAST_MEASUREMENTS for part in parts):
        return None
    reward_min, reward_max, target_min, target_max = (part.values for part in parts)
    reward = max(np.abs(reward_min).max(), np.abs(reward_max).max())
    limit = OFF_SCALE * (reward / (1 - gamma) + 1)
    sizes = np.maximum(np.abs(target_min), np.abs(target_max[: len(target_min)]))
    if np.median(sizes[-LEAST_MEASUREMENTS:]) <= limit:
        return None
    figure = float(sizes[-1])
    allowed = limit / OFF_SCALE
    text = f"value targets reach {figure:.3g}; rewards up to {reward:.3g} allow {allowed:.3g}"
    return Symptom("target_max", figure, first_step(parts[2], sizes > limit), text)


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
    figure = float(np.median(explained.late()))
    if figure > 0.1:
        return None
    text = f"values explain {100 * figure:.0f} % of the variance of the returns"
    return Symptom("explained_variance", figure, int(explained.steps[0]), text)


# ---------------------------------------------------------------- outcome


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
