"""Repeat the update that a trap saved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from rookery.backends.factory import make_learner, spaces_of
from rookery.config import from_values
from rookery.envs import make_env
from rookery.errors import Diverged
from rookery.learning.diagnosis import UpdateEvidence
from rookery.learning.reduce import Reducer
from rookery.runs.evidence import load_evidence
from rookery.runs.run import Run


@dataclass(frozen=True)
class TrapReplay:
    """The repeated update of a trap."""

    trap: str
    text: str
    """Text of the alarm."""
    columns: dict[str, float]
    """Metrics and measurements of the repeated update; empty if it diverged."""
    error: str | None
    """Why it diverged; None if it did not."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        return {
            "trap": self.trap,
            "text": self.text,
            "error": self.error,
            "columns": self.columns,
        }


def replay_trap(path: str, trap: str) -> TrapReplay:
    """Repeat the update that the trap `trap` saved in the run's folder `path`, on the CPU and not
    traced."""
    run = Run.open(path)
    batch, weights, about = load_evidence(run.path / "traps" / trap)
    config = from_values(run.config, {})
    config = replace(config, diagnose=1, learner=replace(config.learner, trace=False))
    env = make_env(config.environment, config.env, num_envs=1)
    try:
        learner = make_learner(config, spaces_of(env), Reducer(), torch.device("cpu"), config.seed)
    finally:
        env.close()
    UpdateEvidence(batch, weights).restore(learner.algorithm)
    text = str(about.get("text", ""))
    try:
        learner.update(batch)
        return TrapReplay(trap, text, learner.take_metrics(), None)
    except Diverged as error:
        return TrapReplay(trap, text, {}, str(error))
