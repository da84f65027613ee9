"""`rookery bench` as a person meets it: what it prints, writes, and leaves with."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys

import pytest

import rookery
from rookery.bench import runner
from rookery.bench.runner import ProgressBar
from rookery.cli.main import main

SPEED = "data: {speed: {regexp: 'speed (.*)', better: higher}}"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Away from the repository, in a folder that is in none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))


def bench(capsys, text, *args):
    """Exit status, standard output and standard error of a bench of one spec."""
    with open("spec.yaml", "w") as file:
        file.write(text)
    status = main(["bench", "spec.yaml", *map(str, args)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def results(folder="logs"):
    with open(f"{folder}/benchmark_results.json") as file:
        return json.load(file)


def rows_of(capsys, text, *args):
    """Status and rows of a bench into the folder `logs`."""
    status, *_ = bench(capsys, text, "--log-dir", "logs", *args)
    return status, results()["rows"]


def test_a_row_has_command_settings_versions_and_machine(capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    text = """
a:
  description: says how fast
  cmd: echo speed {n}.5 {seed}
  parameters: [[n, seed], [1, 11], [2, 12]]
  env: {WHO: "w{n}"}
  data: {speed: {regexp: 'speed (\\S+)'}}
"""
    status, rows = rows_of(capsys, text)
    assert status == 0
    assert [row["parameters"] for row in rows] == [{"n": 1, "seed": 11}, {"n": 2, "seed": 12}]
    row = rows[1]
    assert row["benchmark"] == "a"
    assert row["command"] == ["echo", "speed", "2.5", "12"]
    assert row["environment"] == {"WHO": "w2", "OMP_NUM_THREADS": "1"}
    assert row["metrics"] == {"speed": 2.5}
    assert (row["result"], row["reason"]) == ("ok", None)
    assert row["seed"] == 12
    assert row["git_commit"] is None
    assert row["host"] == os.uname().nodename
    assert row["cores"] == len(os.sched_getaffinity(0))
    assert row["versions"]["python"] == sys.version.split()[0]
    assert row["versions"]["rookery"] == rookery.__version__
    assert {"torch", "numpy", "gymnasium"} <= set(row["versions"])
    assert 0 < row["duration"] < 10


def test_logs_csv_and_markdown(capsys):
    text = f"a: {{cmd: 'echo speed {{x}}', parameters: {{x: ['1', '2 | 3']}}, {SPEED}}}"
    rows_of(capsys, text)
    with open("logs/001_a.stdout.log") as file:
        assert file.read() == "speed 1\n"
    assert os.path.getsize("logs/001_a.stderr.log") == 0
    with open("logs/benchmark_results.csv") as file:
        first, second = csv.DictReader(file)
    assert first["metric.speed"] == "1.0"
    assert (first["parameter.x"], first["result"]) == ("1", "ok")
    assert first["command"] == "echo speed 1"
    assert second["parameter.x"] == "2 | 3"
    assert "not a number" in second["reason"]
    with open("logs/benchmark_results.md") as file:
        lines = file.read().splitlines()
    assert "| x | speed | seconds | result |" in lines
    assert [line for line in lines if line.startswith("| 1 | 1 |")]
    assert [line for line in lines if line.startswith("| 2 \\| 3 |  |") and "not a number" in line]


def test_the_printed_table_has_the_columns_asked_for(capsys):
    text = f"""
a:
  cmd: echo speed {{n}}
  parameters: {{n: [2, 4000]}}
  {SPEED}
  derived: {{half: {{expr: speed / 2}}}}
  output: [[Half of it, half]]
