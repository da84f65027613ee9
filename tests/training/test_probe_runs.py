"""Algorithms on probes: healthy ones pass, and each broken one fails first where it is broken.

All probes of every algorithm, backend and several seeds are marked `long`:

    python -m pytest -m long tests/training/test_probe_runs.py
"""

from __future__ import annotations

import pytest
import torch

from rookery.algorithms import ALGORITHMS, ppo
from rookery.algorithms.dqn import DQN
from rookery.algorithms.ppo import PPO
from rookery.config import presets
from rookery.data.tree import tree_map
from rookery.diagnostics.probes import PROBES
from rookery.errors import BadInput
from rookery.networks.actor_critic import Gaussian
from rookery.training.probe_runs import run_probes

OFF_POLICY = ("apex", "dqn", "r2d2")
LSTM = {"net": {"core": "lstm", "core_size": 32}}


def statuses(algorithm, overrides=None, numbers=(), **options):
    """Return the status of every probe by its number."""
    results = run_probes(algorithm, overrides or {}, numbers=numbers, **options)
    return {result.probe.number: result.status for result in results}


# ---------------------------------------------------------------- healthy algorithms


@pytest.mark.parametrize(
    ("algorithm", "numbers"),
    [("ppo", (1, 4, 6, 9)), ("vpg", (3,)), ("dqn", (6, 8)), ("apex", (4,))],
)
def test_algorithms_pass(algorithm, numbers):
    results = list(run_probes(algorithm, {}, numbers=numbers))
    assert [result.probe.number for result in results] == list(numbers)
    assert [result.found for result in results if result.status != "passed"] == []


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("backend", ["serial", "threads", "ranks", "ray"])
@pytest.mark.parametrize("algorithm", ["ppo", "vpg", *OFF_POLICY])
def test_algorithms_pass_every_probe_on_every_backend(algorithm, backend, seed):
    if backend == "threads" and algorithm not in OFF_POLICY:
        pytest.skip("on-policy algorithms do not run on threads")
    found = statuses(algorithm, {"backend": backend, "seed": seed})
    skipped = {7} - ({7} if algorithm == "r2d2" else set())
    skipped |= {9} if algorithm in OFF_POLICY else set()
    assert found == {n: "skipped" if n in skipped else "passed" for n in range(1, 10)}


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["ppo", "vpg"])
def test_recurrent_policies_pass_every_probe(algorithm):
    assert set(statuses(algorithm, LSTM).values()) == {"passed"}


def test_what_cannot_be_asked_is_skipped_and_says_why():
    memory, continuous = run_probes("dqn", {}, numbers=(7, 9))
    assert (memory.status, continuous.status) == ("skipped", "skipped")
    assert memory.reason == "dqn has no recurrent state with net.core=none"
    assert "dqn needs a Discrete action space" in continuous.reason
    (value,) = run_probes("vpg", {"algo": {"baseline": "mean"}}, numbers=(1,))
    assert value.reason == "vpg computes no value with these settings"


def test_runs_are_kept_where_asked(tmp_path):
    list(run_probes("ppo", {"env_steps": 300}, numbers=(1,), runs_dir=tmp_path))
    (folder,) = tmp_path.iterdir()
    assert (folder / "result.json").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"overrides": {"env": {"frame_stack": 2}}}, ["env.frame_stack=2", "leave it at None"]),
        ({"overrides": {"env": {"normalize_reward": True}}}, ["env.normalize_reward=True"]),
        ({"overrides": {"net": {"core": "gru"}}}, ["net.core=gru"]),
        ({"overrides": {}, "numbers": (10,)}, ["probes", "1 to 9", "10"]),
        ({"overrides": {}, "preset": "Nothing"}, ["preset", "Nothing"]),
    ],
)
def test_bad_settings_are_found_before_a_run(options, words):
    with pytest.raises(BadInput) as error:
        next(run_probes("dqn", **options))
    assert all(word in str(error.value) for word in words)


# ---------------------------------------------------------------- broken algorithms


class NoTermination(PPO):
    """Bootstraps from the end of terminated episodes."""

    def prepare(self, segment):
        steps = segment.steps
        return super().prepare(
            segment._replace(steps=steps._replace(discount=torch.ones_like(steps.discount)))
        )


class BlindValue(DQN):
    """The networks see zeros."""

    def __init__(self, *args):
        super().__init__(*args)
        for network in (self.network, self.target):
            network.register_forward_pre_hook(lambda module, rows: torch.zeros_like(rows[0]))


class NoDiscount(PPO):
    """The value of the next step counts nothing."""

    def prepare(self, segment):
        steps = segment.steps
        return super().prepare(
            segment._replace(steps=steps._replace(discount=torch.zeros_like(steps.discount)))
        )


