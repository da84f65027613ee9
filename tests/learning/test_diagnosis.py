"""What an update's diagnosis reports: against plain torch, and without changing the update."""

import copy
import math

import pytest
import torch
from scenes import CPU, FLAT, Lanes, Loop, a_batch, make, ppo

from rookery.algorithms.apex import ApeX
from rookery.algorithms.dqn import DQN
from rookery.algorithms.ppo import PPO
from rookery.algorithms.r2d2 import R2D2
from rookery.algorithms.vpg import VPG
from rookery.data.tree import flatten_time
from rookery.learning.diagnosis import (
    SAMPLE_ROWS,
    Diagnosis,
    DiagnosisSpec,
    action_columns,
    layer_columns,
    sample_of,
)
from rookery.learning.learner import Learner, LearnerConfig
from rookery.learning.reduce import Reducer
from rookery.networks.build import NetConfig

LSTM = NetConfig(hidden=(8,), core="lstm", core_size=6)
KINDS = {
    "ppo": (PPO, None, {"rollout_steps": 8, "minibatches": 2}),
    "ppo recurrent": (PPO, LSTM, {"rollout_steps": 8, "minibatches": 2}),
    "vpg": (VPG, None, {"episodes": 4}),
    "dqn": (DQN, None, {"batch_size": 8, "warm_up": 32, "capacity": 512}),
    "dqn c51": (DQN, None, {"batch_size": 8, "warm_up": 32, "capacity": 512, "atoms": 11}),
    "apex": (ApeX, None, {"batch_size": 8, "warm_up": 32, "capacity": 512}),
    "r2d2": (
        R2D2,
        LSTM,
        {"batch_size": 4, "warm_up": 64, "capacity": 1024, "burn_in": 2, "unroll": 8},
    ),
}


def learner_of(algorithm, diagnose, **settings):
    spec = DiagnosisSpec(diagnose)
    return Learner(algorithm, LearnerConfig(**settings), Reducer(), CPU, diagnose=spec)


def trained(kind, diagnose, rounds=30):
    """Return the loop of a short run that measures every `diagnose` updates."""
    algorithm_class, net, settings = KINDS[kind]
    env = Lanes([[(3, "terminated"), (5, "truncated")]] * 4)
    algorithm = make(algorithm_class, env, net, **settings)
    return Loop(algorithm, env, learner=learner_of(algorithm, diagnose)).run(rounds)


@pytest.mark.parametrize("kind", KINDS)
def test_measuring_changes_no_weight(kind):
    with_it, without = trained(kind, 1), trained(kind, 0)
    assert with_it.learner.updates > 2
    assert torch.equal(with_it.learner.flat.values, without.learner.flat.values)


@pytest.mark.parametrize("kind", KINDS)
def test_every_algorithm_reports_layers_policy_values_and_data(kind):
    learner = trained(kind, 1).learner
    columns = learner.take_metrics()
    names = {name.partition("/")[0] for name in columns}
    assert {"gradient_norm", "weight_norm", "update_ratio", "dormant", "feature_rank"} <= names
    assert {"policy_churn", "target_min", "target_max", "reward_mean", "obs_max"} <= names
    assert all(math.isfinite(value) for value in columns.values())
    layers = {name.partition("/")[2] for name in columns if name.startswith("gradient_norm/")}
    parameters = dict(learner.algorithm.network.named_parameters())
    assert layers == {name.rpartition(".")[0] for name in parameters}
    assert ("target_distance" in names) == ("target" in learner.algorithm.saved())
    assert "policy_churn" not in learner.take_metrics()


def test_columns_of_an_update_by_hand():
    algorithm = ppo(learning_rate=0.1, normalize_advantage=False)
    learner, batch = learner_of(algorithm, 1), a_batch(algorithm, 1, 12)
    del batch.steps.extra["return"]  # of VPG
    weights = copy.deepcopy(dict(algorithm.network.named_parameters()))
    obs = flatten_time(batch.steps.obs)
    greedy = algorithm.network.policy(obs).argmax(-1)
    learner.update(batch)
    columns = learner.take_metrics()
    for layer in ("policy_trunk.dense.0", "value_head"):
        names = [f"{layer}.weight", f"{layer}.bias"]
        now = dict(algorithm.network.named_parameters())
        before = torch.cat([weights[name].detach().flatten() for name in names])
        after = torch.cat([now[name].detach().flatten() for name in names])
        step = (after - before).norm()
        gradient = torch.cat([now[name].grad.flatten() for name in names])
        # Plain gradient descent: the step is 0.1 times the gradient.
        assert columns[f"gradient_norm/{layer}"] == pytest.approx(float(step) / 0.1, rel=1e-4)
        assert columns[f"gradient_norm/{layer}"] == pytest.approx(float(gradient.norm()))
        assert columns[f"update_ratio/{layer}"] == pytest.approx(float(step / before.norm()))
        assert columns[f"weight_norm/{layer}"] == pytest.approx(float(after.norm()))
    changed = algorithm.network.policy(obs).argmax(-1) != greedy
    assert columns["policy_churn"] == pytest.approx(float(changed.float().mean()))
    kept = batch.steps.mask.bool()
    advantage, value = (batch.steps.extra[name][kept] for name in ("advantage", "value"))
    assert columns["advantage_mean"] == pytest.approx(float(advantage.mean()))
    assert columns["target_max"] == pytest.approx(float((advantage + value).max()))
    explained = 1 - advantage.var() / (advantage + value).var()
    assert columns["explained_variance"] == pytest.approx(float(explained), rel=1e-4)
    shares = [columns[f"action_share/{a}"] for a in range(4)]
    expected = torch.bincount(batch.steps.action[kept], minlength=4) / kept.sum()
    assert shares == pytest.approx(expected.tolist())
    assert sum(shares) == pytest.approx(1)
    # The weights of a new policy's head are 0, and one step leaves it near the uniform policy.
    assert 0.9 < columns["entropy_share"] <= 1.000001
    assert columns["obs_max"] == pytest.approx(float(obs.max()))
    assert columns["obs_constant"] == 0


