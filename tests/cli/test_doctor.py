"""rookery doctor: lines, exit status, JSON, bad input."""

from __future__ import annotations

import json

import pytest

from rookery.cli.main import main

SHORT = ["--env-steps", "300"]


def call(capsys, *args):
    """Return exit status, standard output and standard error of a command."""
    status = main(["doctor", *map(str, args)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_failure_is_explained_and_exits_with_status_1(capsys):
    status, out, _ = call(capsys, "ppo", "--probes", "1,7", "--algo.value_coef", "0", *SHORT)
    first, second, _, meaning, look, later = out.splitlines()
    assert status == 1
    assert first.startswith("1  value of a constant     failed   value of the only observation: ")
    assert ", expected 1.000 (" in first
    assert second == "7  memory                  skipped  " + (
        "ppo has no recurrent state with net.core=none"
    )
    assert meaning.startswith("The first failure is probe 1, value of a constant: ")
    assert look.startswith("Look at: value loss")
    assert "rookery doctor ppo --probes 1 --runs-dir runs" in later


def test_all_passed_exits_with_status_0(capsys, tmp_path):
    status, out, err = call(
        capsys, "ppo", "--probes", "2", "--json", "--runs-dir", tmp_path, "--seed", "3"
    )
    report = json.loads(out)
    (probe,) = report["probes"]
    assert status == 0
    assert report["algorithm"] == "ppo"
    assert report["passed"] is True
    assert (probe["probe"], probe["status"]) == (2, "passed")
    assert probe["environment"] == "rookery/Probe2-v0"
    assert probe["figure"] == pytest.approx(probe["expected"], abs=0.1)
    preset, line = err.splitlines()
    assert preset.startswith("preset: Probes, algo.gamma 0.8")
    assert line.startswith("2  value of an observation passed")
    (run,) = tmp_path.iterdir()
    assert json.loads((run / "config.json").read_text())["seed"] == 3


def test_json_says_what_a_failure_means(capsys):
    options = ["--probes", "1", "--algo.value_coef", "0", "--json", *SHORT]
    status, out, _ = call(capsys, "ppo", *options)
    report = json.loads(out)
    assert status == 1
    assert report["passed"] is False
    assert report["probes"][0]["look"].startswith("value loss")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], ["expected", "algorithm"]),
        (["--json"], ["expected", "algorithm"]),
        (["poo"], ['"poo"', '"ppo"', "environment"]),
        (["."], ["not a run folder", "config.json"]),
        ([".", "--replay", "zero_gradient"], ["not a run folder"]),
        (["CartPole-v1", "Acrobot-v1"], ["Acrobot-v1"]),
        (["CartPole-v1", "--algorithm", "pop"], ["pop", "ppo"]),
        (["ppo", "CartPole-v1"], ["CartPole-v1"]),
        (["ppo", "--resume", "x"], ["--resume", "doctor"]),
        (["ppo", "--name", "x"], ["--name", "--runs-dir"]),
        (["ppo", "--environment", "x"], ["--environment", "doctor"]),
        (["ppo", "--probes", "0"], ["probes", "1 to 9", "0"]),
        (["ppo", "--algo.gama", "1"], ["--algo.gamma"]),
        (["ppo", "--backend", "threads"], ["backend=threads", "ppo"]),
        (["ppo", "--env.frame_stack", "4"], ["env.frame_stack=4", "answers of probes"]),
        (["r2d2", "--net.core", "none"], ["net.core=none"]),
    ],
)
def test_bad_input_is_one_line_and_exits_with_status_2(capsys, args, words):
    status, out, err = call(capsys, *args)
    (line,) = err.splitlines()
    assert (status, out) == (2, "")
    assert all(word in line for word in words)


def test_unknown_algorithm_for_an_environment_is_refused_before_it_is_played(capsys):
    status, _, err = call(capsys, "CartPole-v1", "--algorithm", "nope")
    assert status == 2
    assert "nope" in err


def test_help_lists_the_options(capsys):
    status, out, _ = call(capsys, "--help")
    assert status == 0
    assert "--probes" in out
