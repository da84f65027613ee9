"""Build the parts, choose the backend, run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import torch

from rookery.backends.base import Setup
from rookery.backends.choose import build
from rookery.backends.components import Parts, load_moments, load_weights, spaces_of
from rookery.backends.factory import make_algorithm
from rookery.backends.ranks import join as ranks
from rookery.backends.ranks.launch import CONSOLE, launch
from rookery.config import RunConfig, from_values, resolve, to_values
from rookery.diagnostics.profiling import Profile
from rookery.envs import make_env, registered
from rookery.errors import EnvironmentFailure, RookeryError, require
from rookery.learning.learner import Learner
from rookery.learning.reduce import Alone, Reducer
from rookery.machine import (
    cores,
    cores_each,
    device_of,
    host_and_cores,
    keep_freed_memory,
    versions,
)
from rookery.reports import require_matplotlib, split_plot
from rookery.runs import checkpoint
from rookery.runs.run import Run
from rookery.training.evaluation import Examiner
from rookery.training.journal import Journal, Notices
from rookery.training.loop import run as run_loop
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
    **settings: Any,
) -> TrainedRun:
    """Train an agent: `train("ppo", "CartPole-v1", env_steps=200_000, algo={"gamma": 0.98})`.

    Settings are those of `RunConfig`. Progress goes to `console` (none: standard output).
    Returns when the run is over.
    """
    config = resolve(algorithm, environment, settings, preset, use_preset).config
    return start(config, runs_dir, name, console)


def resume(path: str | Path, *, console: TextIO | None = None, **settings: Any) -> TrainedRun:
    """Go on with the run in the folder `path` from its newest whole checkpoint."""
    run = Run.open(path)
    config = from_values(run.config, settings)

    def rewrite() -> Run:
        check_fits(config, checkpoint.newest_whole(run.checkpoints))
        run.rewrite_config(to_values(config))
        run.stop_path.unlink(missing_ok=True)
        return run

    return carry_out(config, rewrite, resuming=True, console=console)


def start(
    config: RunConfig,
    runs_dir: str | Path = "runs",
    name: str | None = None,
    console: TextIO | None = None,
) -> TrainedRun:
    """A new run of `config`, to its end."""

    def create() -> Run:
        return Run.create(runs_dir, name, to_values(config))

    return carry_out(config, create, resuming=False, console=console)


def carry_out(
    config: RunConfig, open_run: Callable[[], Run], resuming: bool, console: TextIO | None
) -> TrainedRun:
    """A run to its end: as one of the ranks there are, in ranks started for it, or here."""
    if config.profile:
        require_matplotlib("profile: a picture of where time goes")
    where = ranks.place()
    if where is not None and where.world > 1:
        path = carry_out_as_rank(where, config, open_run, resuming, console)
        return TrainedRun.open(path)
    if config.chosen_backend == "ranks":
        require(
            config.environment not in registered(),
            f'environment: "{config.environment}" is registered in this process only; for ranks'
            " name it as package.module:EnvId",
        )
        count = cores() if config.actors == "auto" else config.actors
        transport = ranks.transport_for(config.learner.transport, device_of(config.device), None)
        threads = config.threads or cores_each(count)
        run = open_run()
        launch(run, count, transport, threads, resuming, console or sys.stdout)
    else:
        # On ray the learners have devices of their own.
        device = device_of("cpu" if config.chosen_backend == "ray" else config.device)
        run = open_run()
        fit(run, run.path, config, Alone(), device, resuming, console)
    return TrainedRun.open(run.path)


def carry_out_as_rank(
    where: ranks.Place,
    config: RunConfig,
    open_run: Callable[[], Run],
    resuming: bool,
    console: TextIO | None,
) -> Path:
    """The part of a rank that mpirun, torchrun or srun started; the run's folder."""
    try:
        require(
            config.backend not in ("serial", "threads", "ray"),
            f"backend={config.backend} under {where.launcher} with {where.world} ranks; use"
            " --backend ranks",
        )
        require(
            config.actors in ("auto", where.world),
            f"actors={config.actors}, but {where.launcher} started {where.world} ranks; leave it"
            " out",
        )
        device = device_of(config.device, where.local_rank)
        reducer = ranks.join(where, config.learner.transport, device)
        run = open_run() if reducer.rank == 0 else None
        path = reducer.gather(run and run.path)[0]
        fit(run, path, config, reducer, device, resuming, console)
        return path
    except RookeryError as error:
        ranks.leave(error)


def take_part(path: Path, resume: bool, console: TextIO | None) -> None:
    """The part of a rank started by `launch`."""
    where = ranks.place()
    assert where is not None
    run = Run.open(path)
    config = from_values(run.config, {})
    device = device_of(config.device, where.local_rank)
    reducer = ranks.join(where, config.learner.transport, device)
    fit(run if reducer.rank == 0 else None, path, config, reducer, device, resume, console)


