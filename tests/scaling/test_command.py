"""`rookery scaling` as a person meets it."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rookery.cli.main import main
from rookery.cli.scaling import plan_scaling
from rookery.errors import RookeryError
from rookery.scaling import trials

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
APEX = ["scaling", "apex", "CartPole-v1", "--points", "1-2,2-2"]


def call(capsys, *args):
    """Exit status, standard output and standard error of a command."""
    status = main([str(arg) for arg in args])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def option(command, name):
    """The value of an option in a run's command."""
    return next(word.partition("=")[2] for word in command if word.startswith(f"--{name}="))


@pytest.fixture
def runs(monkeypatch):
    """Commands of the runs, which leave reports of 100 steps/s for each actor instead."""
    commands = []

    def pretend(command, console, limit_s, watch):
        commands.append(command)
        folder = Path(option(command, "runs-dir")) / option(command, "name")
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        speed = 100 * int(option(command, "actors"))
        lines = [f"{s * speed},{s},{s},{speed},0.5,20" for s in range(11)]
        head = "env_steps,updates,seconds,env_steps_per_second,env_s,cpu_percent"
        (folder / "progress.csv").write_text("\n".join([head, *lines, ""]))
        console.write_text(f"{command[4]} on {command[5]}: threads x 1, on the moon\n")
        watch()

    monkeypatch.setattr(trials, "run_child", pretend)
    return commands


def test_a_study_runs_trains_by_turns_and_leaves_its_files(capsys, runs, tmp_path):
    out = tmp_path / "study"
    args = ["--no-preset", "--repeat", 2, "--minutes", 0.2, "--out", out]
    status, text, _ = call(capsys, *APEX, *args)
    assert status == 0
    names = ["1-2_round1", "2-2_round1", "1-2_round2", "2-2_round2"]
    assert [option(command, "name") for command in runs] == names
    assert runs[0][:6] == [sys.executable, "-m", "rookery", "train", "apex", "CartPole-v1"]
    assert "--json" in runs[0]
    assert {option(command, "stop-minutes") for command in runs} == {"0.2"}
    assert "backend threads at every point" in text
    assert "4/4  round 2  2-2  200 steps/s  threads x 1, on the moon" in text
    assert re.search(r"2-2 +2 +2 +200 +\(200\.\.200\) +2\.00 +2 +100 % +200", text)
    assert {"scaling.csv", "scaling.json", "scaling.png", "runs"} == set(os.listdir(out))


def test_a_reference_is_compared_with_the_study(capsys, runs, tmp_path):
    figures = tmp_path / "other.csv"
    figures.write_text("series,environments,threads,steps_per_second\nother,2,1,50\n")
    args = ["--repeat", 1, "--out", tmp_path / "study", "--reference", figures]
    status, text, _ = call(capsys, *APEX, *args)
    assert status == 0
    assert {option(command, "threads") for command in runs} == {"1"}
    # 1 actor of 2 environments is 2-1 there, 2 actors are 4-2.
    assert re.search(r"point +here +other\n2-1 +100\.0 +50\.0 \(2\.0 x\)\n4-2 +200\.0 +-\n", text)
    told = json.loads((tmp_path / "study" / "scaling.json").read_text())["reference"]
    assert told["labels"] == {"1-2": "2-1", "2-2": "4-2"}
    args = ["--mode", "strong", "--points", "1-2,2-2", "--reference", figures]
    status, _, told = call(capsys, *APEX[:3], *args)
    assert status == 2
    assert "--reference is for --mode weak, got strong" in told


class Terminal(io.StringIO):
    """What a person looks at."""

    def isatty(self):
        return True


def test_a_terminal_shows_how_far_a_run_is(runs, monkeypatch, tmp_path):
    monkeypatch.setattr(trials, "SHOW_S", 0.0)
    planned, _ = plan_scaling(
        [*APEX[1:], "--repeat", "1", "--minutes", "0.2", "--out", str(tmp_path / "o")]
    )
    planned.console = Terminal()
    planned.carry_out()
    lines = planned.console.getvalue().split("\n")
    assert lines[1].split("\r\x1b[K")[1:] == [
        "1/2  round 1  1-2  starting",
        "1/2  round 1  1-2  10 of 12 s  100 steps/s",
        "1/2  round 1  1-2  100 steps/s  threads x 1, on the moon",
    ]


@pytest.mark.parametrize(("minutes", "limit_s"), [(0.5, 150), (10, 1_200)])
def test_a_run_has_time_to_start_and_to_stop(minutes, limit_s, runs, monkeypatch, tmp_path):
    limits, pretend = [], trials.run_child
    monkeypatch.setattr(trials, "run_child", lambda *args: (limits.append(args[2]), pretend(*args)))
    args = ["--points", "1-2", "--repeat", "1", "--minutes", str(minutes)]
    planned, _ = plan_scaling(["apex", "CartPole-v1", *args, "--out", str(tmp_path / "o")])
    planned.carry_out()
    assert limits == [limit_s]


