"""Where time went, from a run's reports."""

import pytest

from rookery.reports.split import draw_split, time_bars

HEADER = "env_steps,seconds,env_s,inference_s,transfer_s,learn_s,reduce_s,wait_s"


def rows(**last):
    first = dict.fromkeys(HEADER.split(","), 0.0) | {"seconds": 2.0, "env_s": 50.0}
    return [first, first | {"seconds": 6.0} | last, first | {"seconds": 12.0} | last]


def test_one_bar_holds_all_where_actor_and_learner_take_turns():
    told = time_bars(rows(env_s=1.0, inference_s=0.5, transfer_s=0.25, learn_s=2.0, reduce_s=0.75))
    (spent,) = told.values()
    assert spent == {
        "env": 2.0,
        "inference": 1.0,
        "transfer": 0.5,
        "learn": 4.0,
        "reduce": 1.5,
        "wait": 0.0,
        "other": pytest.approx(1.0),
    }


def test_actors_in_threads_have_a_bar_of_their_own():
    told = time_bars(rows(env_s=1.0, inference_s=2.0, learn_s=4.0, wait_s=0.5, actor_wait_s=1.5))
    assert told["an actor"] == {
        "env": 2.0,
        "inference": 4.0,
        "transfer": 0.0,
        "wait": 3.0,
        "other": pytest.approx(1.0),
    }
    assert told["the learner"] == {
        "learn": 8.0,
        "reduce": 0.0,
        "wait": 1.0,
        "other": pytest.approx(1.0),
    }


def test_more_than_all_the_time_leaves_no_other():
    (spent,) = time_bars(rows(env_s=9.0)).values()
    assert spent["other"] == 0


def test_the_picture_says_what_it_shows(tmp_path, monkeypatch):
    """Axes with units, a legend of every kind of work, a share in every wide bar."""
    from matplotlib.figure import Figure

    seen = []

    def save(figure, *args, **kwargs):
        seen.append(figure)
        return saved(figure, *args, **kwargs)

    saved = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", save)
    lines = [HEADER, "0,0,0,0,0,0,0,0", "1000,10,2,1,0,6,0,1"]
    (tmp_path / "progress.csv").write_text("\n".join(lines) + "\n")
    draw_split(tmp_path, tmp_path / "split.png")
    (figure,) = seen
    (axes,) = figure.axes
    assert "seconds" in axes.get_xlabel()
    assert "100 environment steps/s" in axes.get_title()
    (legend,) = figure.legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named == ["env", "inference", "transfer", "learn", "reduce", "wait", "other"]
    assert [text.get_text() for text in axes.texts] == ["20 %", "10 %", "60 %", "10 %"]
    assert (tmp_path / "split.png").stat().st_size > 1_000


def test_a_run_without_reports_has_no_picture(tmp_path):
    (tmp_path / "progress.csv").write_text(HEADER + "\n0,0,0,0,0,0,0,0\n")
    draw_split(tmp_path, tmp_path / "split.png")
    assert not (tmp_path / "split.png").exists()
