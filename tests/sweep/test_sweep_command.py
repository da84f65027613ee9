"""The command `rookery sweep`, on a local Ray."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from rookery.cli.main import main
from rookery.cli.sweep import new_sweep

PAGE = Path(__file__).parents[2] / "docs" / "sweep.md"
PPO = ["sweep", "ppo", "CartPole-v1", "--no-preset"]
SMALL = ["--net.hidden", "32", "--envs", "4", "--algo.rollout_steps", "64"]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")


@contextmanager
def started(folder, *args):
    """A sweep in its own process group, which is killed afterwards."""
    words = [sys.executable, "-m", "rookery", *map(str, args)]
    with open(folder / "errors.txt", "w") as errors:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            words, cwd=folder, stdout=pipe, stderr=errors, text=True, process_group=0
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def call(folder, *args):
    """Return exit status, standard output and standard error of a command."""
    with started(folder, *args) as process:
        output, _ = process.communicate(timeout=200)
    return process.returncode, output, (folder / "errors.txt").read_text()


def processes_of(folder):
    """Return the command lines of processes that mention a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        found += [line] if str(folder) in line else []
    return found


@needs_ray
def test_a_grid_with_seeds_and_asha_leaves_a_preset_that_repeats_the_best(tmp_path):
    """The first learns until its return is 60, the second never learns, the third diverges."""
    rates = ["--algo.learning_rate", "choice:3e-3,1e-9,1e30", "--search", "grid"]
    asha = ["--asha", "--grace-steps", 8_000, "--reduction", 2, "--concurrent", 1]
    length = ["--env-steps", 200_000, "--stop-return", 60, "--seeds", 2]
    words = [*PPO, "--net.hidden", "32", *rates, *asha, *length, "--name", "s", "--json"]
    status, output, errors = call(tmp_path, *words)
    assert status == 0, errors
    result = json.loads(output)
    good, stopped, diverged = result["trials"]
    assert [good["status"], stopped["status"], diverged["status"]] == [
        *("finished", "stopped", "failed")
    ]
    assert good["score"] == pytest.approx(sum(good["seed_scores"]) / 2)
    assert min(good["seed_scores"]) >= 60
    assert 8_000 <= stopped["env_steps"] < 100_000
    assert stopped["score"] < 40
    assert "seed 1: " in diverged["reason"] or "seed 2: " in diverged["reason"]

    folder = tmp_path / "sweeps" / "s"
    assert sorted(os.listdir(folder)) == [
        *("best.yaml", "results.csv", "sweep.json", "sweep.png", "trials")
    ]
    rows = list(csv.DictReader((folder / "results.csv").open()))
    assert [row["status"] for row in rows] == ["finished", "stopped", "failed"]
    assert float(rows[0]["score_seed_2"]) == pytest.approx(good["seed_scores"][1])
    preset = yaml.safe_load((folder / "best.yaml").read_text())["CartPole-v1"]
    assert preset["algo"]["learning_rate"] == 3e-3
    assert processes_of(tmp_path) == []

    program, *again = shlex.split(result["command"])
    assert program == "rookery"
    status, output, _ = call(tmp_path, *again, "--json")
    assert status == 0
    assert json.loads(output)["episode_return_mean"] == pytest.approx(good["seed_scores"][0])


def await_report(folder, number, process):
    """Wait until a trial of a sweep has reported."""
    file = folder / "trials" / f"{number:03d}" / "trial.json"
    until = time.monotonic() + 150
    while time.monotonic() < until and process.poll() is None:
        if file.exists() and json.loads(file.read_text())["reports"]:
            return
        time.sleep(0.1)
    pytest.fail("no trial reported")


@needs_ray
@pytest.mark.long
def test_killed_sweep_can_be_resumed(tmp_path):
    words = [*PPO, "--net.hidden", "32", "--algo.learning_rate", "log:1e-4:1e-2"]
    words += ["--search", "optuna", "--samples", 2]
    words += ["--env-steps", 30_000, "--checkpoint-steps", 4_000]
    folder = tmp_path / "sweeps" / "s"
    words += ["--concurrent", 1, "--name", "s", "--no-plot"]
    with started(tmp_path, *words) as process:
        await_report(folder, 2, process)
        process.kill()
    before = [json.loads((folder / f"trials/00{n}/trial.json").read_text()) for n in (1, 2)]
    assert [record["status"] for record in before] == ["finished", "running"]
    first = (folder / "trials/001/seed_1/result.json").read_text()
    until = time.monotonic() + 30
    while processes_of(tmp_path) and time.monotonic() < until:
        time.sleep(0.2)
    assert processes_of(tmp_path) == []

    words = ["sweep", "--resume", folder, "--samples", 3, "--no-plot", "--json"]
    status, output, errors = call(tmp_path, *words)
    assert status == 0, errors
    trials = json.loads(output)["trials"]
    assert [record["status"] for record in trials] == ["finished"] * 3
    assert trials[0] == before[0]
    assert (folder / "trials/001/seed_1/result.json").read_text() == first
    assert trials[1]["values"] == before[1]["values"]
    assert trials[1]["env_steps"] >= 30_000
    assert "resuming at step" in (folder / "trials/002/seed_1.txt").read_text()


@needs_ray
@pytest.mark.long
def test_ctrl_c_keeps_the_sweep_and_ends_every_process(tmp_path):
    words = [*PPO, *SMALL, "--algo.learning_rate", "log:1e-4:1e-2", "--samples", 2, "--no-plot"]
    folder = tmp_path / "sweeps" / "s"
    words += ["--env-steps", 100_000, "--concurrent", 1, "--name", "s"]
    with started(tmp_path, *words) as process:
        await_report(folder, 1, process)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"rookery sweep --resume {Path('sweeps') / 's'}" in output
    assert processes_of(tmp_path) == []
    result = json.loads((folder / "trials/001/seed_1/result.json").read_text())
    assert result["status"] == "interrupted"


