"""A run is traced where it may be, follows Python values, and says what it does."""

import dataclasses
import io
import itertools
import re
from pathlib import Path

import pytest
import torch
from scenes import CPU

import rookery
from rookery.algorithms import ALGORITHMS
from rookery.algorithms.dqn import DQN
from rookery.algorithms.ppo import PPO
from rookery.backends.factory import make_backend
from rookery.config import resolve
from rookery.learning.reduce import Reducer
from rookery.tracing.function import TracedFunction
from rookery.tracing.recorder import Recording

REPLAY = {"capacity": 1_000, "warm_up": 50, "samples_per_insert": 4}
SHORT = {"burn_in": 2, "unroll": 6, "batch_size": 8}
IMAGES = {"env": {"kwargs": {"obs": "uint8[1,36,36]"}}}
TRACED = "updates: traced, run by NumPy"


def weigh(loss, weight):
    return loss._replace(total=loss.total * weight)


class Fading(PPO):
    """PPO whose loss counts for nothing from the 40th update on; tells the weights after it."""

    weight = 1.0

    def loss(self, batch, statistics):
        return weigh(super().loss(batch, statistics), self.read())

    def after_update(self, updates):
        self.set(float(updates < 40))
        if updates in (40, 42):
            self.network.after[updates] = self.weights()

    def weights(self):
        return torch.cat([p.detach().flatten() for p in self.network.parameters()])

    def read(self):
        return self.weight

    def set(self, weight):
        self.weight = weight


class FadingByConfig(Fading):
    def read(self):
        return self.config.value_coef

    def set(self, weight):
        self.config = dataclasses.replace(self.config, value_coef=weight)


class FadingByCount(Fading):
    updates = 0

    def read(self):
        return float(self.updates < 40)

    def after_update(self, updates):
        self.updates = updates
        super().after_update(updates)


class FadingUnseen(Fading):
    """Its weight is in a list."""

    def __init__(self, *args):
        super().__init__(*args)
        self.held = [1.0]

    def read(self):
        return self.held[0]

    def set(self, weight):
        self.held[0] = weight


def faded(monkeypatch, algorithm):
    """The algorithm after 80 updates, and what its learner had to tell."""
    monkeypatch.setitem(ALGORITHMS, "fading", algorithm)
    algo = {"rollout_steps": 16, "optimizer": "sgd", "learning_rate": 0.1, "anneal": False}
    settings = {"envs": 4, "backend": "serial", "threads": 1, "algo": algo}
    config = resolve("fading", "CartPole-v1", settings, use_preset=False).config
    backend = make_backend(config, Reducer(), CPU)
    learner = backend.learner
    learner.algorithm.network.after = {}
    for _ in range(5):
        backend.advance(0)
    backend.close()
    assert learner.updates == 80
    return learner.algorithm, learner


@pytest.mark.parametrize("algorithm", [Fading, FadingByConfig, FadingByCount])
def test_a_weight_of_the_loss_that_falls_to_0_counts_at_once(monkeypatch, algorithm):
    agent, _ = faded(monkeypatch, algorithm)
    assert torch.equal(agent.weights(), agent.network.after[40])


def test_a_weight_that_is_set_to_0_is_traced_again(monkeypatch):
    _, learner = faded(monkeypatch, Fading)
    assert learner.take_notices() == [TRACED]
    assert sum(recording.trusted for recording in learner.gradient.traces.values()) == 2


def test_a_count_of_updates_is_computed_plainly(monkeypatch):
    _, learner = faded(monkeypatch, FadingByCount)
    reason = "it depends on Python values that change: updates"
    assert learner.take_notices() == [f"updates: not traced: {reason}"]


def test_a_weight_that_is_not_seen_counts_from_the_next_comparison_on(monkeypatch):
    """The eleventh update is recorded; use 32 of the recording is update 43."""
    agent, learner = faded(monkeypatch, FadingUnseen)
    assert torch.equal(agent.weights(), agent.network.after[42])
    assert not torch.equal(agent.weights(), agent.network.after[40])
    first, then = learner.take_notices()
    assert first == TRACED
    assert then.startswith("warning: updates: no longer traced: a Python value")
    assert "1.0)" in then
    assert "0.0)" in then


@pytest.fixture
def no_recording(monkeypatch):
    """Whoever would record fails."""

    def fails(self, *args):
        raise AssertionError("something is recorded")

    monkeypatch.setattr(TracedFunction, "__init__", fails)
    monkeypatch.setattr(Recording, "__init__", fails)