def test_json_is_all_of_standard_output(capsys, runs, tmp_path):
    status, text, told = call(capsys, *APEX, "--repeat", 1, "--out", tmp_path / "o", "--json")
    result = json.loads(text)
    assert status == 0
    assert "round 1" in told
    assert result["status"] == "finished"
    assert [row["steps_per_second"] for row in result["studies"]["weak"]] == [100, 200]
    assert json.loads((tmp_path / "o" / "scaling.json").read_text())["studies"] == result["studies"]


@pytest.mark.parametrize(
    ("words", "backend"),
    [
        (["apex", "--points", "1-2,2-2"], "threads"),
        (["ppo", "--points", "1-2,2-2"], "ranks"),
        (["ppo", "--points", "1-2,1-4"], "serial"),
        (["apex", "--points", "1-2,2-2", "--backend", "ranks"], "ranks"),
    ],
)
def test_all_points_use_the_backend_of_the_largest(words, backend, tmp_path):
    planned, _ = plan_scaling([words[0], "CartPole-v1", *words[1:], "--out", str(tmp_path / "o")])
    points = list(planned.study.point_runs)
    commands = [planned.command(point, "x") for point in points]
    assert {option(command, "backend") for command in commands} == {backend}
    assert [option(command, "actors") for command in commands] == [str(p.actors) for p in points]


def test_options_of_train_reach_every_run(runs, capsys, tmp_path):
    extra = ["--no-preset", "--algo.n_step", "2", "--no-algo.dueling", "--net.hidden", "16,16"]
    args = [*APEX, *extra, "--repeat", "1", "--no-plot", "--mode", "both", "--out", tmp_path / "o"]
    assert call(capsys, *args)[0] == 0
    assert len(runs) == 3
    for command in runs:
        given = {"--algo.n_step=2", "--algo.dueling=false", "--net.hidden=16,16"}
        assert given <= set(command)
        assert option(command, "no_preset") == "true"
        assert option(command, "eval_steps") == "none"
    assert [(option(c, "actors"), option(c, "envs")) for c in runs] == [
        *(("1", "2"), ("2", "2"), ("2", "1"))
    ]
    assert not (tmp_path / "o" / "scaling.png").exists()


def test_coupling_of_learner_and_actors_follows_from_the_config():
    def coupling(*words):
        return plan_scaling([*words, "--points", "1-2,2-2"])[0].study.coupling

    assert coupling("apex", "CartPole-v1") == "ratio"  # the preset's samples_per_insert
    assert coupling("apex", "CartPole-v1", "--no-preset") == "free"
    assert coupling("ppo", "CartPole-v1") == "turns"
    assert coupling("apex", "CartPole-v1", "--backend", "ranks") == "turns"


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--algo.gama", "0.9"], "--algo.gama: no such option"),
        (["--algo.gamma", "2"], "algo.gamma must lie in"),
        (["--points", "1-2,2"], 'got "2"'),
        (["--points", "1-2,3-2", "--mode", "strong"], "3-2 cannot divide 2 environments"),
        (["--mode", "week"], "mode"),
        (["--repeat", "0"], "repeat must be at least 1, got 0"),
        (["--minutes", "0"], "minutes must be positive"),
        (["--actors", "2"], "--actors cannot be used with scaling; --points says how many"),
        (["--stop-minutes", "2"], "use --minutes"),
        (["--resume", "runs/x"], "--resume cannot be used with scaling"),
        (["--preset", "Nowhere-v0"], "preset: apex has no preset"),
        (["--backend", "serial"], "backend=serial runs one actor, got actors=2"),
        (["--net.core", "lstm"], "apex has no memory; use r2d2"),
        (["Acrobot-v1"], 'expected one algorithm and one environment, got "Acrobot-v1" too'),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(args, named, capsys, runs, tmp_path):
    out = tmp_path / "o"
    status, text, told = call(capsys, *APEX, *args, "--out", out)
    assert status == 2
    assert named in told
    assert told.count("\n") == 1
    assert text == ""
    assert runs == []
    assert not out.exists()


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["apex", "CartPole-v9", "--points", "1-2"], "CartPole-v9"),
        (["apexx", "CartPole-v1", "--points", "1-2"], "apexx"),
        (["apex", "Pendulum-v1", "--points", "1-2"], "apex"),
        (["apex", "CartPole-v1"], "points: must be set"),
        (["apex", "--points", "1-2"], "expected an algorithm and an environment"),
    ],
)
def test_unknown_algorithms_and_environments_are_refused(args, named, capsys, runs):
    status, _, told = call(capsys, "scaling", *args)
    assert (status, told.count("\n"), runs) == (2, 1, [])
    assert named in told


def test_without_matplotlib_nothing_is_run(capsys, runs, monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    status, _, told = call(capsys, *APEX, "--out", tmp_path / "o")
    assert (status, runs) == (2, [])
    assert "pip install 'rookery[plots]'" in told
    assert call(capsys, *APEX, "--repeat", 1, "--no-plot", "--out", tmp_path / "o")[0] == 0


def test_a_folder_in_use_is_refused(capsys, runs, tmp_path):
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "precious").touch()
    status, _, told = call(capsys, *APEX, "--out", tmp_path / "o")
    assert (status, runs) == (2, [])
    assert "is not empty" in told


