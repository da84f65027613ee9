"""Each rule finds its fault in made-up figures, and finds nothing in healthy ones."""

import math

import pytest

from rookery.config import TrapsConfig, default_config, to_values
from rookery.diagnostics.all_rules import find_faults
from rookery.diagnostics.history import MOST_ROWS_KEPT, History, first_step
from rookery.diagnostics.rules import RUN_RULES, Symptom, rule
from rookery.fields import flags_of

BASELINE = {"mean": 20.0, "half_width": 2.0, "episodes": 100}
HEALTHY = {
    "updates": 6_000,
    "episodes": 500,
    "episode_return_mean": 200.0,
    "episode_return_min": 20.0,
    "episode_return_max": 500.0,
    "episode_return_std": 80.0,
    "episode_length_mean": 200.0,
    "episode_length_std": 80.0,
    "episode_length_max": 500,
    "episode_truncated_share": 0.2,
    "grad_norm": 0.5,
    "kl": 0.01,
    "clip_fraction": 0.1,
    "gradient_norm/a": 0.3,
    "gradient_norm/b": 0.4,
    "update_ratio/a": 1e-3,
    "update_ratio/b": 2e-3,
    "dormant/a": 0.1,
    "saturated/a": 0.0,
    "target_change": 0.1,
    "policy_lag_mean": 2.0,
    "entropy_share": 0.6,
    "explained_variance": 0.8,
    "advantage_std": 2.0,
    "action_share/0": 0.4,
    "action_share/1": 0.6,
    "obs_min": -1.0,
    "obs_max": 3.0,
    "obs_constant": 0.0,
    "reward_min": 0.0,
    "reward_max": 1.0,
    "reward_mean": 0.9,
    "obs_std": 0.9,
    "target_std": 20.0,
    "target_mean": 40.0,
    "policy_loss": -0.005,
    "entropy": 0.4,
    "replay_weight_mean": 0.6,
    "target_min": 0.0,
    "target_max": 60.0,
    "epsilon": 0.05,
    "workers_alike": 0.0,
}
POOR = {"episode_return_mean": 21.0, "episode_return_std": 10.0}
"""No better than random."""


def history(changes=(), settings=(), rows=20, result=(), baseline=BASELINE):
    """Return a finished run's history with the same figures in every report, except `changes`: a
    value, or a function of the share of the run that is done."""
    config = to_values(default_config("ppo", "CartPole-v1")) | {"env_steps": 1000 * rows}
    for name, value in dict(settings).items():
        group, _, key = name.partition(".")
        config[group] = config[group] | {key: value}
    made = History(config, {"status": "finished"} | dict(result), baseline)
    for row in range(1, rows + 1):
        figures = HEALTHY | dict(changes) | {"env_steps": 1000 * row}
        made.add({n: v(row / rows) if callable(v) else v for n, v in figures.items()})
    return made


FAULTS = {
    "diverged": {"result": {"error": "training diverged: loss is nan"}},
    "gamma_short": {"settings": {"algo.gamma": 0.5}},
    "replay_small": {"settings": {"algo.capacity": 500}},
    "no_importance_weights": {"settings": {"algo.alpha": 0.6, "algo.beta": 0.0}},
    "importance_weights_dropped": {
        "settings": {"algo.alpha": 0.6, "algo.beta": 0.4},
        "changes": {"replay_weight_mean": 1.0},
    },
    "epsilon_stuck": {"changes": {"epsilon": 1.0}},
    "equal_seeds": {"changes": {"workers_alike": 1.0}},
    "reward_never_seen": {
        "changes": POOR | {"episode_return_min": 21.0, "episode_return_max": 21.0}
    },
    "obs_constant": {"changes": {"obs_constant": 1.0}},
    "obs_unscaled": {"changes": {"obs_max": 255.0}},
    "obs_statistics": {"settings": {"env.normalize_obs": True}, "changes": {"obs_std": 0.01}},
    "truncation_varies": {"changes": {"episode_truncated_share": 1.0}},
    "time_limit_terminates": {
        "changes": {
            "episode_truncated_share": 0.0,
            "episode_length_max": lambda done: 500 if done > 0.5 else 400 * done,
            "episode_length_mean": 495.0,
        }
    },
    "zero_gradient": {"changes": {"grad_norm": 0.0, "gradient_norm/a": 0.0}},
    "layer_without_gradient": {"changes": {"gradient_norm/b": 0.0, "update_ratio/b": 0.0}},
    "frozen_weights": {"changes": {"update_ratio/b": 0.0}},
    "target_never_moves": {"changes": {"target_change": 0.0}},
    "stale_actors": {"changes": {"policy_lag_mean": 200.0}},
    "dead_units": {"changes": {"dormant/a": lambda done: min(1.0, 2 * done)}},
    "saturated_units": {"changes": POOR | {"saturated/a": 0.97}},
    "learning_rate_high": {
        "changes": POOR | {"kl": lambda done: 20.0 if done < 0.1 else 0.0, "saturated/a": 1.0}
    },
    "learning_rate_low": {"changes": POOR | {"update_ratio/a": 1e-6, "update_ratio/b": 1e-5}},
    "exploding_gradient": {"changes": POOR | {"grad_norm": lambda done: 10 ** (6 * done)}},
    "advantage_scale": {
        "changes": {"advantage_std": 900.0},
        "settings": {"algo.normalize_advantage": False},
    },
    "entropy_collapse": {"changes": POOR | {"entropy_share": lambda done: max(0.0, 0.5 - done)}},
    "entropy_stuck": {"changes": {"entropy_share": 0.995}},
    "constant_actions": {"changes": POOR | {"action_share/0": 0.0, "action_share/1": 1.0}},
    "values_off_scale": {"changes": {"target_max": lambda done: 1e4 * done}},
    "value_not_learned": {
        "changes": POOR | {"explained_variance": 0.0, "target_std": 5.0, "target_mean": 20.0}
    },
    "reward_sign": {"changes": {"reward_mean": -1.0}},
    "worse_than_random": {"changes": {"episode_return_mean": 9.0, "episode_return_std": 1.0}},
    "not_learning": {"changes": POOR},
}


