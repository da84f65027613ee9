"""Start and resume runs: in this process, in ranks started for it, or as one of given ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch

from rookery.backends.common import load_normalizer
from rookery.backends.factory import make_learner, spaces_of
from rookery.backends.ranks import join as ranks
from rookery.backends.ranks.launch import launch
from rookery.config import RunConfig, from_values, resolve, to_values
from rookery.envs import make_env, registered
from rookery.errors import RookeryError, require
from rookery.learning.reduce import Reducer
from rookery.machine import cores, cores_each, device_of
from rookery.processes import RankPlace, rank_place
from rookery.reports.figures import require_matplotlib
from rookery.runs import checkpoint
from rookery.runs.callbacks import Callback, load_callbacks
from rookery.runs.files import write_json
from rookery.runs.run import Run
from rookery.training.loop import TrainingLoop
from rookery.training.trained import TrainedRun


def train(
    algorithm: str,
    environment: str,
    *,
    runs_dir: str | Path = "runs",
    name: str | None = None,
    preset: str | None = None,
    use_preset: bool = True,
    console: TextIO | None = None,
    callbacks: Sequence[Callback | str] = (),
    **settings: Any,
) -> TrainedRun:
    """Train an agent: `train("ppo", "CartPole-v1", env_steps=200_000, algo={"gamma": 0.98})`.

    Settings are those of `RunConfig`. Progress goes to `console` (None: standard output).
    `callbacks` are objects of subclasses of `rookery.Callback`, or names "package.module:Name" of
    such classes. Returns when the run is over.
    """
    config = resolve(algorithm, environment, settings, preset, use_preset).config
    return start(config, new_run(config, runs_dir, name), console=console, callbacks=callbacks)


def resume(
    path: str | Path,
    *,
    console: TextIO | None = None,
    callbacks: Sequence[Callback | str] = (),
    **settings: Any,
) -> TrainedRun:
    """Continue the run in the folder `path` from its newest complete checkpoint."""
    run = Run.open(path)
    config = from_values(run.config, settings)

    def reopen() -> Run:
        # A checkpoint of another network or optimizer is refused here, not in a worker.
        saved = checkpoint.load_newest(run.checkpoints)
        env = make_env(config.environment, config.env)
        learner = make_learner(config, spaces_of(env), Reducer(), torch.device("cpu"), config.seed)
        learner.load(saved.tensors, saved.meta)
        load_normalizer(env, saved.tensors)
        env.close()
        run.config = to_values(config)
        write_json(run.path / "config.json", run.config)
        run.stop_path.unlink(missing_ok=True)
        return run

    return start(config, reopen, resuming=True, console=console, callbacks=callbacks)


def new_run(config: RunConfig, runs_dir: str | Path, name: str | None) -> Callable[[], Run]:
    """Return what creates the folder of a new run."""
    return partial(Run.create, runs_dir, name, to_values(config))


def start(
    config: RunConfig,
    open_run: Callable[[], Run],
    *,
    resuming: bool = False,
    console: TextIO | None = None,
    callbacks: Sequence[Callback | str] = (),
) -> TrainedRun:
    """Train until the run is over, in the folder that `open_run` returns.

    `open_run` is called in one process only, once the settings are known to be valid.
    """
    if config.profile:
        require_matplotlib("profile: a picture of where time goes")
    if config.inspect_every:
        require_matplotlib("inspect_every: pictures of what the network gets")
    place = rank_place()
    if place is not None and place.world > 1:
        try:
            path = train_as_rank(place, config, open_run, resuming, console, callbacks)
        except RookeryError as error:
            ranks.leave(error)
    elif config.chosen_backend == "ranks":
        path = start_ranks(config, open_run, resuming, console or sys.stdout, callbacks)
    else:
        # On ray the learners have devices of their own.
        device = device_of("cpu" if config.chosen_backend == "ray" else config.device)
        made = load_callbacks(callbacks)
        run = open_run()
        path = run.path
        TrainingLoop(run, path, config, Reducer(), device, resuming, console, made).run()
    return TrainedRun.open(path)


def start_ranks(
    config: RunConfig,
    open_run: Callable[[], Run],
    resuming: bool,
    console: TextIO,
    callbacks: Sequence[Callback | str],
) -> Path:
    """Start ranks on this machine, wait for them, and return the run's folder."""
    require(
        config.environment not in registered(),
        f'environment: "{config.environment}" is registered in this process only; for ranks name'
        " it as package.module:EnvId",
    )
    names = [callback for callback in callbacks if isinstance(callback, str)]
    require(
        len(names) == len(callbacks),
        "callbacks: objects of this process do not reach ranks; name their classes as"
        " package.module:Name",
    )
    load_callbacks(names)
    count = cores() if config.actors == "auto" else config.actors
    transport = ranks.transport_for(config.learner.transport, device_of(config.device), None)
    threads = config.threads or cores_each(count)
    run = open_run()
    launch(run, count, transport, threads, resuming, console, names)
    return run.path


def train_as_rank(
    place: RankPlace,
    config: RunConfig,
    open_run: Callable[[], Run],
    resuming: bool,
    console: TextIO | None,
    callbacks: Sequence[Callback | str],
) -> Path:
    """Train as one of several ranks that were started together; return the run's folder."""
    require(
        config.backend not in ("serial", "threads", "ray"),
        f"backend={config.backend} under {place.launcher} with {place.world} ranks; use"
        " --backend ranks",
    )
    require(
        config.actors in ("auto", place.world),
        f"actors={config.actors}, but {place.launcher} started {place.world} ranks; remove it",
    )
    device = device_of(config.device, place.local_rank)
    reducer = ranks.join(place, config.learner.transport, device)
    first = reducer.rank == 0
    made = load_callbacks(callbacks) if first else []
    run = open_run() if first else None
    path = reducer.gather(run and run.path)[0]
    TrainingLoop(run, path, config, reducer, device, resuming, console, made).run()
    return path
