"""Which points are tried: drawn at random, all of a grid, or what Optuna proposes."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from rookery.errors import missing_extra
from rookery.sweep.records import Record, Spec
from rookery.sweep.space import Choice, Dimension, Space, Values, grid_points

ATTEMPTS = 50
"""Draws for a point that was not tried yet."""


class Chooser(Protocol):
    """Proposes points."""

    def point(self, number: int, tried: Sequence[Values]) -> Values | None:
        """The point of trial `number`, counted from 1, if possible none of `tried`; None if there
        is no more."""

    def learn(self, record: Record) -> None:
        """Take in a trial that is over."""


def make_chooser(spec: Spec, records: Sequence[Record]) -> Chooser:
    """The chooser of a sweep that has come as far as `records`."""
    if spec.search == "grid":
        return Grid(spec.dimensions)
    if spec.search == "random":
        return Random(spec.dimensions, spec.run_seeds[0])
    return Optuna(spec, records)


class Random:
    """Points drawn evenly, the same ones for the same seed."""

    def __init__(self, space: Space, seed: int):
        self.space, self.seed = space, seed

    def point(self, number: int, tried: Sequence[Values]) -> Values | None:
        generator = np.random.default_rng([self.seed, number])
        for _ in range(ATTEMPTS):
            values = {name: each.draw(generator.random()) for name, each in self.space.items()}
            if values not in tried:
                break
        return values

    def learn(self, record: Record) -> None:
        pass


class Grid:
    """Every combination once."""

    def __init__(self, space: Space):
        self.points = grid_points(space)

    def point(self, number: int, tried: Sequence[Values]) -> Values | None:
        return self.points[number - 1] if number <= len(self.points) else None

    def learn(self, record: Record) -> None:
        pass


class Optuna:
    """Points where earlier trials make a good score likely: Optuna's TPE sampler."""

    def __init__(self, spec: Spec, records: Sequence[Record]):
        require_optuna()
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna, self.space = optuna, spec.dimensions
        self.distributions = {name: self.distribution(d) for name, d in self.space.items()}
        # The records are in the seed: a sweep that goes on does not draw its first points again.
        sampler = optuna.samplers.TPESampler(
            seed=spec.run_seeds[0] + 1_000 * len(records), constant_liar=True
        )
        directions = optuna.study.StudyDirection
        direction = directions.MAXIMIZE if spec.mode == "max" else directions.MINIMIZE
        self.study = optuna.create_study(sampler=sampler, direction=direction)
        self.asked: dict[int, Any] = {}
        for record in records:
            if record.over:
                self.study.add_trial(self.earlier(record))

    def distribution(self, dimension: Dimension) -> Any:
        """A dimension in Optuna's words; a choice is known by its JSON."""
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
        """A setting from what Optuna drew."""
        dimension = self.space[name]
        return json.loads(drawn) if isinstance(dimension, Choice) else dimension.tidy(drawn)

    def learn(self, record: Record) -> None:
        states = self.optuna.trial.TrialState
        trial = self.asked.pop(record.number, None)
        if trial is None:  # asked for before the sweep was interrupted
            self.study.add_trial(self.earlier(record))
        elif record.status == "finished":
            self.study.tell(trial, record.score)
        elif record.status == "stopped" and record.score is not None:
            trial.report(record.score, record.env_steps)
            self.study.tell(trial, state=states.PRUNED)
        else:
            self.study.tell(trial, state=states.FAIL)

    def earlier(self, record: Record) -> Any:
        """A trial that Optuna did not see."""
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


def require_optuna() -> None:
    """BadInput if Optuna is not there."""
    if importlib.util.find_spec("optuna") is None:
        raise missing_extra("search=optuna", "sweep")
