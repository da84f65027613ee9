"""Choosers of points: random, grid or Optuna."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from rookery.sweep.records import SweepSpec, TrialRecord
from rookery.sweep.space import Choice, Dimension, Space, Values, grid_points

ATTEMPTS = 50
"""Attempts to draw a point that was not tried yet."""


class Chooser(Protocol):
    """Chooses the settings of each trial."""

    def point(self, number: int, tried: Sequence[Values]) -> Values | None:
        """Return the point of trial `number` (from 1), if possible not one of `tried`; None if
        there are no more."""

    def learn(self, record: TrialRecord) -> None:
        """Take the score of a trial that ended into account."""
        return


def make_chooser(spec: SweepSpec, records: Sequence[TrialRecord]) -> Chooser:
    """Return the chooser for a sweep that already has the trials `records`."""
    if spec.search == "grid":
        return Grid(spec.dimensions)
    if spec.search == "random":
        return Random(spec.dimensions, spec.run_seeds[0])
    return Optuna(spec, records)


class Random(Chooser):
    """Points drawn at random, reproducible by the seed."""

    def __init__(self, space: Space, seed: int):
        self.space, self.seed = space, seed

    def point(self, number: int, tried: Sequence[Values]) -> Values | None:
        generator = np.random.default_rng([self.seed, number])
        for _ in range(ATTEMPTS):
            values = {name: each.draw(generator.random()) for name, each in self.space.items()}
            if values not in tried:
                break
        return values


class Grid(Chooser):
    """Every combination once."""

    def __init__(self, space: Space):
        self.points = grid_points(space)

    def point(self, number: int, tried: Sequence[Values]) -> Values | None:
        return self.points[number - 1] if number <= len(self.points) else None


class Optuna(Chooser):
    """Points proposed by Optuna's TPE sampler from the scores of earlier trials."""

    def __init__(self, spec: SweepSpec, records: Sequence[TrialRecord]):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna, self.space = optuna, spec.dimensions
        self.distributions = {name: self.distribution(d) for name, d in self.space.items()}
        # The seed depends on the number of records, so that a resumed sweep draws new points.
        sampler = optuna.samplers.TPESampler(
            seed=spec.run_seeds[0] + 1_000 * len(records), constant_liar=True
        )
        directions = optuna.study.StudyDirection
        direction = directions.MAXIMIZE if spec.mode == "max" else directions.MINIMIZE
        self.study = optuna.create_study(sampler=sampler, direction=direction)
        self.asked: dict[int, Any] = {}
        for record in records:
            if record.is_over:
                self.study.add_trial(self.earlier(record))

    def distribution(self, dimension: Dimension) -> Any:
        """Return Optuna's distribution of a dimension; values of a choice are encoded as JSON."""
        kinds = self.optuna.distributions
        if isinstance(dimension, Choice):
            return kinds.CategoricalDistribution([json.dumps(v) for v in dimension.values])
        kind = kinds.IntDistribution if dimension.whole else kinds.FloatDistribution
        return kind(dimension.low, dimension.high, log=dimension.log)

    def point(self, number: int, tried: Sequence[Values]) -> Values | None:
        for attempt in range(ATTEMPTS):
            trial = self.study.ask(self.distributions)
            values = {name: self.value(name, trial.params[name]) for name in self.space}
            if values not in tried or attempt + 1 == ATTEMPTS:
                break
            self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
        self.asked[number] = trial
        return values

    def value(self, name: str, drawn: Any) -> Any:
        """Return the setting that a value drawn by Optuna stands for."""
        dimension = self.space[name]
        return json.loads(drawn) if isinstance(dimension, Choice) else dimension.tidy(drawn)

    def learn(self, record: TrialRecord) -> None:
        states = self.optuna.trial.TrialState
        trial = self.asked.pop(record.number, None)
        if trial is None:  # from before the sweep was interrupted
            self.study.add_trial(self.earlier(record))
        elif record.status == "finished":
            self.study.tell(trial, record.score)
        elif record.status == "stopped" and record.score is not None:
            trial.report(record.score, record.env_steps)
            self.study.tell(trial, state=states.PRUNED)
        else:
            self.study.tell(trial, state=states.FAIL)

    def earlier(self, record: TrialRecord) -> Any:
        """Return an Optuna trial for one that ran before this process started."""
        states = self.optuna.trial.TrialState
        finished, score = record.status == "finished", record.score
        stopped = states.FAIL if score is None or record.status == "failed" else states.PRUNED
        seen = {} if finished or score is None else {record.env_steps: score}
        return self.optuna.trial.create_trial(
            state=states.COMPLETE if finished else stopped,
            value=score if finished else None,
            params={
                name: json.dumps(value) if isinstance(self.space[name], Choice) else value
                for name, value in record.values.items()
            },
            distributions=self.distributions,
            intermediate_values=seen,
        )