def test_first_update_of_a_layer_that_starts_at_zero_has_ratio_one():
    layer = torch.nn.Linear(3, 2)
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
        torch.nn.init.constant_(parameter, 0.01)
    before = {name: torch.zeros_like(parameter) for name, parameter in layer.named_parameters()}
    columns = layer_columns(layer, before)
    assert columns["update_ratio/"] == pytest.approx(1)


def test_a_constant_component_of_the_observation_is_counted():
    algorithm = ppo()
    learner, batch = learner_of(algorithm, 1), a_batch(algorithm, 1, 12)
    batch.steps.obs[..., 1] = 5.0
    learner.update(batch)
    assert learner.take_metrics()["obs_constant"] == pytest.approx(1 / 3)


def test_target_columns_show_when_the_target_network_moves():
    algorithm = make(DQN, FLAT, batch_size=8, warm_up=1, capacity=64, target_period=2)
    diagnosis = Diagnosis(algorithm, DiagnosisSpec(1))
    assert diagnosis.target_columns() == {"target_distance": 0}
    with torch.no_grad():
        for parameter in algorithm.network.parameters():
            parameter += 1
    moved = diagnosis.target_columns()
    assert moved["target_distance"] > 0
    assert moved["target_change"] == 0
    algorithm.after_update(2)
    copied = diagnosis.target_columns()
    assert copied["target_distance"] == 0
    assert copied["target_change"] == pytest.approx(float(moved["target_distance"]))


def test_continuous_actions_have_means_and_deviations():
    columns = action_columns(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    expected = {"action_mean/0": 2, "action_mean/1": 0, "action_std/0": 1, "action_std/1": 0}
    assert {name: float(value) for name, value in columns.items()} == expected
    assert action_columns(torch.zeros(5, 40)) == {}
    assert action_columns(torch.tensor([0, 39])) == {}


def test_every_n_updates_are_measured():
    algorithm = ppo()
    learner = learner_of(algorithm, 3)
    measured = []
    for update in range(7):
        learner.update(a_batch(algorithm, 1, 4, seed=update))
        measured.append("policy_churn" in learner.take_metrics())
    assert measured == [True, False, False, True, False, False, True]


def test_by_default_one_update_is_measured_between_reports():
    algorithm = ppo()
    learner = learner_of(algorithm, None)
    count = 0
    for update in range(6):
        learner.update(a_batch(algorithm, 1, 4, seed=update))
        count = learner.diagnosis.measured
    assert count == 1
    learner.take_metrics()
    learner.update(a_batch(algorithm, 1, 4))
    assert learner.diagnosis.measured == 2
    # The third waits until the second took at most 2 % of the time.
    learner.take_metrics()
    learner.update(a_batch(algorithm, 1, 4))
    assert learner.diagnosis.measured == 2
    learner.diagnosis.due_at = 0.0
    learner.update(a_batch(algorithm, 1, 4))
    assert learner.diagnosis.measured == 3


def test_samples_are_bounded_in_rows_and_bytes():
    algorithm = ppo()
    assert sample_of(a_batch(algorithm, 1, 1000)).steps.mask.shape == (1, SAMPLE_ROWS)
    assert sample_of(a_batch(algorithm, 100, 9)).steps.mask.shape == (100, 2)
    assert sample_of(a_batch(algorithm, 1000, 3)).steps.mask.shape == (1000, 1)
    batch = a_batch(algorithm, 1, 100)
    large = batch._replace(steps=batch.steps._replace(obs=torch.zeros(1, 100, 1 << 18)))
    assert sample_of(large).steps.mask.shape == (1, 4)


def test_an_update_that_the_algorithm_refuses_is_not_measured():
    algorithm = ppo(max_kl=1e-9, learning_rate=10.0)
    learner = learner_of(algorithm, 1)
    batch = a_batch(algorithm, 1, 12)
    assert learner.update(batch).stop
    assert learner.diagnosis.measured == 0
