"""Build the parts, choose the backend, run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch

from rookery.algorithms import Spaces, algorithm_class
from rookery.algorithms.base import Algorithm, Collection
from rookery.config import RunConfig, from_values, resolve, to_values
from rookery.data.steps import Lanes
from rookery.envs import frame_stack_of, make_env, registered, statistics
from rookery.errors import EnvironmentFailure, RookeryError, require
from rookery.learning.actor import Actor
from rookery.learning.learner import Learner
from rookery.learning.reduce import Alone, Reducer
from rookery.memory.replay import Replay
from rookery.runs import checkpoint
from rookery.runs.run import Run, machine, versions
from rookery.runtime import ranks
from rookery.runtime.compute import cores_each, device_of, keep_freed_memory, useful_threads
from rookery.runtime.examine import Examiner
from rookery.runtime.journal import Journal
from rookery.runtime.launch import CONSOLE, launch
from rookery.runtime.loop import Backend
from rookery.runtime.loop import run as run_loop
from rookery.runtime.progress import Progress
from rookery.runtime.serial import Serial
from rookery.runtime.state import Parts, load_moments, load_weights, restore
from rookery.runtime.threads import Crew, Threads, Weights
from rookery.trained import TrainedRun

Tell = Callable[[str, str], None]
"""Takes a line for the eye, and further lines for the log."""


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
        count = config.actors or int(machine()["cores"])
        transport = ranks.transport_for(config.learner.transport, device_of(config.device), None)
        threads = config.threads or cores_each(count)
        run = open_run()
        launch(run, count, transport, threads, resuming, console or sys.stdout)
    else:
        device = device_of(config.device)
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
            config.backend not in ("serial", "threads"),
            f"backend={config.backend} under {where.launcher} with {where.world} ranks; use"
            " --backend ranks",
        )
        require(
            config.actors in (None, where.world),
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
    told: list[Tell] = []

    def tell(line: str, details: str) -> None:
        for write in told:
            write(line, details)

    try:
        parts, backend = build(config, reducer, device, saved, tell)
    except EnvironmentFailure as error:
        raise noted(run, error) from None
    except RookeryError:
        if run is not None and not resuming:
            run.remove()
        raise
    journal = Journal(
        run,
        config.env_steps,
        config.keep_checkpoints,
        saved.step if saved else None,
        console,
        # mpirun gives its ranks a terminal of their own even where its output is a file.
        plain=reducer.world > 1 and os.environ.get(CONSOLE) is None,
    )
    told.append(journal.tell)
    if saved is not None:
        journal.best = saved.meta.get("best")
    examiner = Examiner(config.eval_steps, config.eval_episodes, config.eval_epsilon)
    try:
        journal.announce(f"{config.algorithm} on {config.environment}: {describe(parts)}")
        if line := parts.memory.describe():
            journal.announce(line)
        if saved is not None:
            journal.announce(f"resuming at step {saved.step:,} from {saved.path.name}")
            for line in saved.skipped:
                journal.announce(f"passed over: {line}")
        status = run_loop(parts, backend, journal, examiner)
    except RookeryError as error:
        raise noted(run, error) from None
    finally:
        journal.close()
    if run is not None:
        run.write_result(result(status, parts, journal))
    reducer.close()


def noted(run: Run | None, error: RookeryError) -> RookeryError:
    """The error, once the run's log and result tell of it."""
    if run is not None:
        run.note_failure(str(error), error.details)
    return error


class Built(NamedTuple):
    """The parts of a process, and what plays and learns with them."""

    parts: Parts
    backend: Backend


def build(
    config: RunConfig,
    reducer: Reducer,
    device: torch.device,
    saved: checkpoint.Checkpoint | None = None,
    tell: Tell = lambda line, details: None,
) -> Built:
    """The parts of one rank, gone on from `saved` if given."""
    step = saved.step if saved else 0
    network_seed, memory_seed = seeds(config.seed, reducer.rank, step, 0)
    actors = actor_count(config)
    cores = cores_each(ranks.on_this_host(reducer))
    env = make_env(
        config.environment, config.env, num_envs=config.envs, threads=engine_threads(config, cores)
    )
    # Actors on threads compute on one core each, and the learner on what they leave.
    left = max(1, cores - actors) if config.chosen_backend == "threads" else cores
    torch.set_num_threads(config.threads or useful_threads(spaces_of(env), left))
    torch.manual_seed(network_seed)
    algorithm = make_algorithm(config, env, device)
    memory = algorithm.memory(config.envs, actors, memory_seed)
    learner = Learner(algorithm, config.learner, reducer, device, config.precision, config.compile)
    parts = Parts(config, env, algorithm, memory, learner, reducer, Progress())
    if saved is not None:
        restore(parts, saved.tensors, saved.meta)
    if config.chosen_backend == "threads":
        return Built(parts, crew_of(parts, actors, cores, step, tell))
    collection = rank_share(algorithm.collection, reducer)
    lanes = Lanes(reducer.rank * config.envs, config.envs, reducer.world * config.envs)
    actor_seeds = seeds(config.seed, reducer.rank, step, 1)
    serial = Serial(parts, Actor(env, algorithm, collection, device, *actor_seeds, lanes))
    if saved is not None:
        serial.restore(saved.tensors["random"])
    return Built(parts, serial)