"""
    status, out, _ = bench(capsys, text, "--log-dir", "logs")
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == "a"
    assert lines[1].split() == ["n", "Half", "of", "it", "seconds", "result"]
    assert lines[2].split()[:2] == ["2", "1"]
    assert lines[3].split()[:2] == ["4000", "2,000"]
    assert "finished: 2 ok, 0 failed" in out


def test_one_json_object_on_standard_output(capsys):
    status, out, err = bench(capsys, f"a: {{cmd: echo speed 1, {SPEED}}}", "--json")
    assert status == 0
    printed = json.loads(out)
    assert printed == results(printed["log_dir"])
    assert printed["log_dir"].startswith("bench_logs/20")
    assert "1/1 a: ok" in err


FAILURES = {
    "{cmdd: x, parameters: {n: [1]}}": 'Did you mean "cmd"',
    "{cmd: echo a, data: {x: {regexp: 'b (.*)'}}}": "x: the regexp 'b (.*)' matches nothing",
    "{cmd: echo a, data: {x: {regexp: '(b'}}}": "regular expression",
    "{cmd: 'echo {}', data: {x: {json: a.b}}}": 'x: a.b not found: no "a"',
    "{cmd: [echo, '{\"a\": NaN}'], data: {x: {json: a}}}": "x: a is nan",
    "{cmd: echo inf, data: {x: {regexp: (inf)}}}": "not a finite number",
    "{cmd: no-such-program}": "no-such-program cannot be started: No such file",
    "{cmd: ['{python}', -S, -c, 'raise SystemExit(\"the cause\")']}": "exit status 1: the cause",
    "{cmd: ['{python}', -S, -c, 'import os; os.kill(os.getpid(), 11)']}": "ended by SIGSEGV",
    "{cmd: sleep 60, timeout: 0.2}": "timed out after 0.2 s",
    "{cmd: echo, derived: {x: {expr: 1 / 0}}}": 'x: "1 / 0": division by zero',
    "{cmd: echo, derived: {x: {expr: y}}}": 'derived.x.expr: unknown name "y"',
    "{cmd: echo, derived: {x: {expr: 9 ** 9 ** 9}}}": "too large",
}


@pytest.mark.parametrize("entry", FAILURES)
def test_a_failure_is_reported_and_other_benchmarks_run(capsys, entry):
    status, out, err = bench(capsys, f"bad: {entry}\ngood: {{cmd: echo}}", "--log-dir", "logs")
    bad, good = results()["rows"]
    assert status == 1
    assert bad["result"] == "failed"
    assert FAILURES[entry] in bad["reason"]
    assert bad["metrics"] == {}
    assert good["result"] == "ok"
    assert FAILURES[entry] in out
    assert FAILURES[entry] in err


def test_a_wrong_entry_fails_each_of_its_variants(capsys):
    status, rows = rows_of(capsys, "a: {cmdd: x, parameters: {n: [1, 2]}}")
    assert status == 1
    assert [(row["parameters"], row["result"]) for row in rows] == [
        ({"n": 1}, "failed"),
        ({"n": 2}, "failed"),
    ]


def test_one_variant_may_fail_alone(capsys):
    text = "a: {cmd: echo, parameters: {n: [1, 0, 2]}, derived: {x: {expr: 4 / n}}}"
    status, rows = rows_of(capsys, text)
    assert status == 1
    assert [row["metrics"].get("x") for row in rows] == [4, None, 2]


def test_stop_on_error(capsys):
    text = "a: {cmd: echo}\nb: {cmd: 'false'}\nc: {cmd: echo}"
    status, out, _ = bench(capsys, text, "--stop-on-error", "--log-dir", "logs")
    assert status == 1
    assert [row["benchmark"] for row in results()["rows"]] == ["a", "b"]
    assert results()["status"] == "stopped"
    assert "stopped: 1 ok, 1 failed, 1 not run" in out


def test_the_timeout_option_is_for_benchmarks_without_their_own(capsys):
    text = "a: {cmd: sleep 60}\nb: {cmd: sleep 0.5, timeout: 30}"
    status, rows = rows_of(capsys, text, "--timeout", "0.2")
    assert status == 1
    assert rows[0]["reason"] == "timed out after 0.2 s"
    assert rows[1]["result"] == "ok"


def test_benchmarks_by_name_and_from_several_specs(capsys, tmp_path):
    (tmp_path / "more.yaml").write_text("d: {cmd: echo}")
    text = "a: {cmd: echo}\nb: {cmd: echo}\nc: {cmd: echo}"
    named = ("--benchmark=c", "--benchmark", "a", "--benchmark", "d")
    bench(capsys, text, "more.yaml", *named, "--log-dir", "logs")
    assert [row["benchmark"] for row in results()["rows"]] == ["a", "c", "d"]
    bench(capsys, text, "more.yaml", "--log-dir", "logs")
    assert [row["benchmark"] for row in results()["rows"]] == ["a", "b", "c", "d"]


def test_list_runs_nothing(capsys):
    text = "a: {cmd: touch ran, description: makes a file, parameters: {n: [1, 2]}}"
    status, out, _ = bench(capsys, text, "--list")
    assert status == 0
    assert out.split() == ["a", "2", "variants", "makes", "a", "file"]
    status, out, _ = bench(capsys, f"{text}\nb: {{cmdd: x}}", "--list", "--json")
    assert status == 1
    assert json.loads(out)["a"]["variants"] == 2
    assert '"cmd"' in json.loads(out)["b"]["problem"]
    assert os.listdir() == ["spec.yaml"]


COUNTER = (
    "import os; n = len([f for f in os.listdir() if f.startswith('run')]); "
    "open(f'run{{n}}', 'w').close(); print('speed', [5, 1, 3, 9, 7, 8, 2][n])"
)


def counting(capsys, repeats):
    text = f'a: {{cmd: ["{{python}}", -S, -c, "{COUNTER}"], {SPEED}}}'
    return bench(capsys, text, "--repeat", repeats, "--log-dir", "logs")


def test_repeats_have_a_median_and_their_range(capsys):
    status, out, _ = counting(capsys, 4)
    (row,) = results()["rows"]
    assert status == 0
    assert row["metrics"] == {"speed": 4}
    assert row["intervals"] == {"speed": [1, 9]}
    assert row["interval"] == "min..max"
    assert [repeat["metrics"]["speed"] for repeat in row["repeats"]] == [5, 1, 3, 9]
    assert "4 (1..9)" in out
    assert "medians of 4 repeats, with min..max" in out
    with open(f"logs/{row['repeats'][3]['stdout']}") as file:
        assert file.read() == "speed 9\n"
    with open("logs/benchmark_results.csv") as file:
        (line,) = csv.DictReader(file)
    assert (line["metric.speed.low"], line["metric.speed.high"]) == ("1.0", "9.0")


def test_many_repeats_have_an_interval_of_the_median(capsys):
    _, out, _ = counting(capsys, 6)
    assert results()["rows"][0]["intervals"] == {"speed": [1, 9]}
    assert "medians of 6 repeats, with 95 % interval of the median" in out


def test_a_failed_repeat_fails_the_variant(capsys):
    code = COUNTER.replace("9, 7", "'nan', 7")
    text = f'a: {{cmd: ["{{python}}", -S, -c, "{code}"], {SPEED}}}'
    status, rows = rows_of(capsys, text, "--repeat", "5")
    assert status == 1
    assert rows[0]["reason"].startswith("repeat 4 of 5: speed: ")
    assert rows[0]["metrics"] == {}
    assert len(rows[0]["repeats"]) == 4


def test_profile_is_added_to_training_commands_only(capsys, tmp_path):
    program = tmp_path / "rookery"
    program.write_text('#!/bin/sh\necho called "$@"\n')
    program.chmod(0o755)
    text = f"a: {{cmd: {program} train ppo}}\nb: {{cmd: echo train}}"
    status, _, err = bench(capsys, text, "--profile", "--log-dir", "logs")
    a, b = results()["rows"]
    assert status == 0
    assert a["command"][-1] == "--profile"
    assert (a["profile"], b["profile"]) == (True, False)
    assert b["command"] == ["echo", "train"]
    assert "b: no profile" in err
    assert "a: no profile" not in err
    with open("logs/001_a.stdout.log") as file:
        assert file.read() == "called train ppo --profile\n"


def test_results_are_on_disk_after_every_variant(capsys):
    """The second command finds the first in the file, and keeps what it saw."""
    text = "a: {cmd: echo 1}\nb: {cmd: cp logs/benchmark_results.json seen.json}\nc: {cmd: echo}"
    status, _ = rows_of(capsys, text)
    assert status == 0
    with open("seen.json") as file:
        seen = json.load(file)
    assert seen["status"] == "running"
    assert [row["benchmark"] for row in seen["rows"]] == ["a"]
    assert [name for name in os.listdir("logs") if name.endswith(".tmp")] == []


def test_rows_name_the_commit_and_uncommitted_changes(capsys):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    _, rows = rows_of(capsys, "a: {cmd: echo}")
    assert rows[0]["git_commit"] == commit.strip()
    assert rows[0]["git_dirty"] is False
    subprocess.run(["git", "add", "spec.yaml"], check=True)
    _, rows = rows_of(capsys, "a: {cmd: echo}")
    assert (rows[0]["git_commit"], rows[0]["git_dirty"]) == (commit.strip(), True)


def test_output_too_large_to_search(capsys, monkeypatch):
    monkeypatch.setattr(runner, "MAX_OUTPUT_BYTES", 3)
    _, rows = rows_of(capsys, "a: {cmd: echo 123}")
    assert "001_a.stdout.log has 4 bytes" in rows[0]["reason"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], ["spec"]),
        (["none.yaml"], ["none.yaml", "cannot be read"]),
        (["broken.yaml"], ["broken.yaml:2: "]),
        (["list.yaml"], ["list.yaml:1: ", "mapping"]),
        (["good.yaml", "--benchmark", "alpa"], ['"alpa"', '"alpha"']),
        (["good.yaml", "--benchmark"], ["--benchmark", "value"]),
        (["good.yaml", "--repeat", "0"], ["--repeat", "0"]),
        (["good.yaml", "--timeout", "0"], ["--timeout", "0"]),
        (["good.yaml", "--tolerance", "0.2"], ["--tolerance", "--baseline"]),
        (["good.yaml", "--baseline", "b", "--tolerance", "-1"], ["--tolerance", "-1"]),
        (["good.yaml", "--repeats", "2"], ["--repeats", "--repeat"]),
        (["good.yaml", "--baseline", "none.json"], ["none.json"]),
        (["good.yaml", "--baseline", "good.yaml"], ["good.yaml", "JSON"]),
        (["good.yaml", "--baseline", "other.json"], ["other.json", "benchmark_results.json"]),
        (["good.yaml", "--log-dir", "good.yaml"], ["good.yaml", "cannot be written"]),
        (["good.yaml", "--log-dir", "/dev/null/x"], ["/dev/null/x"]),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, tmp_path, args, words):
    (tmp_path / "good.yaml").write_text("alpha: {cmd: touch ran}")
    (tmp_path / "broken.yaml").write_text("a: {cmd: x}\n  b: c: d")
    (tmp_path / "list.yaml").write_text("- a")
    (tmp_path / "other.json").write_text('{"rows": [{"benchmark": 1}]}')
    status = main(["bench", *args])
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert [word for word in words if word not in captured.err] == []
    assert not (tmp_path / "ran").exists()


def test_default_folders_are_never_shared(tmp_path, monkeypatch):
    first, second, third = (runner.make_log_dir(None) for _ in range(3))
    assert len({first, second, third}) == 3
    assert first.parent.name == "bench_logs"


def test_bench_needs_no_torch(tmp_path):
    (tmp_path / "spec.yaml").write_text("a: {cmd: echo}")
    code = (
        "import sys, rookery.cli.main as m; m.main(['bench', 'spec.yaml']);"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False False"


def test_help(capsys):
    assert main(["bench", "--help"]) == 0
    out = capsys.readouterr().out
    for flag in ("--benchmark", "--list", "--timeout", "--log-dir", "--stop-on-error", "--repeat"):
        assert flag in out
    for flag in ("--baseline", "--tolerance", "--profile", "--json"):
        assert flag in out


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar_and_failures():
    stream = Terminal()
    progress = ProgressBar(2, stream)
    progress.begin("a [n=1]")
    progress.end("a [n=1]", "ok in 1 s", False)
    progress.end("b", "failed: why", True)
    progress.close()
    shown = stream.getvalue()
    assert "━" in shown
    assert "2/2" in shown
    assert "a [n=1]" in shown
    assert "b: failed: why" in shown
    assert "ok in 1 s" not in shown


def test_without_a_terminal_progress_is_plain_lines():
    stream = io.StringIO()
    progress = ProgressBar(2, stream)
    progress.begin("a")
    progress.end("a", "ok in 1 s", False)
    progress.close()
    assert stream.getvalue() == "1/2 a: ok in 1 s\n"