@needs_ray
@pytest.mark.long
def test_sweep_whose_trials_all_fail_reports_the_first_reason(tmp_path):
    words = [*PPO, *SMALL, "--algo.learning_rate", "log:1e-4:1e-2", "--samples", 1]
    status, output, errors = call(tmp_path, *words, "--env-steps", 300, "--metric", "episode_retur")
    assert status == 1
    assert (
        errors.splitlines()
        == [
            'rookery: every trial failed; the first: metric: there is no column "episode_retur" in'
            ' progress.csv. Did you mean "episode_return_ema"?'
        ]
        or 'there is no column "episode_retur" in progress.csv' in errors
    )
    assert "failed" in output


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (
            ["--algo.gama", "log:1e-3:1"],
            '--algo.gama: no such option. Did you mean "--algo.gamma"?',
        ),
        (["--algo.gamma", "uniform:1:0.9"], "algo.gamma: uniform:1:0.9: LOW must be below HIGH"),
        (["--algo.gamma", "uniform:0.5:2"], "algo.gamma must lie in (0, 1], got 2"),
        (["--algo.gamma", "loguniform:1:2"], "A space is one of log:LOW:HIGH"),
        (["--algo.gamma", "uniform:0.9:1", "--search", "grid"], "has too many values for a grid"),
        (["--algo.gamma", "uniform:0.9:1", "--samples", "0"], "samples must be at least 1, got 0"),
        (["--algo.gamma", "choice:0.9,1", "--samples", "5"], "samples: 5, but there are 2 points"),
        (["--algo.gamma", "0.9"], "no setting is searched"),
        (
            ["--algo.gamma", "choice:0.9,1", "--search", "grid", "--samples", "2"],
            "remove --samples",
        ),
        (["--algo.gamma", "uniform:0.9:1", "--grace-steps", "5"], "has no effect without --asha"),
        (["--algo.gamma", "uniform:0.9:1", "--asha", "--grace-steps", "2e6"], "is not below"),
        (["--env-steps", "int:5:9"], "env_steps cannot be searched: trials are compared"),
        (["--seed", "int:5:9"], "seed cannot be searched: use --seeds"),
        (["--algo.gamma", "uniform:0.9:1", "--actors", "2"], "backend=serial runs one actor"),
        (["--algo.gamma", "uniform:0.9:1", "--spec", "no.yaml"], "spec: no.yaml cannot be read"),
        (["--algo.gamma", "uniform:0.9:1", "--ray-address", "x"], '"x" is not HOST:PORT'),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(args, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status = main([*PPO, *args])
    captured = capsys.readouterr()
    assert (status, captured.out, captured.err.count("\n")) == (2, "", 1)
    assert named in captured.err
    assert os.listdir(tmp_path) == []


def test_resume_refuses_a_folder_without_a_sweep(capsys, tmp_path):
    assert main(["sweep", "--resume", str(tmp_path)]) == 2
    assert "is not a sweep folder" in capsys.readouterr().err
    assert main(["sweep", "--resume", str(tmp_path), "--seeds", "2"]) == 2
    assert "--seeds has no effect with --resume" in capsys.readouterr().err


@pytest.mark.parametrize(("missing", "extra"), [("ray", "sweep"), ("optuna", "sweep")])
def test_missing_extra_is_named(missing, extra, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else find(name)
    )
    assert main([*PPO, "--algo.gamma", "uniform:0.9:1", "--search", "optuna"]) == 2
    assert f"pip install 'rookery[{extra}]'" in capsys.readouterr().err


def test_yaml_spec_equals_the_same_command_line(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(
        """
        algorithm: ppo
        environment: CartPole-v1
        search: optuna
        samples: 7
        settings:
          env_steps: 2_000
          algo: {learning_rate: {log: [1e-5, 1e-2]}, normalize_advantage: "choice:true,false"}
          env.kwargs: {render_mode: null}
          net: {hidden: {choice: [[64, 64], [32]]}}
        """
    )
    written, _ = new_sweep(["--spec", str(file), "--samples", "8"])
    typed, _ = new_sweep(
        [
            *("ppo", "CartPole-v1", "--search", "optuna", "--samples", "8", "--env-steps", "2000"),
            *("--algo.learning_rate", "log:1e-5:1e-2"),
            *("--algo.normalize_advantage", "choice:true,false"),
            *("--env.kwargs", '{"render_mode": null}', "--net.hidden", "choice:64x64,32"),
        ]
    )
    assert written == typed
    assert written.samples == 8


def test_yaml_spec_with_an_unknown_name_is_refused(capsys, tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text("algorithm: ppo\nenvironment: CartPole-v1\nsample: 5\n")
    assert main(["sweep", "--spec", str(file)]) == 2
    assert 'no such option: sample. Did you mean "samples"?' in capsys.readouterr().err
    settings = "settings: {algo: {gama: 'uniform:0.9:1'}}\n"
    file.write_text("algorithm: ppo\nenvironment: CartPole-v1\n" + settings)
    assert main(["sweep", "--spec", str(file)]) == 2
    assert 'algo.gama: no such setting. Did you mean "algo.gamma"?' in capsys.readouterr().err


def documented():
    """Return the commands in docs/sweep.md."""
    text = PAGE.read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line.startswith("rookery sweep ")]


def test_documented_sweeps_parse():
    lines = [shlex.split(line)[2:] for line in documented()]
    assert len(lines) >= 3
    for words in lines:
        if not {"--resume", "--spec"} & set(words):
            new_sweep(words)
