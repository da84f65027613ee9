"""Learners run their updates from recordings, and learn the same but for rounding."""

import pytest
import torch
from scenes import CPU

from rookery.backends.factory import make_backend
from rookery.config import resolve
from rookery.learning.reduce import Reducer

KL = {"rollout_steps": 16, "max_kl": 100.0}
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}
REPLAY = {"capacity": 2_000, "warm_up": 50, "samples_per_insert": 4, "target_period": 3}


def learner_after(algorithm, rounds, recorded, net=None, parts=1, **algo):
    settings = {"envs": 4, "backend": "serial", "threads": 1, "net": net or {}, "algo": algo}
    settings["learner"] = {"micro_batches": parts, "trace": recorded}
    config = resolve(algorithm, "CartPole-v1", settings, use_preset=False).config
    backend = make_backend(config, Reducer(), CPU)
    for _ in range(rounds):
        backend.advance(0)
    backend.close()
    assert backend.learner.updates > 8
    return backend.learner


@pytest.mark.parametrize(
    ("algorithm", "net", "algo"),
    [
        ("dqn", {}, REPLAY),
        ("dqn", {"activation": "tanh"}, REPLAY | {"alpha": 0.6, "n_step": 3, "target_tau": 0.01}),
        ("dqn", {}, REPLAY | {"atoms": 11, "dueling": True}),
        ("dqn", {}, REPLAY | {"noisy": True}),
        ("apex", {}, REPLAY | {"rollout_steps": 4}),
        ("ppo", {}, {"rollout_steps": 16}),
    ],
)
def test_a_recorded_run_is_the_same_run(algorithm, net, algo):
    plain = learner_after(algorithm, 60, False, net, **algo)
    recorded = learner_after(algorithm, 60, True, net, **algo)
    assert recorded.gradient.refused is None
    assert any(recording.trusted for recording in recorded.gradient.traces.values())
    assert recorded.updates == plain.updates
    torch.testing.assert_close(recorded.flat.values, plain.flat.values, **ROUNDING)
    assert recorded.take_metrics() == pytest.approx(plain.take_metrics(), rel=1e-3)


@pytest.mark.parametrize(
    ("algorithm", "parts", "algo"),
    [("dqn", 2, REPLAY), ("ppo", 1, KL), ("ppo", 3, {"rollout_steps": 16})],
)
def test_gradients_added_from_recordings_are_the_same(algorithm, parts, algo):
    rounds = 60 if algorithm == "dqn" else 4
    plain = learner_after(algorithm, rounds, False, parts=parts, **algo)
    recorded = learner_after(algorithm, rounds, True, parts=parts, **algo)
    assert recorded.gradient.refused is None
    assert any(recording.trusted for recording in recorded.gradient.traces.values())
    torch.testing.assert_close(recorded.flat.values, plain.flat.values, **ROUNDING)


def test_sequences_cut_where_episodes_end_are_computed_as_they_are():
    learner = learner_after("r2d2", 60, True, {"core_size": 8}, **REPLAY, burn_in=2, unroll=6)
    assert "reads a value" in learner.gradient.refused
