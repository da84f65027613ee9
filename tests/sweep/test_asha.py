"""ASHA scheduling, also after a sweep was interrupted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import sweeps

pytest.importorskip("ray")


def decide(scheduler, name, *reports):
    """Return the decisions of ASHA on a new trial with these reports."""
    trial = SimpleNamespace(trial_id=name)
    scheduler.on_trial_add(None, trial)
    return [
        scheduler.on_trial_result(None, trial, {"env_steps": steps, "score": score})
        for steps, score in reports
    ]


@pytest.mark.parametrize(("mode", "worse", "better"), [("max", 5, 50), ("min", 50, 5)])
def test_asha_compares_with_trials_that_ended_before_a_resume(mode, worse, better, tmp_path):
    from rookery.sweep.study import make_scheduler

    folder = sweeps.folder(tmp_path, asha=True, grace_steps=100, reduction=2.0, mode=mode)
    sweeps.add_ended_trial(folder, {}, 20.0, reports=[(50, 30), (100, 20), (200, 20)])
    running = folder.add_trial({})
    running.reports = [[100, 1_000], [200, -1_000]]  # ignored: it reports again when it resumes
    scheduler = make_scheduler(folder)
    assert decide(scheduler, "a", (50, worse), (100, worse)) == ["CONTINUE", "STOP"]
    assert decide(scheduler, "b", (50, worse), (100, better)) == ["CONTINUE", "CONTINUE"]


def test_no_trial_is_stopped_without_asha(tmp_path):
    from rookery.sweep.study import make_scheduler

    folder = sweeps.folder(tmp_path)
    sweeps.add_ended_trial(folder, {}, 20.0, reports=[(100, 20), (200, 20)])
    assert decide(make_scheduler(folder), "a", (100, 1), (200, 1)) == ["CONTINUE"] * 2
