"""Sweeps for tests."""

from __future__ import annotations

from rookery.sweep.plan import Options, make_spec
from rookery.sweep.records import Folder

SPACES = {"algo.learning_rate": "log:1e-5:1e-2", "net.hidden": "choice:64x64,32"}


def spec(settings=SPACES, **options):
    """A sweep of PPO on CartPole in 1,000 steps."""
    settings = {"env_steps": "1000", **settings}
    return make_spec("ppo", "CartPole-v1", settings, Options(no_preset=True, **options))


def folder(tmp_path, settings=SPACES, **options):
    """Its folder, new."""
    return Folder.create(tmp_path / "sweep", spec(settings, **options))


def over(folder, values, score, status="finished", steps=1_000, seeds=(), reports=()):
    """A trial that is over."""
    record = folder.add(values)
    record.status, record.score, record.env_steps = status, score, steps
    record.seed_scores, record.reports = list(seeds), [list(report) for report in reports]
    folder.keep(record)
    return record