BUILT_IN = {
    name: each for name, each in RUN_RULES.items() if each.find.__module__.startswith("rookery.")
}


def test_every_rule_has_a_case():
    assert set(FAULTS) == set(BUILT_IN)


@pytest.mark.parametrize("name", FAULTS)
def test_rule_finds_its_fault_first(name):
    first, *_ = find_faults(history(**FAULTS[name]))
    assert first.rule == name
    assert first.text
    assert first.remedy
    assert first.source


def test_healthy_figures_have_no_finding():
    assert find_faults(history()) == []
    assert find_faults(history(baseline=None)) == []
    assert find_faults(history(rows=2)) == []


def test_a_cause_hides_its_symptoms():
    changes = POOR | {"grad_norm": 0.0, "gradient_norm/a": 0.0, "gradient_norm/b": 0.0}
    found = find_faults(history(changes | {"update_ratio/a": 0.0, "explained_variance": 0.0}))
    assert [finding.rule for finding in found] == ["zero_gradient"]


def test_step_is_that_since_which_the_figure_is_wrong():
    found = find_faults(history({"dormant/a": lambda done: float(done > 0.4)}))
    assert [(each.rule, each.step, each.column) for each in found] == [
        ("dead_units", 9_000, "dormant/a")
    ]
    series = history({"kl": lambda done: done}).series("kl")
    assert first_step(series, series.values > 0.5) == 11_000
    assert first_step(series, series.values < 2) == 1_000


def test_a_large_entropy_bonus_is_blamed_earlier():
    changes = {"entropy_share": 0.9, "entropy": 0.62}
    assert find_faults(history(changes)) == []
    (found,) = find_faults(history(changes, settings={"algo.entropy_coef": 1.0}))
    assert found.rule == "entropy_stuck"
    assert "124 times" in found.text


def test_values_of_episodes_that_terminate_are_bounded_by_their_length():
    # Twelve rewards of 1 with gamma 0.99 are worth 11.4; 50 is too much, unless they are truncated.
    changes = {"episode_length_max": 12, "target_max": 50.0, "episode_truncated_share": 0.0}
    (found,) = find_faults(history(changes))
    assert found.rule == "values_off_scale"
    assert "allow 11.4" in found.text
    assert find_faults(history(changes | {"episode_truncated_share": 0.5})) == []


def test_verdict_is_a_test_of_two_means():
    # Standard errors 2 / 1.96 and 30 / 10: the difference of 8 is 8 / 3.169 of them.
    verdict = history({"episode_return_mean": 28.0, "episode_return_std": 30.0}).verdict()
    assert verdict.kind == "equal"
    assert verdict.errors == pytest.approx(8 / math.hypot(2 / 1.96, 3.0))
    assert verdict.confidence == pytest.approx(0.98841, abs=1e-4)
    better = history({"episode_return_mean": 31.0, "episode_return_std": 30.0}).verdict()
    assert better.kind == "better"
    assert history(baseline=None).verdict().kind == "unknown"


def test_the_newest_reports_are_kept_while_a_run_goes_on():
    kept = History({"env_steps": 10**6})
    for step in range(2 * MOST_ROWS_KEPT):
        kept.add({"env_steps": step, "loss": float(step), "text": None, "bad": math.nan})
    series = kept.series("loss")
    assert len(series) <= MOST_ROWS_KEPT
    assert series.steps[-1] == series.values[-1] == 2 * MOST_ROWS_KEPT - 1
    assert (series.steps[1:] > series.steps[:-1]).all()
    assert len(kept.series("bad")) == 0
    assert kept.done == pytest.approx((2 * MOST_ROWS_KEPT - 1) / 10**6)


def test_a_user_adds_a_rule():
    @rule("too_slow", remedy="buy", source="us", explains=("not_learning",))
    def too_slow(seen):
        return Symptom("loss", 1.0, 0, "slow")

    try:
        assert [finding.rule for finding in find_faults(history(POOR))] == ["too_slow"]
    finally:
        del RUN_RULES["too_slow"]


def test_every_trap_has_a_setting():
    levels = {name for name in flags_of(TrapsConfig) if name != "level"}
    assert levels == {name for name, each in BUILT_IN.items() if each.is_trap}


def test_every_explained_rule_exists():
    assert {name for each in RUN_RULES.values() for name in each.explains} <= set(RUN_RULES)
