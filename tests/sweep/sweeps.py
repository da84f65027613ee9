"""Helpers that build small sweeps."""

from __future__ import annotations

from rookery.sweep.plan import SweepOptions, make_spec
from rookery.sweep.records import SweepFolder

SPACES = {"algo.learning_rate": "log:1e-5:1e-2", "net.hidden": "choice:64x64,32"}


def spec(settings=SPACES, **options):
    """Return a sweep of PPO on CartPole with 1,000 steps per run."""
    settings = {"env_steps": "1000", **settings}
    return make_spec("ppo", "CartPole-v1", settings, SweepOptions(no_preset=True, **options))


def folder(tmp_path, settings=SPACES, **options):
    """Return the folder of a new sweep."""
    return SweepFolder.create(tmp_path / "sweep", spec(settings, **options))


def add_ended_trial(folder, values, score, status="finished", steps=1_000, seeds=(), reports=()):
    """Return a trial that ended, added to the folder."""
    record = folder.add_trial(values)
    record.status, record.score, record.env_steps = status, score, steps
    record.seed_scores, record.reports = list(seeds), [list(report) for report in reports]
    folder.write_trial(record)
    return record
