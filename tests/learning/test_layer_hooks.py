"""Histograms, and outputs and gradients of watched layers, against plain torch."""

import numpy as np
import pytest
import torch
from scenes import CPU, a_batch, ppo

import rookery
from rookery.data.tree import flatten_time
from rookery.errors import BadInput
from rookery.learning.diagnosis import DiagnosisSpec
from rookery.learning.layer_hooks import BINS, histogram_of, watch_layers
from rookery.learning.learner import Learner, LearnerConfig
from rookery.learning.reduce import Reducer


def learner_of(algorithm, spec, **settings):
    return Learner(algorithm, LearnerConfig(**settings), Reducer(), CPU, diagnose=spec)


def test_histogram_is_that_of_numpy():
    values = torch.randn(5_000, generator=torch.Generator().manual_seed(1))
    found = histogram_of(values)
    counts, edges = np.histogram(values.numpy(), BINS)
    assert found.counts.sum() == 5_000
    assert np.abs(found.counts - counts).sum() <= 4  # at most a value or two at an edge
    np.testing.assert_allclose(found.edges, edges, rtol=1e-5)
    assert found.sum == pytest.approx(float(values.sum()), rel=1e-4)
    assert found.sum_of_squares == pytest.approx(float(values.square().sum()), rel=1e-4)


def test_histogram_of_equal_and_of_bad_values():
    assert histogram_of(torch.full((7,), 3.0)).counts.sum() == 7
    assert histogram_of(torch.tensor([1.0, float("nan"), 2.0])).counts.sum() == 2
    assert histogram_of(torch.tensor([float("inf")])).counts.sum() == 0


def test_watched_layers_by_hand():
    algorithm = ppo(normalize_advantage=False, value_coef=1.0)
    learner = learner_of(algorithm, DiagnosisSpec(0))
    batch = a_batch(algorithm, 1, 6, masked=0)
    found = watch_layers(algorithm, batch, ("value_head", "value_trunk.dense.0"))
    head = found["value_head"]
    value = algorithm.network.value(flatten_time(batch.steps.obs))
    target = (batch.steps.extra["value"] + batch.steps.extra["advantage"]).flatten()
    # The loss is half the mean squared error: its derivative is error / 6.
    error = ((value - target) / 6).detach()
    np.testing.assert_allclose(head.output[:, 0], value.detach(), rtol=1e-5)
    np.testing.assert_allclose(head.output_gradient[:, 0], error, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(head.gradients["bias"], [float(error.sum())], rtol=1e-4)
    features = algorithm.network.value_trunk(flatten_time(batch.steps.obs), ())[0].detach()
    np.testing.assert_allclose(head.gradients["weight"][0], error @ features, rtol=1e-4, atol=1e-6)
    assert found["value_trunk.dense.0"].output.shape == (6, 8)
    assert not any(module._forward_hooks for module in algorithm.network.modules())
    assert learner.updates == 0


@pytest.mark.parametrize("trace", [True, False])
def test_recording_changes_no_weight(trace):
    weights = []
    for spec in (DiagnosisSpec(0), DiagnosisSpec(2, 3, ("head.linear",))):
        algorithm = ppo(optimizer="adam", learning_rate=1e-2)
        learner = learner_of(algorithm, spec, trace=trace)
        for seed in range(40):
            learner.update(a_batch(algorithm, 1, 8, seed=seed, masked=0))
        weights.append(learner.flat.values.detach().clone())
    assert torch.equal(*weights)


def test_records_are_those_of_one_update_between_two_reports():
    algorithm = ppo()
    learner = learner_of(algorithm, DiagnosisSpec(0, 3))
    found = []
    for seed in range(7):
        learner.update(a_batch(algorithm, 1, 8, seed=seed))
        if seed in (0, 4, 6):
            found.append(learner.take_records())
    assert [None if each is None else each.updates for each in found] == [0, 3, 6]
    names = {name.partition("/")[0] for name in found[0].histograms}
    assert names == {"weights", "gradients", "activations"}
    assert "weights/head.linear.weight" in found[0].histograms
    assert learner.take_records() is None


class Watching(rookery.Callback):
    watch = ("policy_trunk.dense.0",)

    def __init__(self):
        self.records = []

    def on_layers(self, records):
        self.records.append(records)


TINY = {
    "env_steps": 600,
    "envs": 2,
    "threads": 1,
    "use_preset": False,
    "random_baseline": False,
    "algo": {"rollout_steps": 16, "minibatches": 2},
}


def test_callbacks_and_tensorboard_get_the_records_of_a_run(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    kept = Watching()
    run = rookery.train(
        "ppo", "CartPole-v1", runs_dir=tmp_path, callbacks=[kept], histograms=4, **TINY
    )
    seen = [each.tensors["policy_trunk.dense.0"] for each in kept.records if each.tensors]
    assert seen
    assert seen[-1].output.shape[-1] == 64
    assert seen[-1].output.shape == seen[-1].output_gradient.shape
    assert set(seen[-1].gradients) == {"weight", "bias"}
    events = EventAccumulator(str(run.path)).Reload()
    tags = events.Tags()["histograms"]
    assert {"weights/head.linear.weight", "gradients/value_head.bias"} <= set(tags)
    assert events.Histograms("weights/head.linear.weight")[-1].histogram_value.num == 128


def test_an_unknown_layer_is_refused_with_the_nearest(tmp_path):
    class Wrong(rookery.Callback):
        watch = ("policy_trunk.dens.0",)

    with pytest.raises(BadInput, match=r'no layer "policy_trunk.dens.0".*policy_trunk.dense.0'):
        rookery.train("ppo", "CartPole-v1", runs_dir=tmp_path, callbacks=[Wrong()], **TINY)
    assert list(tmp_path.iterdir()) == []