def test_the_default_folder_is_named_after_the_study(capsys, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(capsys, *APEX, "--repeat", 1, "--no-plot")[0] == 0
    (folder,) = (tmp_path / "scaling").iterdir()
    assert re.match(r"apex_CartPole-v1_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", folder.name)


def test_a_run_that_fails_is_reported_and_other_points_run(capsys, runs, monkeypatch, tmp_path):
    good = trials.run_child

    def fail_first(command, *rest):
        if option(command, "actors") == "1":
            raise RookeryError("the pole broke")
        good(command, *rest)

    monkeypatch.setattr(trials, "run_child", fail_first)
    out = tmp_path / "o"
    status, text, _ = call(capsys, *APEX, "--repeat", 2, "--out", out)
    assert status == 1
    assert "1/4  round 1  1-2  failed: the pole broke" in text
    assert "1-2 failed after 0 good runs: the pole broke" in text
    assert f"failed: {out}" in text
    assert len(runs) == 2
    assert (out / "scaling.png").exists()


def test_a_run_without_updates_fails_its_point(capsys, runs, monkeypatch, tmp_path):
    good = trials.run_child

    def never_learn(command, *rest):
        good(command, *rest)
        path = Path(option(command, "runs-dir")) / option(command, "name") / "progress.csv"
        path.write_text(re.sub(r"(?m)^(\d+),\d+", r"\1,0", path.read_text()))

    monkeypatch.setattr(trials, "run_child", never_learn)
    status, text, _ = call(capsys, *APEX, "--repeat", 1, "--out", tmp_path / "o")
    assert status == 1
    assert "failed: 0 updates" in text
    assert not (tmp_path / "o" / "scaling.png").exists()


def test_an_interrupt_keeps_what_is_finished(capsys, runs, monkeypatch, tmp_path):
    good = trials.run_child

    def interrupted(command, *rest):
        if len(runs) == 3:
            raise KeyboardInterrupt
        good(command, *rest)

    monkeypatch.setattr(trials, "run_child", interrupted)
    status, text, _ = call(capsys, *APEX, "--out", tmp_path / "o")
    assert status == 130
    assert "4/6  round 2  2-2  interrupted" in text
    told = json.loads((tmp_path / "o" / "scaling.json").read_text())
    assert told["status"] == "interrupted"
    assert [row["runs"] for row in told["studies"]["weak"]] == [2, 1]
    assert (tmp_path / "o" / "scaling.png").exists()


def test_documented_commands_would_run():
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    calls = [shlex.split(line, comments=True) for line in lines if "rookery scaling" in line]
    assert len(calls) >= 3
    for words in calls:
        plan_scaling(words[words.index("scaling") + 1 :])


def test_importing_a_study_needs_no_torch():
    code = "import sys, rookery.scaling.trials, rookery.reports.scaling;"
    code += " print({'torch', 'matplotlib'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert output == "set()\n"


def command(out, algorithm, *args):
    """A study in a process of its own."""
    study = ["scaling", algorithm, "CartPole-v1", "--no-preset", "--threads", "1", *args]
    return [sys.executable, "-m", "rookery", *study, "--out", str(out)]


def test_a_real_study(tmp_path):
    """Long enough for the learner to get under way on a busy machine."""
    args = ["--points", "2-2", "--repeat", "1", "--minutes", "0.15", "--json"]
    args += ["--algo.warm_up", "50", "--algo.samples_per_insert", "1", "--net.hidden", "8"]
    whole = command(tmp_path / "o", "apex", *args)
    done = subprocess.run(whole, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["backend"], result["coupling"]) == ("threads", "ratio")
    (row,) = result["studies"]["weak"]
    assert row["steps_per_second"] > 0
    assert set(row["percent"]) >= {"env", "inference", "learn", "reduce", "wait", "actor_wait"}
    assert 0 < row["percent"]["env"] + row["percent"]["inference"] <= 101
    assert 0 < row["cores_used"] <= result["cores"] + 0.1
    assert "threads x 2, 2 environments each" in done.stderr
    run = json.loads((tmp_path / "o" / "runs" / "2-2_round1" / "result.json").read_text())
    assert run["status"] == "time is up"


def running_below(folder):
    """Processes that name the folder in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(str(folder) in word for word in words):
            found.append(int(path.parent.name))
    return found


def test_ctrl_c_ends_the_ranks_of_the_run_under_way(tmp_path):
    out = tmp_path / "o"
    args = ["--points", "2-2,1-2", "--repeat", "1", "--minutes", "5"]
    args += ["--learner.transport", "gloo", "--algo.rollout_steps", "8"]
    process = subprocess.Popen(command(out, "ppo", *args), stdout=subprocess.PIPE, text=True)
    progress = out / "runs" / "2-2_round1" / "progress.csv"
    deadline = time.monotonic() + 60
    try:
        while not progress.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(running_below(out)) >= 3
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=30)
    finally:
        process.terminate()
        process.wait()
    assert process.returncode == 130
    assert "interrupted" in text
    assert running_below(out) == []
    assert json.loads((out / "scaling.json").read_text())["status"] == "interrupted"
