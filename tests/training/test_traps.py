"""Traps warn, stop the run with what repeats the fault, or stay silent."""

import io
import json
import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from scenes import FLAT, a_batch, make, ppo

import rookery
from rookery.algorithms.dqn import DQN
from rookery.algorithms.ppo import PPO
from rookery.cli.main import main
from rookery.config import default_config, from_values
from rookery.data.steps import Batch
from rookery.data.tree import tree_leaves
from rookery.diagnostics.trap_replay import replay_trap
from rookery.diagnostics.traps import Traps, trap_levels
from rookery.envs import register_env
from rookery.errors import BadInput, Diverged, RunFailed
from rookery.learning.diagnosis import UpdateEvidence
from rookery.runs.evidence import load_evidence, save_evidence
from rookery.runs.run import Run

TINY = {
    "env_steps": 1_500,
    "envs": 4,
    "threads": 1,
    "use_preset": False,
    "random_baseline": False,
    "algo": {"rollout_steps": 16, "minibatches": 2, "epochs": 1},
}


class Still(gymnasium.Env):
    """Episodes of eight steps whose observation never changes."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.full(3, 0.5, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(3, 0.5, np.float32), float(action), self.steps == 8, False, {}


@pytest.fixture(autouse=True)
def every_round_is_reported(monkeypatch):
    monkeypatch.setattr("rookery.training.reporter.REPORT_INTERVAL_S", 0.0)
    monkeypatch.setattr("rookery.learning.diagnosis.TIME_SHARE", math.inf)
    register_env("Still", Still, replace=True)


def train(tmp_path, algorithm="ppo", environment="Still", **settings):
    console = io.StringIO()
    run = rookery.train(
        algorithm, environment, runs_dir=tmp_path, name="run", console=console, **TINY | settings
    )
    return run, console.getvalue()


def events(path, kind):
    lines = (path / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_by_default_a_trap_warns_once_everywhere(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Kept(rookery.Callback):
        def __init__(self):
            self.alarms = []

        def on_alarm(self, alarm):
            self.alarms.append(alarm)

    kept = Kept()
    run, console = train(tmp_path, callbacks=[kept])
    text = "every component of the observations is constant"
    assert console.count(f"warning: obs_constant: {text}. Try: look at") == 1
    assert (run.path / "log.txt").read_text().count(text) == 1
    (alarm,) = (each for each in events(run.path, "alarm") if each["trap"] == "obs_constant")
    assert alarm["level"] == "warn"
    assert alarm["figure"] == 1
    assert alarm["env_steps"] > 0
    assert "obs_constant" in [alarm.trap for alarm in kept.alarms]
    tags = EventAccumulator(str(run.path)).Reload().Tags()["tensors"]
    assert "alarms/obs_constant" in tags
    assert run.result["status"] == "finished"
    assert not (run.path / "traps").exists()


def test_events_are_one_json_object_a_line(tmp_path):
    run, _ = train(tmp_path, traps={"level": "off"}, eval_steps=700, eval_episodes=2)
    kinds = [json.loads(line)["event"] for line in (run.path / "events.jsonl").open()]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert kinds.count("evaluation") == 2
    assert "checkpoint" in kinds
    assert "alarm" not in kinds


def test_a_trap_that_stops_the_run_saves_what_repeats_the_update(tmp_path):
    with pytest.raises(RunFailed, match="stopped by the trap obs_constant"):
        train(tmp_path, traps={"obs_constant": "stop", "level": "off"})
    run = Run.open(tmp_path / "run")
    assert run.result["status"] == "failed"
    assert list(run.checkpoints.glob("step_*"))
    found = replay_trap(str(run.path), "obs_constant")
    assert found.error is None
    assert found.columns["obs_constant"] == 1
    assert "constant" in found.text


def test_the_repeated_update_is_the_one_that_was_measured(tmp_path, monkeypatch):
    with pytest.raises(RunFailed):
        train(tmp_path, traps={"obs_constant": "stop", "level": "off"}, learner={"trace": False})
    rows = Run.open(tmp_path / "run").progress()
    repeated = replay_trap(str(tmp_path / "run"), "obs_constant").columns
    for column in ("gradient_norm/value_head", "target_max", "reward_mean", "entropy_share"):
        assert repeated[column] == pytest.approx(rows[-1][column], rel=1e-4)


def test_a_diverged_run_saves_the_batch_before_the_step(tmp_path, monkeypatch):
    plain = PPO.prepare
    calls = []

    def broken(self, segment):
        made = plain(self, segment)
        calls.append(0)
        if len(calls) == 4:
            made.steps.extra["advantage"][3, 1] = math.nan
        return made

    monkeypatch.setattr(PPO, "prepare", broken)
    with pytest.raises(Diverged, match="the batch's advantage are not finite"):
        train(tmp_path)
    found = replay_trap(str(tmp_path / "run"), "diverged")
    assert "advantage are not finite" in found.error
    status = main(["doctor", str(tmp_path / "run"), "--replay", "diverged"])
    assert status == 0


@pytest.mark.parametrize("backend", ["serial", "ranks"])
def test_traps_work_on_backends(tmp_path, backend):
    run, _ = train(tmp_path, environment="rookery/Probe1-v0", backend=backend, actors=1)
    assert "warning: obs_constant" in (run.path / "log.txt").read_text()


def test_levels():
    base = default_config("ppo", "CartPole-v1")
    assert set(trap_levels(base).values()) == {"warn"}
    config = from_values(
        {"algorithm": "ppo", "environment": "CartPole-v1"},
        {"traps": {"level": "stop", "dead_units": "off", "obs_unscaled": "warn"}},
    )
    levels = trap_levels(config)
    assert levels["zero_gradient"] == "stop"
    assert levels["obs_unscaled"] == "warn"
    assert "dead_units" not in levels


def test_command_line_takes_one_level_for_all_traps(tmp_path, capsys):
    args = ["train", "ppo", "CartPole-v1", "--env-steps", "200", "--envs", "2", "--no-preset"]
    args += ["--runs-dir", str(tmp_path), "--name", "a", "--no-random-baseline"]
    assert main([*args, "--traps", "off", "--traps.dead_units", "stop"]) == 0
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["traps"]["level"] == "off"
    assert config["traps"]["dead_units"] == "stop"
    capsys.readouterr()
    assert main([*args, "--traps", "loud"]) == 2
    assert "traps.level" in capsys.readouterr().err


def test_traps_forget_reports_that_will_be_made_again():
    found = []
    traps = Traps(default_config("ppo", "CartPole-v1"), None, found.append)
    for step in (1, 2):
        traps.on_report({"env_steps": step, "obs_constant": 1.0})
    traps.on_rewind(0)
    traps.on_report({"env_steps": 1, "obs_constant": 1.0})
    assert found == []
    for step in (2, 3, 4):
        traps.on_report({"env_steps": step, "obs_constant": 1.0})
    assert [alarm.trap for alarm in found] == ["obs_constant"]


def test_evidence_of_nested_observations_is_stored_and_loaded(tmp_path):
    algorithm = ppo()
    batch = a_batch(algorithm, 2, 3)
    nested = {"a.b": batch.steps.obs, "c[0]": (batch.steps.action, batch.steps.obs)}
    batch = batch._replace(
        steps=batch.steps._replace(obs=nested), state=(torch.ones(3, 2), torch.zeros(3, 1))
    )
    evidence = UpdateEvidence.of(algorithm, batch)
    save_evidence(tmp_path / "t", batch, evidence.weights, {"text": "why"})
    again, weights, about = load_evidence(tmp_path / "t")
    assert isinstance(again, Batch)
    assert torch.equal(again.steps.obs["a.b"], nested["a.b"])

    def plain(each):
        return each.steps._replace(obs=each.steps.obs["c[0]"], extra={}), each.state

    for saved, loaded in zip(tree_leaves(plain(batch)), tree_leaves(plain(again)), strict=True):
        assert torch.equal(saved, loaded)
    assert set(again.steps.extra) == set(batch.steps.extra)
    assert again.keys is None
    assert about == {"text": "why"}
    assert set(weights) == set(evidence.weights)


def test_evidence_restores_the_target_network_too():
    algorithm, other = (make(DQN, FLAT, seed=seed) for seed in (1, 2))
    evidence = UpdateEvidence.of(algorithm, a_batch(ppo(), 1, 2))
    evidence.restore(other)
    for module in ("network", "target"):
        pairs = zip(
            getattr(algorithm, module).parameters(),
            getattr(other, module).parameters(),
            strict=True,
        )
        assert all(torch.equal(a, b) for a, b in pairs)
    with pytest.raises(BadInput, match="another network"):
        evidence.restore(ppo())


def test_a_trap_that_did_not_stop_the_run_cannot_be_repeated(tmp_path):
    run, _ = train(tmp_path)
    with pytest.raises(BadInput, match=r"no trap dead_units; no trap stopped the run"):
        replay_trap(str(run.path), "dead_units")
