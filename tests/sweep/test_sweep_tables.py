"""Results of a sweep: table, CSV, picture and preset."""

from __future__ import annotations

import io
import re

import pytest
import sweeps
import yaml

from rookery.config import from_values, resolve
from rookery.errors import BadInput
from rookery.reports.sweep import draw_sweep
from rookery.sweep.plan import SweepOptions, make_spec
from rookery.sweep.records import SweepFolder
from rookery.sweep.results import (
    SweepConsole,
    ranked,
    train_command,
    trials_csv,
    trials_table,
    write_best,
)


@pytest.fixture
def folder(tmp_path):
    made = sweeps.folder(tmp_path, seeds=2, samples=4)
    sweeps.add_ended_trial(
        made, {"algo.learning_rate": 1e-3, "net.hidden": [32]}, 20.0, seeds=(10, 30)
    )
    sweeps.add_ended_trial(
        made, {"algo.learning_rate": 1e-4, "net.hidden": [64, 64]}, 40.5, seeds=(40, 41)
    )
    stopped = {"algo.learning_rate": 1e-5, "net.hidden": [64, 64]}
    sweeps.add_ended_trial(made, stopped, 90.0, "stopped", steps=100, seeds=(80, 100))
    failed = made.add_trial({"algo.learning_rate": 2e-5, "net.hidden": [32]})
    failed.status, failed.reason = "failed", "seed 1: the pole broke"
    made.write_trial(failed)
    return made


def test_best_trial_is_a_finished_one(folder):
    assert folder.best.number == 2
    assert [record.number for record in ranked(folder)] == [2, 1, 3, 4]
    assert folder.status == "finished"


def test_mode_min_prefers_the_lower_score(tmp_path):
    made = sweeps.folder(tmp_path, {"algo.gamma": "uniform:0.9:1"}, mode="min", samples=2)
    for score in (3.0, 2.0):
        sweeps.add_ended_trial(made, {"algo.gamma": 0.9}, score)
    assert made.best.score == 2
    assert [record.score for record in ranked(made)] == [2, 3]


def test_sweep_without_any_score_is_failed(tmp_path):
    made = sweeps.folder(tmp_path, samples=1)
    assert made.status == "interrupted"
    made.add_trial({}).status = "failed"
    assert made.status == "failed"
    assert made.best is None


def test_opened_folder_equals_the_one_written(folder):
    again = SweepFolder.open(folder.path)
    assert again.spec == folder.spec
    assert again.records == folder.records


def test_table_has_a_line_per_trial_best_first(folder):
    lines = trials_table(folder).splitlines()
    assert lines[0].split() == [
        *("trial", "status", "steps", "return", "mean", "(min..max)"),
        *("algo.learning_rate", "net.hidden"),
    ]
    assert re.fullmatch(r"2 +finished +1,000 +40\.5 +\(40\.\.41\) +0\.0001 +64x64", lines[1])
    assert re.match(r"4 +failed +0 +- ", lines[4])
    assert lines[5] == "trial 4 failed: seed 1: the pole broke"


def test_csv_has_a_row_per_trial_and_a_column_per_seed(folder):
    lines = trials_csv(folder).splitlines()
    seeds = "score_seed_1,score_seed_2"
    assert lines[0] == (
        f"trial,status,env_steps,score,{seeds},algo.learning_rate,net.hidden,reason"
    )
    assert lines[1] == "1,finished,1000,20,10,30,0.001,32,"
    assert lines[4] == "4,failed,0,,,,2e-05,32,seed 1: the pole broke"


