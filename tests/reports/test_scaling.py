"""The picture of a scaling study."""

from __future__ import annotations

import json

import pytest

from rookery.reports.scaling import draw_scaling

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure


def row(label, speed, predicted=None):
    actors, envs = map(int, label.split("-"))
    return {
        "label": label,
        "actors": actors,
        "envs": envs,
        "steps_per_second": speed,
        "min": speed - 10,
        "max": speed + 30,
        "ideal": actors,
        "predicted": predicted,
    }


def study(folder, reference=None, environment="Foo-v1", **studies):
    told = {"algorithm": "apex", "environment": environment, "backend": "threads", "cores": 2}
    told |= {"studies": studies, "reference": reference}
    (folder / "scaling.json").write_text(json.dumps(told))


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved."""
    saved = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **kw: (saved.append(self), save(self, *args, **kw))
    )
    return saved


def test_measured_ideal_and_predicted_are_drawn(tmp_path, figures):
    rows = [row("1-8", 100), row("2-8", 180, predicted=200), row("4-8", 300)]
    study(tmp_path, weak=[*rows, {"label": "8-8", "actors": 8, "predicted": None}])
    assert draw_scaling(tmp_path) == tmp_path / "scaling.png"
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    (axes,) = figures[0].axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    ideal = lines["ideal: proportional to actors"]
    assert list(ideal.get_xdata()) == [1, 2, 4]
    assert list(ideal.get_ydata()) == [100, 200, 400]
    predicted = lines["predicted from half the actors"]
    assert list(zip(predicted.get_xdata(), predicted.get_ydata(), strict=True)) == [(2, 200)]
    (bars,) = axes.containers
    assert list(bars.lines[0].get_ydata()) == [100, 180, 300]
    segments = bars.lines[2][0].get_segments()
    assert [tuple(part[:, 1]) for part in segments] == [(90, 130), (170, 210), (290, 330)]
    assert [text.get_text() for text in axes.texts] == ["1-8", "2-8", "4-8"]
    assert axes.get_xlabel().startswith("actors")
    assert axes.get_ylabel() == "environment steps per second"
    assert len(axes.get_legend().get_texts()) == 3
    assert figures[0].get_suptitle() == "apex on Foo-v1: threads, 2 cores"


def test_a_reference_is_drawn_with_its_point_names(tmp_path, figures):
    point = {"label": "6-3", "environments": 6, "threads": 3, "steps_per_second": 50}
    reference = {"labels": {"1-2": "2-1", "2-2": "4-2"}, "series": {"theirs": [point]}}
    study(tmp_path, reference, weak=[row("1-2", 100), row("2-2", 180, predicted=200)])
    draw_scaling(tmp_path)
    (axes,) = figures[0].axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["theirs"].get_xdata()) == [6]
    assert list(lines["theirs"].get_ydata()) == [50]
    assert list(axes.containers[0].lines[0].get_xdata()) == [2, 4]  # environments, not actors
    assert list(lines["predicted from half the actors"].get_xdata()) == [4]
    assert [text.get_text() for text in axes.texts] == ["2-1", "4-2", "6-3"]
    assert axes.get_xlabel() == "environments (points: environments-threads)"
    assert list(axes.get_xticks()) == [2, 4, 6]


def test_the_ideal_starts_at_the_first_point(tmp_path, figures):
    rows = [row("4-8", 400), row("1-8", 110)]
    rows[0]["ideal"], rows[1]["ideal"] = 1, 0.25
    study(tmp_path, weak=rows)
    draw_scaling(tmp_path)
    ideal = figures[0].axes[0].get_lines()[0]
    assert list(ideal.get_xdata()) == [1, 4]
    assert list(ideal.get_ydata()) == [100, 400]


def test_each_study_has_its_panel(tmp_path, figures):
    study(tmp_path, weak=[row("1-8", 100)], strong=[row("1-8", 100), row("2-4", 150)])
    draw_scaling(tmp_path)
    titles = [axes.get_title() for axes in figures[0].axes]
    assert [title.split()[0] for title in titles] == ["weak", "strong"]


def test_many_addresses_do_not_fill_the_title(tmp_path, figures):
    for environment in ("Foo-v1", "tcp://a:1,tcp://b:2,tcp://c:3"):
        study(tmp_path, environment=environment, weak=[row("1-8", 100)])
        draw_scaling(tmp_path)
    titles = [figure.get_suptitle() for figure in figures]
    names = ("Foo-v1", "tcp://a:1 and 2 more")
    assert titles == [f"apex on {name}: threads, 2 cores" for name in names]


def test_without_a_speed_there_is_no_picture(tmp_path):
    study(tmp_path, weak=[{"label": "1-8", "actors": 1, "predicted": None}])
    assert draw_scaling(tmp_path) is None
    assert not (tmp_path / "scaling.png").exists()
