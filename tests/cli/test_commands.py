"""The command line: what it prints, and its exit status."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

import rookery
from rookery.cli.main import main
from rookery.runs import checkpoint

TINY = ["--env-steps", "600", "--envs", "4", "--algo.rollout_steps", "32", "--threads", "1"]

DQN = ["train", "dqn", "CartPole-v1", "--no-preset", "--env-steps", "50"]
APEX = ["train", "apex", "CartPole-v1", "--no-preset", "--env-steps", "50"]
R2D2 = ["train", "r2d2", "CartPole-v1", "--no-preset", "--env-steps", "50"]


def call(capsys, *args):
    """Return exit status, standard output and standard error of a command."""
    status = main([str(arg) for arg in args])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    assert (
        main(["train", "ppo", "CartPole-v1", *TINY, "--runs-dir", str(folder), "--name", "a"]) == 0
    )
    return folder / "a"


def test_help_and_version_are_printed(capsys):
    assert call(capsys, "--help")[0] == 0
    assert "rookery train" in call(capsys, "--help")[1]
    assert rookery.__version__ in call(capsys, "--version")[1]
    status, out, _ = call(capsys, "train", "ppo", "--help")
    assert status == 0
    assert "--algo.clip FLOAT" in out
    assert "The probability ratio is clipped to" in out
    for command in ("train", "evaluate", "envs", "algorithms"):
        assert call(capsys, command, "--help")[0] == 0


def test_train_names_the_presets_that_apply(capsys, tmp_path):
    tiny = [*("--env-steps", "32", "--envs", "2", "--threads", "1", "--algo.rollout_steps", "16")]
    pong = ["train", "ppo", "PongNoFrameskip-v4", *tiny, "--runs-dir", tmp_path, "--name"]
    status, _, err = call(capsys, *pong, "a")
    assert status == 0
    assert err.splitlines() == ["preset: Atari (--no-preset leaves it out)"]
    err = call(capsys, *pong, "b", "--preset", "tetris-nature")[2]
    assert err.splitlines()[0] == "preset: Atari (--no-preset leaves it out)"
    assert err.splitlines()[1] == "preset: tetris-nature"
    assert call(capsys, *pong, "c", "--no-preset")[2] == ""
    clips = [rookery.load(tmp_path / name).settings.algo.clip for name in "abc"]
    assert clips == [0.1, 0.2, 0.2]


def test_train_prints_settings_result_and_folder(capsys, tmp_path):
    status, out, err = call(capsys, "train", "ppo", "CartPole-v1", *TINY, "--runs-dir", tmp_path)
    assert status == 0
    assert "preset: CartPole-v1" in err
    assert "serial, 4 environments each (gymnasium-native)" in out
    assert "finished: 6" in out
    assert str(tmp_path) in out


def test_train_prints_one_json_object(capsys, tmp_path):
    status, out, _ = call(
        capsys, "train", "ppo", "CartPole-v1", *TINY, "--runs-dir", tmp_path, "--json"
    )
    result = json.loads(out)
    assert status == 0
    assert result["status"] == "finished"
    assert result["env_steps"] >= 600


def test_config_repeats_a_run(capsys, run, tmp_path):
    status, *_ = call(
        capsys, "train", "--config", run / "config.json", "--runs-dir", tmp_path, "--name", "b"
    )
    assert status == 0
    first, again = (rookery.load(path).saved.tensors["weights"] for path in (run, tmp_path / "b"))
    assert all(bool((first[name] == again[name]).all()) for name in first)


def test_resume_continues_the_run(capsys, run):
    before = rookery.load(run).result["env_steps"]
    status, out, _ = call(capsys, "train", "--resume", run, "--env-steps", "1_200")
    assert status == 0
    assert f"resuming at step {before:,}" in out
    assert rookery.load(run).result["env_steps"] >= 1_200


def test_evaluate_scores_a_run_and_a_random_policy(capsys, run):
    status, out, _ = call(capsys, "evaluate", run, "--episodes", "5", "--json")
    scores = json.loads(out)
    assert status == 0
    assert scores["episodes"] == 5
    assert scores["policy"] == "greedy"
    status, out, _ = call(capsys, "evaluate", "random", "CartPole-v1", "--episodes", "20")
    assert status == 0
    assert "random policy, 20 episodes" in out
    assert "95 % interval" in out


def test_random_policy_on_atari_has_a_human_normalized_score(capsys):
    status, out, _ = call(
        capsys, "evaluate", "random", "Pong", "--episodes", "1", "--env.time_limit", "30", "--json"
    )
    scores = json.loads(out)
    assert status == 0
    # (score - random) / (human - random), with the scores of Pong.
    expected = (scores["return_mean"] + 20.7) / (14.6 + 20.7)
    assert scores["human_normalized"] == pytest.approx(expected)


def test_envs_and_algorithms_are_listed(capsys):
    assert "CartPole-v1" in call(capsys, "envs", "cartpole")[1]
    assert json.loads(call(capsys, "envs", "pong", "--json")[1])["ALE/Pong-v5"] == "ale"
    assert "ppo" in call(capsys, "algorithms")[1]
    assert "--algo.clip" in call(capsys, "algorithms", "ppo")[1]
    assert json.loads(call(capsys, "algorithms", "--json")[1])["vpg"]["settings"]["gamma"] == 0.99


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["trane"], ["trane", '"train"']),
        (["train", "poo", "CartPole-v1"], ["poo", '"ppo"']),
        (["train", "ppo", "CartPol-v1"], ["CartPol-v1", "CartPole-v1"]),
        (["train", "ppo", "CartPole-v1", "--algo.learning_rat", "1"], ["--algo.learning_rate"]),
        (["train", "ppo", "CartPole-v1", "--algo.gamma", "2"], ["algo.gamma", "2"]),
        (["train", "ppo", "CartPole-v1", "--algo.gamma"], ["--algo.gamma", "value"]),
        (["train", "ppo", "CartPole-v1", "--preset", "CartPole"], ["CartPole-v1"]),
        (["train", "ppo", "CartPole-v1", "extra"], ["extra"]),
        (["train", "ppo", "CartPole-v1", "--device", "cuda:7"], ["device", "cuda:7"]),
        (["train", "ppo", "CartPole-v1", "--device", "gpu"], ["device", "gpu"]),
        (["train", "ppo", "CartPole-v1", "--learner.transport", "nccl", "--actors", "2"], ["nccl"]),
        (["train", "ppo", "nowhere_at_all:Env-v0"], ["nowhere_at_all"]),
        (["train", "--resume", "no/such/run"], ["no/such/run"]),
        (["train", "--config", "no/such.json"], ["no/such.json"]),
        (["train", "ppo", "CartPole-v1", "--runs-dir", "/dev/null/x"], ["/dev/null/x"]),
        (["train", "ppo", "CartPole-v1", "--algo.minibatches", "1e6"], ["algo.minibatches"]),
        ([*R2D2, "--algo.burn_in", "41", "--algo.unroll", "40"], ["algo.burn_in=41", "40"]),
        (
            [*R2D2, "--envs", "1", "--algo.capacity", "500", "--algo.warm_up", "0"],
            ["algo.capacity=500", "6 windows", "algo.batch_size=64"],
        ),
        ([*R2D2, "--algo.n_step", "99", "--algo.unroll", "80"], ["algo.n_step=99", "algo.unroll"]),
        ([*R2D2, "--net.core", "none"], ["net.core=none", "lstm"]),
        ([*R2D2, "--algo.capacity", "500"], ["algo.capacity=500", "8 environments"]),
        ([*R2D2, "--algo.eta", "1.5"], ["algo.eta", "1.5"]),
        ([*DQN, "--algo.capacity", "16"], ["algo.capacity=16", "8 environments", "--envs"]),
        ([*DQN, "--algo.capacity", "40", "--algo.n_step", "5"], ["algo.capacity=40", "window"]),
        ([*DQN, "--algo.capacity", "9999GB"], ["algo.capacity", "9999", "the machine has"]),
        ([*DQN, "--algo.capacity", "plenty"], ["algo.capacity", "plenty", "8GB"]),
        ([*DQN, "--algo.capacity", "8 parsecs"], ["algo.capacity", "8 parsecs"]),
        ([*DQN, "--algo.capacity", "-5"], ["algo.capacity", "-5"]),
        ([*DQN, "--algo.alpha", "1.5"], ["algo.alpha", "1.5"]),
        ([*DQN, "--algo.beta", "-1"], ["algo.beta", "-1"]),
        ([*DQN, "--algo.epsilon_start", "2"], ["algo.epsilon_start", "2"]),
        ([*DQN, "--algo.warm_up", "6_000", "--algo.capacity", "5_000"], ["algo.warm_up=6000"]),
        ([*DQN, "--net.core", "lstm"], ["net.core=lstm", "r2d2"]),
        ([*DQN, "--algo.n_step", "200_000"], ["algo.n_step", "algo.capacity"]),
        ([*DQN, "--backend", "threads", "--env.normalize_obs", "true"], ["env.normalize_obs"]),
        ([*DQN, "--eval-steps", "0"], ["eval_steps", "0"]),
        ([*DQN, "--eval-epsilon", "2"], ["eval_epsilon", "2"]),
        ([*APEX, "--algo.epsilon_base", "0"], ["algo.epsilon_base", "0"]),
        ([*APEX, "--actors", "2", "--act-device", "gpu"], ["device", "gpu"]),
        ([*APEX, "--net.core", "gru"], ["net.core=gru", "r2d2"]),
        ([*APEX, "--actors", "2", "--env.normalize_obs", "true"], ["env.normalize_obs"]),
        (["train", "dqn", "Pendulum-v1"], ["dqn", "Discrete", "Box"]),
        (["train", "apex", "Pendulum-v1"], ["apex", "Discrete", "Box"]),
        (["train", "r2d2", "Pendulum-v1"], ["r2d2", "Discrete", "Box"]),
        (["train", "ppo", "CartPole-v1", "--backend", "threads"], ["backend=threads", "ppo"]),
        (["evaluate", "no/such/run"], ["no/such/run"]),
        (["evaluate", "random", "CartPole-v9"], ["CartPole-v9"]),
        (["evaluate", "random", "CartPole-v1", "--episodes", "0"], ["episodes", "0"]),
        (["algorithms", "poo"], ["poo", '"ppo"']),
    ],
)
def test_bad_input_is_one_line_and_exits_with_status_2(capsys, tmp_path, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    status, _, err = call(capsys, *args)
    lines = [line for line in err.splitlines() if not line.startswith("preset:")]
    assert status == 2
    assert len(lines) == 1
    assert all(word in lines[0] for word in words)
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "runs"])
    assert list(tmp_path.glob("runs/*")) == []


@pytest.mark.parametrize(
    ("environment", "kwargs"),
    [
        ("subprocess:Popen", lambda path: {"args": ["mkdir", path]}),
        ("subprocess:run", lambda path: {"args": ["mkdir", path]}),
        ("os:mkdir", lambda path: {"path": path}),
    ],
)
@pytest.mark.parametrize("command", [["train", "--resume"], ["evaluate"]])
def test_config_of_a_run_cannot_call_arbitrary_code(
    capsys, tmp_path, run, command, environment, kwargs
):
    made, other = tmp_path / "made", tmp_path / "other"
    shutil.copytree(run, other)
    config = json.loads((other / "config.json").read_text())
    config["environment"] = environment
    config["env"]["kwargs"] = kwargs(str(made))
    (other / "config.json").write_text(json.dumps(config))
    status, _, err = call(capsys, *command, other)
    assert status == 2
    assert len(err.splitlines()) == 1
    assert f'"{environment}" is neither a registered id nor a subclass of gymnasium.Env' in err
    assert not made.exists()


def test_divergence_exits_with_status_3(capsys, tmp_path):
    args = ["--algo.learning_rate", "1e30", "--algo.max_grad_norm", "0", "--runs-dir", tmp_path]
    status, _, err = call(
        capsys, "train", "ppo", "Pendulum-v1", *TINY, *args, "--env-steps", "9_000"
    )
    assert status == 3
    assert "diverged" in err


def start_long_run(folder, *more):
    command = [sys.executable, "-m", "rookery", "train", "ppo", "CartPole-v1", "--envs", "4"]
    command += ["--env-steps", "50_000_000", "--runs-dir", str(folder), "--name", "long"]
    process = subprocess.Popen(
        [*command, "--threads", "1", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (folder / "long" / "progress.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    return process


@pytest.mark.parametrize(
    "more",
    [[], ["--actors", "2", "--learner.transport", "gloo"], ["--actors", "2"]],
    ids=["serial", "gloo", "mpi"],
)
def test_ctrl_c_saves_and_exits_with_status_130(tmp_path, more):
    if more == ["--actors", "2"]:
        pytest.importorskip("mpi4py")
    process = start_long_run(tmp_path, *more)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    run = rookery.load(tmp_path / "long")
    assert run.result["status"] == "interrupted"
    assert run.saved.step == run.result["env_steps"] > 0
    assert len(checkpoint.steps(run.checkpoints)) == 1
    assert "Traceback" not in output
