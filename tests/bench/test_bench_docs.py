"""The page about benchmarks is true: its spec and its commands are run."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from rookery.bench.metrics import REDUCTIONS
from rookery.bench.spec import BenchmarkSettings, Metric
from rookery.cli.bench import BenchOptions
from rookery.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.yaml").write_text(blocks("yml")[0])
    return tmp_path


def test_the_commands_of_the_page_run(folder, capsys):
    commands = [shlex.split(line) for block in blocks("bash") for line in block.splitlines()]
    assert len(commands) == 4
    for program, *args in commands:
        assert program == "rookery"
        # Times of a few milliseconds say nothing: here only that the comparison is made.
        status = main([*args, "--tolerance", "1e9"] if "--baseline" in args else args)
        assert status == 0, capsys.readouterr()
    first = json.loads((folder / "first" / "benchmark_results.json").read_text())
    assert [row["metrics"].get("length") for row in first["rows"]] == [None, None, 4, 101]
    for row in first["rows"][:2]:
        assert row["metrics"]["nanoseconds"] == pytest.approx(1e9 / row["metrics"]["speed"])
    second = json.loads((folder / "second" / "benchmark_results.json").read_text())
    assert len(second["baseline"]["comparisons"]) == 6


def test_the_printed_table_has_the_lines_of_the_page(folder, capsys):
    main(["bench", "sums.yaml", "--log-dir", "first"])
    printed, shown = capsys.readouterr().out.splitlines(), blocks("text")[0].splitlines()
    assert [line.split()[:1] for line in printed] == [line.split()[:1] for line in shown]
    assert printed[1].split() == shown[1].split()


def test_every_key_option_and_field_is_named(folder):
    main(["bench", "sums.yaml", "--benchmark", "sizes", "--log-dir", "first"])
    row = json.loads((folder / "first" / "benchmark_results.json").read_text())["rows"][0]
    named = set(re.findall(r"`([\w-]+)(?: [^`]*)?`", PAGE))
    keys = {field.name for kind in (BenchmarkSettings, Metric) for field in fields(kind)}
    options = {"--" + field.name.replace("_", "-") for field in fields(BenchOptions)}
    assert (keys | options | set(row) | set(REDUCTIONS)) - named == set()
