"""Comparisons of runs: groups, scores, goals and partings worked by hand; the files they leave."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np
import pytest

from rookery.cli.main import main
from rookery.errors import BadInput
from rookery.reports.comparison.figure import draw_comparison
from rookery.reports.comparison.groups import (
    Band,
    compare_runs,
    group_runs,
    parting,
)
from rookery.reports.comparison.runs import find_runs, trailing_mean
from rookery.reports.comparison.table import comparison_text, reached_text
from rookery.score_statistics import Estimate

pytest.importorskip("matplotlib")
pytest.importorskip("plotly")

COLUMNS = ("env_steps", "updates", "seconds", "episodes", "episode_return_mean", "memory_mb")


def write_run(
    folder, returns, *, seed=1, algorithm="ppo", environment="CartPole-v1", speed=100.0, **settings
):
    """Write the folder of a run with a report every 1,000 steps and 60 episodes."""
    folder.mkdir(parents=True)
    config = {"algorithm": algorithm, "environment": environment, "seed": seed, **settings}
    (folder / "config.json").write_text(json.dumps(config))
    rows = [
        (1000 * i, 10 * i, 1000 * i / speed, 60 * i, value, 300 + i)
        for i, value in enumerate(returns, 1)
    ]
    lines = [",".join(COLUMNS), *(",".join(map(str, row)) for row in rows)]
    (folder / "progress.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def two_groups(tmp_path):
    """Three seeds of a fast learner and three of a slow one, twice as fast by the clock."""
    for seed in (1, 2, 3):
        fast = [20, 200 + seed, 400 + seed, 480 + seed]
        write_run(tmp_path / f"fast-{seed}", fast, seed=seed, algo={"gamma": 0.98})
        slow = [20, 40 + seed, 60 + seed, 80 + seed]
        write_run(tmp_path / f"slow-{seed}", slow, seed=seed, algo={"gamma": 0.5}, speed=200.0)
    return tmp_path


def test_runs_that_differ_in_more_than_the_seed_form_groups(two_groups):
    (found,) = compare_runs([two_groups])
    assert [group.label for group in found.groups] == [
        "ppo, algo.gamma 0.98",
        "ppo, algo.gamma 0.5",
    ]
    assert [[run.config["seed"] for run in group.runs] for group in found.groups] == [[1, 2, 3]] * 2
    assert found.differences() == {"algo.gamma": [0.98, 0.5]}


def test_setting_that_an_older_version_did_not_have_makes_no_group(tmp_path):
    write_run(tmp_path / "old", [1, 2], seed=1, algo={"gamma": 0.9})
    write_run(tmp_path / "new", [1, 2], seed=2, algo={"gamma": 0.9, "clip": 0.2})
    (group,) = group_runs(find_runs([tmp_path]))
    assert (group.label, len(group.runs)) == ("ppo", 2)


def test_settings_of_other_algorithms_make_no_group(tmp_path):
    write_run(tmp_path / "a", [1, 2], seed=1, algo={"gamma": 0.9, "clip": 0.2})
    write_run(tmp_path / "b", [1, 2], seed=2, algo={"gamma": 0.9, "clip": 0.2})
    write_run(tmp_path / "c", [1, 2], seed=1, algorithm="dqn", algo={"gamma": 0.99})
    assert [(g.label, len(g.runs)) for g in group_runs(find_runs([tmp_path]))] == [
        ("ppo", 2),
        ("dqn", 1),
    ]


def test_rows_by_hand(two_groups):
    (found,) = compare_runs([two_groups], threshold=400)
    fast, slow = found.rows()
    assert fast["scores"] == [481, 482, 483]
    assert fast["score"] == 482  # of fewer than four values all count
    assert (fast["low"], fast["high"]) == (481, 483)  # each end has probability 1/27 > 2.5 %
    assert (fast["steps_per_second"], slow["steps_per_second"]) == (100, 200)
    assert fast["peak_memory_mb"] == 304
    assert (fast["better_than_first"], slow["better_than_first"]) == (0.5, 0)
    assert fast["steps_to_threshold"] == [3000, 3000, 3000]
    assert fast["seconds_to_threshold"] == [30, 30, 30]
    assert slow["steps_to_threshold"] == [None, None, None]


def test_goal_counts_from_the_hundredth_episode_on_as_for_stop_return(tmp_path):
    write_run(tmp_path / "lucky", [500, 10, 500], seed=1)
    (found,) = compare_runs([tmp_path])
    assert found.threshold == 475  # of Gymnasium's registry
    assert found.rows()[0]["steps_to_threshold"] == [3000]


def test_goal_of_the_runs_is_their_stop_return(tmp_path):
    write_run(tmp_path / "a", [10, 20], stop_return=15.0)
    (found,) = compare_runs([tmp_path])
    assert (found.threshold, found.rows()[0]["steps_to_threshold"]) == (15, [2000])


def test_bands_go_as_far_as_every_seed(tmp_path):
    write_run(tmp_path / "long", [0, 10, 20, 30], seed=1)
    write_run(tmp_path / "short", [0, 20], seed=2)
    (found,) = compare_runs([tmp_path])
    band = found.bands("steps")["ppo"]
    assert (band.x[0], band.x[-1]) == (1000, 2000)
    assert band.estimate.value[-1] == 15
    assert found.bands("seconds")["ppo"].x[-1] == 20
    assert found.bands("updates")["ppo"].x[-1] == 20


def test_frames_count_those_that_are_skipped(tmp_path):
    write_run(tmp_path / "pong", [-21, -20], environment="PongNoFrameskip-v4")
    write_run(tmp_path / "pole", [10, 20])
    pong, pole = compare_runs([tmp_path / "pong", tmp_path / "pole"])
    assert pong.bands("frames")["ppo"].x[-1] == 8000
    assert pole.bands("frames")["ppo"].x[-1] == 2000
    assert pong.human == pytest.approx(14.6)
    assert pole.human is None


def test_groups_part_where_their_intervals_no_longer_overlap():
    x = np.linspace(0, 100, 201)

    def band(y, width, runs=3):
        return Band(x, Estimate(y, y - width, y + width), runs)

    rising, flat = band(x, 5.0), band(np.zeros_like(x), 5.0)
    assert parting(rising, flat) == pytest.approx(10, abs=1)
    assert parting(flat, rising) == parting(rising, flat)
    assert parting(flat, flat) is None
    assert parting(rising, band(np.zeros_like(x), 5.0, runs=1)) is None
    # Apart at a single point only.
    assert parting(flat, band(np.where(x == 50, 99.0, 0.0), 5.0)) is None


def test_two_groups_part(two_groups):
    (found,) = compare_runs([two_groups])
    (pair,) = found.partings("steps")
    assert (pair.one, pair.other) == tuple(group.label for group in found.groups)
    assert 1000 <= pair.at < 1100
    assert "are apart from step 1,0" in comparison_text(found)


def test_means_over_the_last_reports():
    np.testing.assert_allclose(trailing_mean(np.array([1.0, 3, 5, 7]), 2), [1, 2, 4, 6])
    np.testing.assert_allclose(trailing_mean(np.array([1.0, 3]), 9), [1, 2])


def test_reached_text():
    assert reached_text([3000.0, 1000.0, 2000.0]) == "2,000 (1,000 to 3,000)"
    assert reached_text([4.25]) == "4.2"
    assert reached_text([3.0, None]) == "reached by 1 of 2"


def test_gaps_and_nan_are_left_out(tmp_path):
    folder = write_run(tmp_path / "gaps", ["", 10, "nan", 30])
    (found,) = compare_runs([folder])
    curve = found.groups[0].runs[0].curve(found.metric, "steps")
    assert (curve.x.tolist(), curve.y.tolist()) == ([2000, 4000], [10, 30])


class Page(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.sources = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        if self.tags[-1:] != ["script"]:
            self.texts.append(data)


def test_command_prints_a_table_and_writes_pictures_and_a_page(two_groups, tmp_path, capsys):
    out = tmp_path / "figures"
    assert main(["compare", str(two_groups / "*-*"), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "ppo, algo.gamma 0.98" in printed
    assert "481 to 483" in printed
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "compare.svg").read_text()[:500]
    page = Page((out / "compare.html").read_text())
    assert page.sources == []  # nothing from the network
    assert "481 to 483" in page.texts


def test_out_may_be_one_file(tmp_path, capsys):
    folder = write_run(tmp_path / "a", [1, 2])
    for name, start in (("x.pdf", b"%PDF"), ("x.png", b"\x89PNG"), ("x.html", b"<!doctype html>")):
        assert main(["compare", str(folder), "--x", "steps", "--out", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(start)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"a", "x.pdf", "x.png", "x.html"}


def test_names_from_files_are_text_in_the_page(tmp_path, capsys):
    evil = "<script>canary()</script>"
    write_run(tmp_path / "a", [1, 2], environment=evil, net={"core": evil})
    write_run(tmp_path / "b", [1, 2], environment=evil, net={"core": "none"})
    assert main(["compare", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert "<script>canary" not in (tmp_path / "out" / "compare.html").read_text()


def test_json(two_groups, capsys):
    assert main(["compare", str(two_groups), "--json", "--no-plot", "--threshold", "400"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert found["groups"][0]["steps_to_threshold"] == [3000, 3000, 3000]
    assert found["differences"] == {"algo.gamma": [0.98, 0.5]}
    assert found["partings"]["steps"][0]["one"] == "ppo, algo.gamma 0.98"


def test_environments_are_compared_by_panel(tmp_path, capsys):
    write_run(tmp_path / "a", [1, 2])
    write_run(tmp_path / "b", [1, 2], environment="Acrobot-v1")
    assert main(["compare", str(tmp_path), "--no-plot"]) == 0
    captured = capsys.readouterr()
    assert "2 environments, each compared by itself: CartPole-v1, Acrobot-v1" in captured.err
    assert captured.out.count("group") >= 2


def test_a_figure_has_a_row_for_each_environment_and_a_panel_for_each_axis(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kw: saved.append(self))
    write_run(tmp_path / "a", [1, 2], seed=1)
    write_run(tmp_path / "c", [3, 4], seed=2)
    write_run(tmp_path / "b", [1, 2], environment="Acrobot-v1")
    draw_comparison(compare_runs([tmp_path]), ["steps", "seconds"], [tmp_path / "a.png"])
    panels = saved[0].axes
    labels = ["environment steps", "seconds"] * 2
    assert [panel.get_xlabel() for panel in panels] == labels
    lines = {line.get_label(): line for line in panels[0].get_lines()}
    assert lines["ppo (2 seeds)"].get_ydata()[-1] == 3  # of 2 and 4
    assert lines["goal"].get_ydata()[0] == 475


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "compare: expected the folders of runs"),
        (["{0}/nothing*"], "nothing*: no such folder"),
        (["{0}", "--metric", "episode_retrun_mean"], 'Did you mean "episode_return_mean"?'),
        (["{0}", "--x", "hours"], "x"),
        (["{0}", "--smooth", "0"], "smooth must be at least 1"),
        (["{0}", "--threshold", "high"], "threshold"),
        (["{0}", "--out", "{0}/a/config.json/a.png"], "cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, capsys, args, message):
    write_run(tmp_path / "a", [1, 2])
    assert main(["compare", *(arg.format(tmp_path) for arg in args)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_column_without_values_is_named(tmp_path):
    write_run(tmp_path / "a", ["", ""])
    with pytest.raises(BadInput, match='no run has a value of "episode_return_mean" yet'):
        compare_runs([tmp_path])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fast-1", "fast-9"], "fast-9: no such folder"),
        (["nowhere-*"], "nowhere-*: no such folder"),
        (["empty"], "no runs with reports found in empty"),
        (["fast-1", "--metric", "episode_return_maen"], 'Did you mean "episode_return_mean"?'),
        (["fast-1", "--out", "notes.txt"], 'ends in .png, .svg, .pdf or .html, got "notes.txt"'),
    ],
)
def test_refused_input_writes_nothing(args, message, two_groups, monkeypatch, capsys):
    monkeypatch.chdir(two_groups)
    (two_groups / "empty").mkdir()
    before = sorted(two_groups.iterdir())
    assert main(["compare", *args]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""
    assert sorted(two_groups.iterdir()) == before