def seeds(*of: int) -> tuple[int, int]:
    """Two seeds for a purpose: distinct for each rank, actor and sitting, since a resumed run must
    not replay its start."""
    first, second = np.random.SeedSequence(of).generate_state(2) >> 1
    return int(first), int(second)


def spaces_of(env: Any) -> Spaces:
    """What the environments see and do."""
    return Spaces(env.single_observation_space, env.single_action_space, frame_stack_of(env))


def make_algorithm(config: RunConfig, env: Any, device: torch.device) -> Algorithm:
    """The algorithm for these environments, with a new network."""
    algorithm = algorithm_class(config.algorithm)(spaces_of(env), config.algo, config.net, device)
    require(
        algorithm.collection.episodes is None or not config.env.one_life,
        "env.one_life ends an episode with every life, and algo.episodes starts a new game for"
        " every batch of them; use algo.rollout_steps",
    )
    return algorithm


def actor_count(config: RunConfig) -> int:
    """How many actors this process has."""
    if config.chosen_backend != "threads":
        return 1
    return config.actors or int(machine()["cores"])


def engine_threads(config: RunConfig, cores: int) -> int:
    """Threads of each actor's environments."""
    return config.threads or max(1, cores // actor_count(config))


def crew_of(parts: Parts, actors: int, cores: int, step: int, tell: Tell) -> Threads:
    """The actors in threads, each with environments and a network of its own."""
    config = parts.config
    require(
        not statistics(parts.env),
        "env.normalize_obs and env.normalize_reward keep statistics that actors on threads do not"
        " share; use --backend serial",
    )
    devices = [device_of(name) for name in config.act_device.split(",")]
    threads = engine_threads(config, cores)

    def make_actor(number: int, restart: int) -> Actor:
        env, device = parts.env, devices[number % len(devices)]
        if number or restart:
            env = make_env(config.environment, config.env, num_envs=config.envs, threads=threads)
        algorithm = make_algorithm(config, env, device)
        algorithm.network.to(device)
        lanes = Lanes(number * config.envs, config.envs, actors * config.envs)
        own = seeds(config.seed, number, step, 1 + restart)
        return Actor(env, algorithm, algorithm.collection, device, *own, lanes)

    assert isinstance(parts.memory, Replay)
    weights = Weights(parts.learner.flat.values)
    return Threads(
        parts, Crew(actors, make_actor, parts.memory, weights, config.actor_restarts, tell)
    )


def check_fits(config: RunConfig, saved: checkpoint.Checkpoint) -> None:
    """Raise unless a run of this config can go on from the checkpoint."""
    env = make_env(config.environment, config.env)
    cpu = torch.device("cpu")
    algorithm = make_algorithm(config, env, cpu)
    load_weights(algorithm, saved.tensors)
    Learner(algorithm, config.learner, Alone(), cpu).load_optimizer(saved.tensors["optimizer"])
    load_moments(env, saved.tensors.get("normalizer", {}))
    env.close()


def rank_share(collection: Collection, reducer: Reducer) -> Collection:
    """What one rank collects: all ranks' episodes add up to what was asked for."""
    if collection.episodes is None:
        return collection
    require(
        collection.episodes >= reducer.world,
        f"algo.episodes={collection.episodes} is less than one for each of {reducer.world} ranks",
    )
    more = reducer.rank < collection.episodes % reducer.world
    return Collection(episodes=collection.episodes // reducer.world + more)


def describe(parts: Parts) -> str:
    """Where and how a run computes, in a line."""
    config, world = parts.config, parts.reducer.world
    backend = f"ranks x {world} over {parts.reducer.name}" if world > 1 else config.chosen_backend
    if backend == "threads":
        backend = f"threads x {actor_count(config)}"
    weights = sum(p.numel() for p in parts.algorithm.network.parameters())
    return (
        f"{backend}, {config.envs} environments each ({parts.env.engine}),"  # type: ignore[attr-defined]
        f" {torch.get_num_threads()} threads, {parts.learner.device}, {weights:,} weights"
    )


def result(status: str, parts: Parts, journal: Journal) -> dict[str, Any]:
    """What result.json says."""
    progress = parts.progress
    seconds = max(progress.elapsed(), 1e-9)
    return {
        "status": status,
        **progress.report(),
        "env_steps_per_second": (progress.env_steps - journal.first_step) / seconds,
        **{k: v for k, v in journal.last_report.items() if k in ("loss", "entropy", "grad_norm")},
        "seed": parts.config.seed,
        "backend": "ranks" if parts.reducer.world > 1 else parts.config.chosen_backend,
        "transport": parts.reducer.name,
        "ranks": parts.reducer.world,
        "device": str(parts.learner.device),
        "threads": torch.get_num_threads(),
        **machine(),
        "pid": os.getpid(),
        "versions": versions(),
    }