def a_run(folder, algorithm="dqn", environment="CartPole-v1", **settings):
    small = {"envs": 2, "env_steps": 200, "threads": 1, "eval_steps": 100, "eval_episodes": 1}
    return rookery.train(
        algorithm, environment, runs_dir=folder, use_preset=False, console=io.StringIO(),
        **small | settings,
    )  # fmt: skip


RUNS = {
    "dqn": {"algorithm": "dqn", "backend": "serial", "algo": REPLAY},
    "images": {"algorithm": "dqn", "environment": "rookery/Synthetic-v1", "algo": REPLAY} | IMAGES,
    "apex": {"algorithm": "apex", "backend": "threads", "actors": 2, "algo": REPLAY},
    "ppo": {"algorithm": "ppo", "backend": "serial", "algo": {"rollout_steps": 16}},
    "r2d2": {"algorithm": "r2d2", "backend": "serial", "algo": REPLAY | SHORT},
}


@pytest.mark.parametrize("name", ["images", "apex", "ppo"])
def test_without_trace_nothing_is_recorded(no_recording, tmp_path, name):
    run = a_run(tmp_path, learner={"trace": False}, **RUNS[name])
    run.evaluate(episodes=1)
    assert "updates: not traced: learner.trace is false\n" in run.log_path.read_text()


@pytest.mark.parametrize(("name", "algorithm"), [("images", DQN), ("ppo", PPO)])
def test_of_an_algorithm_that_is_not_traceable_nothing_is_recorded(
    no_recording, monkeypatch, tmp_path, name, algorithm
):
    class Plain(algorithm):
        traceable = False

    monkeypatch.setitem(ALGORITHMS, "plain", Plain)
    run = a_run(tmp_path, **RUNS[name] | {"algorithm": "plain"})
    assert "updates: not traced: Plain says traceable = False\n" in run.log_path.read_text()


def test_on_other_devices_nothing_is_traced():
    made = resolve("ppo", "CartPole-v1", {}, use_preset=False).config
    agent = make_backend(made, Reducer(), CPU).learner.algorithm
    agent.device = torch.device("cuda")
    assert agent.untraced == "the device is cuda, not the CPU"
    assert agent.traced("acting", agent.choose, list) == agent.choose


def test_no_private_namespace_of_torch_is_used_and_traced_is_the_only_entry_point():
    package = Path(rookery.__file__).parent
    for path in package.rglob("*.py"):
        text = path.read_text()
        if "tracing" in path.relative_to(package).parts:
            assert "torch._C" not in text, path
            assert "torch.jit" not in text, path
        else:
            found = re.findall(r"from rookery\.tracing.*|import rookery\.tracing.*", text)
            assert set(found) <= {"from rookery.tracing import TracedFunction"}, path


def lines(run):
    """What the log tells of updates, acting and target values."""
    log = [line.split(" ", 2)[2] for line in run.log_path.read_text().splitlines()]
    told = ("updates: ", "warning: ")
    return [line for line in log if line.startswith(told)]


def test_a_run_says_once_that_it_is_traced(tmp_path):
    assert lines(a_run(tmp_path, **RUNS["dqn"])) == [TRACED]


def test_updates_with_large_tensors_are_run_by_pytorch_too(tmp_path):
    run = a_run(tmp_path, **RUNS["dqn"], net={"hidden": [512, 512]})
    assert lines(run) == ["updates: traced, run by NumPy and PyTorch"]


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("r2d2", {}, "aten._local_scalar_dense.default reads a value"),
        ("ppo", {"compile": True}, "the loss is compiled"),
    ],
)
def test_a_run_says_why_it_is_computed_plainly(monkeypatch, tmp_path, name, settings, reason):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    run = a_run(tmp_path, **RUNS[name] | settings)
    assert lines(run) == [f"updates: not traced: {reason}"]


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_acting_that_changes_unseen_is_told_of(monkeypatch, tmp_path, backend):
    bonus, segments = [0.0], itertools.count()

    class Biased(DQN):
        def q_values(self, obs, reward, state):
            q, after = super().q_values(obs, reward, state)
            return q + bonus[0], after

        def exploration(self, env_steps, lanes):
            bonus[0] = float(next(segments) >= 20)
            return super().exploration(env_steps, lanes)

    monkeypatch.setitem(ALGORITHMS, "biased", Biased)
    settings = RUNS["dqn"] | {"algorithm": "biased", "backend": backend, "actors": 1}
    told = lines(a_run(tmp_path, **settings | {"eval_steps": None}))
    (warning,) = [line for line in told if line != TRACED]
    assert warning.startswith("warning: acting: no longer traced: a Python value")
