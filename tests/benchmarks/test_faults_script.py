"""The benchmark of planted faults counts what is named, and writes its tables."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import faults
from planted.running import Bench, flags, measure_fault, measure_healthy
from planted.runs import HEALTHY_RUNS, preset
from planted.table import FAULTS, Fault

FAULT = Fault(
    name="planted",
    planted="something",
    place="environment",
    run=preset("ppo", "CartPole-v1", **{"env-steps": 5, "env.normalize_obs": True}),
    rules=frozenset({"right"}),
    checks=frozenset({"seen"}),
    probes=frozenset({3}),
)
INSPECT = ["inspect", "CartPole-v1", "--no-picture", "--env.normalize_obs", "true"]


class Answers(Bench):
    """Instruments that answer what they are told to."""

    def __init__(self, rules=(), checks=(), failed=()):
        super().__init__(Path("nowhere"))
        self.rules, self.checks, self.failed = rules, checks, failed

    def ask(self, fault, words):
        assert fault == FAULT.name
        if words[0] == "inspect":
            assert words == INSPECT
            return {"findings": [{"check": name} for name in self.checks]}
        if words[1] == "ppo":
            probes = [
                {"probe": n, "status": "failed" if n in self.failed else "passed", "title": "t"}
                for n in range(1, 10)
            ]
            return {"probes": probes}
        return None if self.rules is None else {"findings": [{"rule": r} for r in self.rules]}


@pytest.mark.parametrize(
    ("answers", "named_by"),
    [
        (Answers(["other", "right"]), "run: right"),
        (Answers(["other", "another", "right"]), None),
        (Answers(["other"], ["seen"]), "inspect: seen"),
        (Answers([], ["a", "b", "seen"]), None),
        (Answers([], [], [3, 4]), "probe 3: t"),
        (Answers([], [], [2, 3]), None),
        (Answers(None, ["seen"]), "inspect: seen"),
        (Answers(), None),
    ],
)
def test_first_or_second_finding_names_a_fault(answers, named_by):
    verdict = answers.judge(FAULT, Path("run"))
    assert verdict.named_by == named_by
    assert verdict.findings == (None if answers.rules is None else list(answers.rules))


def test_settings_become_options():
    settings = {"no-preset": True, "algo.gamma": 0.5, "env.normalize_obs": False}
    assert flags(settings) == ["--no-preset", "--algo.gamma", "0.5", "--env.normalize_obs", "false"]


def found(name, named_by, findings=(), healthy=500.0, broken=9.25):
    return {
        "fault": name,
        "planted": f"what {name} is",
        "run": "ppo CartPole-v1",
        "healthy": healthy,
        "broken": broken,
        "findings": findings,
        "named_by": named_by,
    }


def test_tables_replace_what_stands_between_the_marks():
    page = f"before\n{faults.START}\nold\n{faults.END}\nafter\n"
    rows = [found("a", "run: x", ["x", "y", "z"]), found("b", None, None, broken=None)]
    healthy = [
        {"run": "dqn Recall", "seed": 2, "return": 0.5, "seconds": 12.0, "findings": []},
        {"run": "dqn Recall", "seed": 3, "return": 0.4, "seconds": 11.0, "findings": ["x"]},
    ]
    text = faults.with_tables(page, rows, healthy)
    assert text.startswith(f"before\n{faults.START}\n1 of 2 faults named; 1 false alarms in 2 ")
    assert "| a | what a is | ppo CartPole-v1 | 500 | 9.25 | x | y | run: x |" in text
    assert "| b | what b is | ppo CartPole-v1 | 500 | - | - | - | - |" in text
    assert "| dqn Recall | 2 | 0.5 | 12 | none |" in text
    assert "old" not in text
    assert text.endswith(f"{faults.END}\nafter\n")
    assert faults.with_tables(text, rows, healthy) == text


def test_page_without_marks_is_refused():
    with pytest.raises(SystemExit, match="--docs"):
        faults.with_tables("a page", [], [])


def test_unknown_fault_is_refused(capsys):
    with pytest.raises(SystemExit):
        faults.main(["--faults", "dead_unit"])
    assert "unknown faults dead_unit" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_at_least_17_faults_are_named_and_every_fault_hurts(tmp_path):
    bench = Bench(tmp_path)
    rows = [measure_fault(bench, fault, seed=1) for fault in FAULTS.values()]
    assert [row["fault"] for row in rows if row["broken"] >= row["healthy"]] == []
    assert sum(row["named_by"] is not None for row in rows) >= 17, faults.summary(rows, [])


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_at_most_one_healthy_run_gets_a_finding(tmp_path):
    bench = Bench(tmp_path)
    rows = [measure_healthy(bench, run, seed) for run, seeds in HEALTHY_RUNS for seed in seeds]
    assert all(row["findings"] is not None for row in rows)
    assert sum(bool(row["findings"]) for row in rows) <= 1, faults.summary([], rows)