def test_best_yaml_works_as_a_preset(folder):
    path = write_best(folder, folder.best)
    assert yaml.safe_load(path.read_text()) == {
        "CartPole-v1": {
            "env_steps": 1000,
            "algo": {"learning_rate": 0.0001},
            "net": {"hidden": [64, 64]},
        }
    }
    resolved = resolve("ppo", "CartPole-v1", {"envs": 2}, str(path))
    assert resolved.presets == (str(path),)
    assert (resolved.config.algo.learning_rate, resolved.config.envs) == (1e-4, 2)
    assert resolved.config.algo.gamma == 0.99  # not from the built-in preset of the environment
    with pytest.raises(BadInput, match=r"has no preset for Acrobot-v1\. Available: CartPole-v1"):
        resolve("ppo", "Acrobot-v1", {}, str(path))
    with pytest.raises(BadInput, match=r"preset: nowhere\.yaml cannot be read"):
        resolve("ppo", "CartPole-v1", {}, "nowhere.yaml")


def test_preset_includes_searched_settings_equal_to_the_default(tmp_path):
    made = sweeps.folder(tmp_path, {"algo.gamma": "choice:0.9,0.99", "algo.lam": "0.95"})
    best = sweeps.add_ended_trial(made, {"algo.gamma": 0.99}, 1.0)
    preset = yaml.safe_load(write_best(made, best).read_text())["CartPole-v1"]
    assert preset == {"env_steps": 1000, "algo": {"gamma": 0.99}}


@pytest.mark.parametrize("no_preset", [True, False])
def test_best_yaml_on_atari_applies_over_the_atari_preset(tmp_path, no_preset):
    game, settings = "ALE/Pong-v5", {"env_steps": "1000", "algo.gamma": "choice:0.9,0.99"}
    made = SweepFolder.create(
        tmp_path / "sweep", make_spec("r2d2", game, settings, SweepOptions(no_preset=no_preset))
    )
    best = sweeps.add_ended_trial(made, {"algo.gamma": 0.9}, 1.0)
    path = write_best(made, best)
    trial = from_values(made.spec.config, {"algo": {"gamma": 0.9}})
    assert trial.algo.n_step == (3 if no_preset else 5)
    names = ("seed", "backend", "device", "threads", "checkpoint_steps", "keep_checkpoints")
    elsewhere = {name: getattr(trial, name) for name in names}
    assert resolve("r2d2", game, elsewhere, str(path)).config == trial
    given = yaml.safe_load(path.read_text())[game].get("algo", {})
    assert ("n_step" in given) == no_preset


def test_command_has_flags_for_settings_not_in_the_preset(folder):
    assert train_command(folder, folder.best, "s/best.yaml") == (
        "rookery train ppo CartPole-v1 --preset s/best.yaml --seed 1 --backend serial --threads 1"
    )


def test_picture_is_drawn_only_if_there_is_a_score(folder, tmp_path):
    (folder.path / "results.csv").write_text(trials_csv(folder))
    picture = draw_sweep(folder.path)
    assert picture.read_bytes().startswith(b"\x89PNG")
    (tmp_path / "none").mkdir()
    none = sweeps.folder(tmp_path / "none")
    (none.path / "results.csv").write_text(trials_csv(none))
    assert draw_sweep(none.path) is None


class Terminal(io.StringIO):
    """Stream that claims to be a terminal."""

    def isatty(self):
        return True


def test_lines_are_printed_when_the_status_changes(folder):
    stream = io.StringIO()
    with SweepConsole(folder, stream) as console:
        for record in [folder.records[0], folder.records[0], folder.records[3]]:
            console.show(record)
    assert stream.getvalue().splitlines() == [
        "trial 1/4  finished  algo.learning_rate 0.001  net.hidden 32  episode_return_mean 20",
        "trial 4/4  failed  algo.learning_rate 2e-05  net.hidden 32: seed 1: the pole broke",
    ]


def test_terminal_shows_a_live_table(folder, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with SweepConsole(folder, stream) as console:
        console.show(folder.records[0])
        console.live.refresh()
    text = stream.getvalue()
    assert "4 of 4 trials over" in text
    assert re.search(r"2 +finished +1,000 +40\.5 +\(40\.\.41\)", text)