class ShuffledPolicy(PPO):
    """The policy's rows belong to other actions."""

    def evaluate(self, batch):
        params, value = super().evaluate(batch)
        return params.roll(1, 0), value


class Forgetful(PPO):
    """Acts from a cleared recurrent state."""

    def choose(self, obs, reward, state, draw, explain=False):
        return super().choose(obs, reward, tree_map(torch.zeros_like, state), draw, explain)


class TruncationEnds(PPO):
    """Takes the last step of every episode for a termination."""

    def prepare(self, segment):
        steps = segment.steps
        discount = steps.discount.clone()
        discount[:-1] *= steps.mask[1:]
        return super().prepare(segment._replace(steps=steps._replace(discount=discount)))


def mix_lanes(monkeypatch):
    """Values come from another environment."""
    right = ppo.values
    monkeypatch.setattr(ppo, "values", lambda *args: right(*args).roll(1, 1))


def flip_advantage(monkeypatch):
    """The policy loss gets advantages of the wrong sign."""
    right = ppo.clipped_objective
    monkeypatch.setattr(ppo, "clipped_objective", lambda r, a, clip: right(r, -a, clip))


def detach_policy(monkeypatch):
    """The policy loss has no gradient."""
    right = ppo.clipped_objective
    monkeypatch.setattr(ppo, "clipped_objective", lambda *args: right(*args).detach())


def forget_the_mean(monkeypatch):
    """The log-probability of continuous actions does not depend on the mean."""
    right = Gaussian.log_prob

    def wrong(self, params, action):
        mean, log_std = params.chunk(2, -1)
        return right(self, torch.cat([mean.detach(), log_std], -1), action)

    monkeypatch.setattr(Gaussian, "log_prob", wrong)


BROKEN = {
    "value loss dropped": ("ppo", {"algo": {"value_coef": 0}}, 1, {1, 2, 3, 4, 8}),
    "termination ignored": (NoTermination, {}, 1, {1, 2, 3, 4, 8}),
    "observation unseen": (BlindValue, {}, 2, {2, 3, 4, 6, 8}),
    "no discounted value": (NoDiscount, {}, 3, {3, 4, 6, 8}),
    "target never updated": ("dqn", {"algo": {"target_period": 10**9}}, 3, {3, 4, 6, 8}),
    "values of another lane": (mix_lanes, {}, 4, {4, 6, 8}),
    "advantage flipped": (flip_advantage, {}, 5, {5, 6, 9}),
    "policy loss detached": (detach_policy, {}, 5, {5, 6, 9}),
    "rows shuffled": (ShuffledPolicy, {}, 6, {6}),
    "state cleared": (Forgetful, LSTM, 7, {7}),
    "truncation ends": (TruncationEnds, {}, 8, {8}),
    "mean without gradient": (forget_the_mean, {}, 9, {9}),
}
"""Fault: algorithm, change of the code or settings; the probe that is meant; all that may fail."""


def broken(fault, monkeypatch):
    """Return the algorithm's name and settings."""
    where, settings, *_ = BROKEN[fault]
    if isinstance(where, str):
        return where, settings
    if not isinstance(where, type):
        where(monkeypatch)
        return "ppo", settings
    name = next(name for name, kind in ALGORITHMS.items() if issubclass(where, kind))
    monkeypatch.setitem(ALGORITHMS, "broken", where)
    return "broken", presets(name)["Probes"] | settings


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_algorithm_fails_the_probe_that_is_meant(fault, monkeypatch):
    meant = BROKEN[fault][2]
    algorithm, settings = broken(fault, monkeypatch)
    assert statuses(algorithm, settings, (meant,)) == {meant: "failed"}


@pytest.mark.long
@pytest.mark.parametrize("fault", BROKEN)
def test_broken_algorithm_fails_no_probe_before_it(fault, monkeypatch):
    meant, may_fail = BROKEN[fault][2:]
    algorithm, settings = broken(fault, monkeypatch)
    failed = {n for n, status in statuses(algorithm, settings).items() if status == "failed"}
    assert min(failed) == meant
    assert failed <= may_fail


def test_every_probe_has_a_fault_that_it_finds():
    assert {meant for _, _, meant, _ in BROKEN.values()} == {probe.number for probe in PROBES}


def test_diverged_run_is_a_failure_and_not_an_error(monkeypatch):
    right = ppo.value_error
    monkeypatch.setattr(ppo, "value_error", lambda *args: right(*args) * float("nan"))
    (result,) = run_probes("ppo", {}, numbers=(1,))
    assert result.status == "failed"
    assert result.found is None
    assert "NaN" in result.reason or "nan" in result.reason
