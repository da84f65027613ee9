"""Rules about units, gradients, weights and the size of updates."""

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

DEAD = 0.9
SATURATED = 0.95
"""Share of a layer's units."""
HIGH_RATIO = 0.03
LOW_RATIO = 1e-4
"""Size of an update relative to the weights; 1e-3 is usual."""
HIGH_KL = 0.5
HIGH_CLIP = 0.5
"""KL divergence and share of clipped ratios in a report; up to 0.02 and 0.1 are usual."""
MANY_UPDATES = 5_000
"""Updates after which a target network must have moved; twice the default period."""
STALE_UPDATES = 2_000
"""Updates by which an actor's weights may be old."""


def late_layers(history: History, name: str) -> Iterator[tuple[str, Series, float]]:
    """Yield layer, series and late median of the columns `name/LAYER` with enough values."""
    for layer, series in history.by_layer(name):
        if len(series) >= LEAST_MEASUREMENTS:
            yield layer, series, float(np.median(series.late()))


def layer_at_zero(history: History, name: str, text: str) -> Symptom | None:
    """Return a symptom for the first layer whose column `name/LAYER` is 0 in every report; its
    name is put into `text`."""
    for layer, series in history.by_layer(name):
        if all_equal(series.values, 0.0):
            return Symptom(f"{name}/{layer}", 0.0, int(series.steps[0]), text.format(layer))
    return None


# ---------------------------------------------------------------- units


@rule(
    "dead_units",
    remedy="lower algo.learning_rate, use another net.activation, or start from new weights",
    source="Sokar et al. 2023 (dormant units, tau 0.025); " + MEASURED,
    trap=True,
    explains=("zero_gradient", "layer_without_gradient", "frozen_weights", *LEARNING),
)
def dead_units(history: History) -> Symptom | None:
    """Most units of a layer are dormant."""
    for layer, series, figure in late_layers(history, "dormant"):
        if figure >= DEAD:
            text = f"{100 * figure:.0f} % of the units of {layer} are dormant"
            step = first_step(series, series.values >= DEAD)
            return Symptom(f"dormant/{layer}", figure, step, text)
    return None


@rule(
    "saturated_units",
    remedy="scale the observations (--env.normalize_obs), or lower algo.learning_rate",
    source="Glorot and Bengio 2010; " + MEASURED,
    trap=True,
    explains=LEARNING,
)
def saturated_units(history: History) -> Symptom | None:
    """Nearly all units of a layer are at a limit of their activation function, and the agent has
    not learned. Value networks of healthy agents may be so."""
    if history.learned:
        return None
    for layer, series, figure in late_layers(history, "saturated"):
        if figure >= SATURATED and not layer.startswith("value"):
            text = f"{100 * figure:.0f} % of the units of {layer} are saturated"
            step = first_step(series, series.values >= SATURATED)
            return Symptom(f"saturated/{layer}", figure, step, text)
    return None


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
    explains=("frozen_weights", "entropy_stuck", *LEARNING),
)
def layer_without_gradient(history: History) -> Symptom | None:
    """A layer never gets a gradient."""
    return layer_at_zero(history, "gradient_norm", "the layer {} gets no gradient")


@rule(
    "frozen_weights",
    remedy="look whether the optimizer has all parameters, and at algo.learning_rate",
    source="arithmetic",
    trap=True,
    explains=LEARNING,
)
def frozen_weights(history: History) -> Symptom | None:
    """A layer's weights do not change."""
    return layer_at_zero(history, "update_ratio", "the weights of {} stay the same")


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


# ---------------------------------------------------------------- size of updates


@rule(
    "learning_rate_high",
    remedy="lower algo.learning_rate by a factor of 3 to 10",
    source="updates of about 1e-3 of the weights are usual; PPO keeps KL at 0.01 to 0.03 (Schulman"
    " et al. 2017); " + MEASURED,
    trap=True,
    explains=(
        *("exploding_gradient", "entropy_collapse", "dead_units", "saturated_units"),
        *("values_off_scale", "constant_actions", "layer_without_gradient", "zero_gradient"),
        *("frozen_weights", "worse_than_random", *LEARNING),
    ),
)
def learning_rate_high(history: History) -> Symptom | None:
    """Updates change weights or policy by too much."""
    for name, limit, usual in (("kl", HIGH_KL, 0.02), ("clip_fraction", HIGH_CLIP, 0.1)):
        series = history.series(name)
        if len(series) and series.values.max() > limit:
            figure = float(series.values.max())
            text = f"{name} reached {figure:.3g}; up to {usual:g} is usual"
            return Symptom(name, figure, int(series.steps[series.values.argmax()]), text)
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
    figure = float(np.median([ratio for ratio, _ in found])) if found else LOW_RATIO
    if figure >= LOW_RATIO:
        return None
    layer = min(found, key=lambda each: abs(each[0] - figure))[1]
    text = f"an update changes the weights of a layer by {figure:.1e} of their size"
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
