"""rookery doctor RUN: words, exit status, JSON, rules of the user, folders that cannot be read."""

from __future__ import annotations

import json

import pytest

from rookery.cli.main import main
from rookery.diagnostics.rules import RUN_RULES

CONFIG = {
    "algorithm": "ppo",
    "environment": "CartPole-v1",
    "env_steps": 5_000,
    "algo": {"gamma": 0.99},
}
ROWS = """env_steps,updates,episodes,episode_return_mean,episode_return_std,grad_norm,policy_churn
1000,10,50,20,5,0.5,0.1
2000,20,100,60,20,0.5,0.1
3000,30,150,120,30,0.5,0.1
5000,50,250,200,40,0.5,0.1
"""
RESULT = {"status": "finished", "random_return": {"mean": 21.0, "half_width": 2.0, "episodes": 100}}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "progress.csv").write_text(ROWS)
    (path / "result.json").write_text(json.dumps(RESULT))
    return path


def call(capsys, *args):
    """Return exit status, standard output and standard error of a command."""
    status = main(["doctor", *map(str, args)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_healthy_run(capsys, folder):
    status, out, _ = call(capsys, folder)
    assert status == 0
    assert out.splitlines() == [
        "ppo on CartPole-v1, 5,000 steps, finished",
        "learned: mean return 200, random policy 21"
        " (they differ with a confidence of more than 99.9 %)",
        "nothing looks wrong",
    ]


def test_findings_are_printed_with_figure_source_and_remedy(capsys, folder):
    (folder / "config.json").write_text(json.dumps(CONFIG | {"algo": {"gamma": 0.5}}))
    rows = [
        f"{line},{length}"
        for line, length in zip(
            ROWS.split(), ("episode_length_mean", 20, 60, 120, 200), strict=True
        )
    ]
    (folder / "progress.csv").write_text("\n".join(rows) + "\n")
    status, out, _ = call(capsys, folder)
    assert status == 1
    assert "1. gamma_short: gamma 0.5 sees 2 steps ahead, episodes have 200 steps" in out
    assert "rests on: algo.gamma = 0.5" in out
    assert "try: raise algo.gamma" in out
    status, out, _ = call(capsys, folder, "--json")
    found = json.loads(out)
    assert status == 1
    assert found["findings"][0]["rule"] == "gamma_short"
    assert found["learned"]["kind"] == "better"
    assert found["learned"]["confidence"] > 0.999


def test_run_without_diagnosis_says_so(capsys, folder):
    rows = [line.rpartition(",")[0] for line in ROWS.split()]
    (folder / "progress.csv").write_text("\n".join(rows) + "\n")
    assert "no columns of --diagnose" in call(capsys, folder)[1]


def test_running_and_failed_runs(capsys, folder):
    (folder / "result.json").unlink()
    out = call(capsys, folder)[1]
    assert "5,000 steps, not finished" in out
    assert "the return of a random policy is not known" in out
    (folder / "result.json").write_text(
        json.dumps({"status": "failed", "error": "training diverged: loss is nan"})
    )
    status, out, _ = call(capsys, folder)
    assert status == 1
    assert "1. diverged: the run stopped: training diverged: loss is nan" in out


def test_last_line_that_a_crash_cut_is_left_out(capsys, folder):
    (folder / "progress.csv").write_text(ROWS + "6000,60")
    status, out, _ = call(capsys, folder)
    assert status == 0
    assert "5,000 steps" in out


def test_rules_of_a_user(capsys, folder, tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text(
        "from rookery.diagnostics.rules import Symptom, rule\n"
        "@rule('mine', remedy='do it', source='me')\n"
        "def mine(history):\n"
        "    return Symptom('grad_norm', history.last('grad_norm'), 0, 'it is so')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        status, out, _ = call(capsys, folder, "--rules", "my_rules")
        assert status == 1
        assert "1. mine: it is so (since step 0)" in out
    finally:
        RUN_RULES.pop("mine", None)


def without_config(folder):
    (folder / "config.json").unlink()


def cut_config(folder):
    (folder / "config.json").write_text('{"algorithm": "pp')


def other_config(folder):
    (folder / "config.json").write_text('{"agent": "ppo"}')


def without_reports(folder):
    (folder / "progress.csv").unlink()


def empty_reports(folder):
    (folder / "progress.csv").write_text("")


def few_reports(folder):
    (folder / "progress.csv").write_text("\n".join(ROWS.split()[:3]) + "\n")


def other_reports(folder):
    (folder / "progress.csv").write_text("steps,reward\n1,2\n2,3\n3,4\n")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (without_config, "not a run folder"),
        (cut_config, "config.json"),
        (other_config, "another version: config.json has no algorithm"),
        (without_reports, "no reports"),
        (empty_reports, "cut short: 0 reports"),
        (few_reports, "cut short: 2 reports"),
        (other_reports, "another version: progress.csv has no column env_steps"),
    ],
)
def test_folder_that_cannot_be_examined_is_one_line_and_status_2(capsys, folder, harm, words):
    harm(folder)
    status, out, err = call(capsys, folder)
    (line,) = err.splitlines()
    assert (status, out) == (2, "")
    assert words in line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--rules", "no_such_module"], "no_such_module"),
        (["--replay", "dead_units"], "no trap dead_units"),
        (["--probes", "3"], "--probes"),
        (["other"], "other"),
    ],
)
def test_bad_options(capsys, folder, args, words):
    status, _, err = call(capsys, folder, *args)
    assert status == 2
    assert words in err
