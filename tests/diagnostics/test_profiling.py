"""`--profile`: trace, operations and picture."""

import json
import sys

import pytest

import rookery
from rookery.errors import BadInput

SMALL = {
    "use_preset": False,
    "env_steps": 1_500,
    "envs": 4,
    "threads": 1,
    "warm_up_updates": 2,
    "profile": True,
}
PNG = b"\x89PNG\r\n\x1a\n"


def names_in(trace):
    return {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", {"algo": {"rollout_steps": 32}, "backend": "serial"}),
        ("apex", {"algo": {"warm_up": 100, "capacity": 2_000}, "backend": "threads", "actors": 2}),
    ],
)
def test_profile_writes_trace_operations_and_picture(tmp_path, algorithm, settings, capfd):
    run = rookery.train(
        algorithm, "CartPole-v1", runs_dir=tmp_path, console=sys.stdout, **SMALL, **settings
    )
    folder = run.path / "profile"
    assert {path.name for path in folder.iterdir()} == {"trace.json", "operations.txt", "split.png"}
    assert {"aten::addmm", "aten::mm"} <= names_in(folder / "trace.json")
    operations = (folder / "operations.txt").read_text()
    assert "rounds of the run in" in operations
    assert "aten::addmm" in operations
    assert (folder / "split.png").read_bytes()[:8] == PNG
    printed = capfd.readouterr()
    assert f"profile: {folder}" in printed.out
    assert "profiler_start" not in printed.err


def test_profile_includes_actor_threads(tmp_path):
    run = rookery.train(
        *("apex", "CartPole-v1"),
        runs_dir=tmp_path,
        backend="threads",
        actors=2,
        algo={"warm_up": 100, "capacity": 2_000},
        **SMALL,
    )
    trace = json.loads((run.path / "profile" / "trace.json").read_text())
    threads = {event["tid"] for event in trace["traceEvents"] if event.get("name") == "aten::addmm"}
    assert len(threads) >= 2


def test_run_shorter_than_the_profile_still_writes_it(tmp_path):
    run = rookery.train(
        *("ppo", "CartPole-v1"),
        runs_dir=tmp_path,
        backend="serial",
        **SMALL | {"env_steps": 260, "algo": {"rollout_steps": 32}},
    )
    assert (run.path / "profile" / "trace.json").exists()


def test_no_profile_without_the_flag(tmp_path):
    run = rookery.train("ppo", "CartPole-v1", runs_dir=tmp_path, **SMALL | {"profile": False})
    assert not (run.path / "profile").exists()


def test_missing_matplotlib_is_reported_before_the_run_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"profile.*plots"):
        rookery.train("ppo", "CartPole-v1", runs_dir=tmp_path, **SMALL)
    assert list(tmp_path.iterdir()) == []