def fit(
    run: Run | None,
    path: Path,
    config: RunConfig,
    reducer: Reducer,
    device: torch.device,
    resuming: bool,
    console: TextIO | None = None,
) -> None:
    """Train as one rank of `reducer`'s; `run` is the folder to write to, None beside rank 0."""
    keep_freed_memory()
    saved = checkpoint.newest_whole(path / "checkpoints") if resuming else None
    notices = Notices()
    try:
        parts, backend = build(config, reducer, device, saved, notices)
    except EnvironmentFailure as error:
        raise noted(run, error) from None
    except RookeryError:
        if run is not None and not resuming:
            run.remove()
        raise
    journal = open_journal(run, config, reducer, saved, console)
    examiner = Examiner(config.eval_steps, config.eval_episodes, config.eval_epsilon)
    folder = run.path / "profile" if run is not None and config.profile else None
    profile = Profile(folder)
    setup = backend.setup()
    try:
        for line in opening(parts, setup, saved):
            journal.announce(line)
        notices.go_to(journal)
        status = run_loop(parts, backend, journal, examiner, profile)
    except RookeryError as error:
        raise noted(run, error) from None
    finally:
        journal.close()
    if folder is not None:
        split_plot.draw(path, folder / "split.png")
        journal.announce(f"profile: {folder}")
    if run is not None:
        run.write_result(result(status, parts, setup, journal))
    reducer.close()


def open_journal(
    run: Run | None,
    config: RunConfig,
    reducer: Reducer,
    saved: checkpoint.Checkpoint | None,
    console: TextIO | None,
) -> Journal:
    """What the run is written down in, gone on from `saved` if given."""
    journal = Journal(
        run,
        config.env_steps,
        config.keep_checkpoints,
        saved.step if saved else None,
        console,
        # mpirun gives its ranks a terminal of their own even where its output is a file.
        plain=reducer.world > 1 and os.environ.get(CONSOLE) is None,
        status_s=config.ray.status_seconds,
    )
    if saved is not None:
        journal.best = saved.meta.get("best")
    return journal


def noted(run: Run | None, error: RookeryError) -> RookeryError:
    """The error, once the run's log and result tell of it."""
    if run is not None:
        run.note_failure(str(error), error.details)
    return error


def check_fits(config: RunConfig, saved: checkpoint.Checkpoint) -> None:
    """Raise unless a run of this config can go on from the checkpoint."""
    env = make_env(config.environment, config.env)
    cpu = torch.device("cpu")
    algorithm = make_algorithm(config, spaces_of(env), cpu)
    load_weights(algorithm, saved.tensors)
    Learner(algorithm, config.learner, Alone(), cpu).load_optimizer(saved.tensors["optimizer"])
    load_moments(env, saved.tensors.get("normalizer", {}))
    env.close()


def opening(parts: Parts, setup: Setup, saved: checkpoint.Checkpoint | None) -> Iterator[str]:
    """The lines a run begins with."""
    config = parts.config
    yield f"{config.algorithm} on {config.environment}: {describe(parts, setup)}"
    if line := parts.memory.describe():
        yield line
    if saved is not None:
        yield f"resuming at step {saved.step:,} from {saved.path.name}"
        yield from (f"passed over: {line}" for line in saved.skipped)


def describe(parts: Parts, setup: Setup) -> str:
    """Where and how a run computes, in a line."""
    weights = sum(p.numel() for p in parts.algorithm.network.parameters())
    return (
        f"{setup.line}, {parts.config.envs} environments each ({parts.env.engine}),"  # type: ignore[attr-defined]
        f" {setup.threads} threads, {setup.device}, {weights:,} weights"
    )


def result(status: str, parts: Parts, setup: Setup, journal: Journal) -> dict[str, Any]:
    """What result.json says."""
    progress = parts.progress
    seconds = max(progress.elapsed(), 1e-9)
    return {
        "status": status,
        **progress.report(),
        "env_steps_per_second": (progress.env_steps - journal.first_step) / seconds,
        **journal.measured(parts),
        "samples": int(parts.learner.samples),
        "input_bytes": parts.learner.input_bytes,
        **{k: v for k, v in journal.last_report.items() if k in ("loss", "entropy", "grad_norm")},
        "last_report": journal.last_report,
        "seed": parts.config.seed,
        "backend": "ranks" if parts.reducer.world > 1 else parts.config.chosen_backend,
        "transport": setup.transport,
        "ranks": setup.ranks,
        "device": setup.device,
        "threads": setup.threads,
        **host_and_cores(),
        "pid": os.getpid(),
        "versions": versions(),
    }
