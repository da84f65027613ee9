"""Actor and learner in turn: the loop every synchronous run goes through, alone or as a rank."""

from __future__ import annotations

import hashlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from rookery.algorithms.base import Algorithm
from rookery.config import RunConfig
from rookery.envs import statistics
from rookery.errors import EnvironmentFailure, RookeryError, require
from rookery.learning.actor import Actor
from rookery.learning.learner import Learner
from rookery.learning.reduce import Reducer
from rookery.memory.rollout import Rollout
from rookery.runs import checkpoint
from rookery.runtime.journal import Journal
from rookery.runtime.progress import Progress, Share


class Parts(NamedTuple):
    """What a process of a run is made of."""

    config: RunConfig
    env: VectorEnv
    algorithm: Algorithm
    actor: Actor
    memory: Rollout
    learner: Learner
    reducer: Reducer
    progress: Progress


def run(parts: Parts, journal: Journal) -> str:
    """Collect and learn until the run is over; why it is."""
    config, progress = parts.config, parts.progress
    every = config.checkpoint_steps or max(1, config.env_steps // 10)
    with interrupts() as interrupt:
        try:
            while (ending := progress.ending(config)) is None:
                before = progress.env_steps
                iterate(parts)
                shares = exchange(parts, interrupt.is_set() or journal.asked_to_stop())
                journal.report(progress, shares, parts.learner)
                if progress.env_steps // every > before // every:
                    save(parts, journal)
        except EnvironmentFailure:
            # The weights are those of the last whole update: worth keeping. Other ranks cannot
            # be asked for theirs now, so only this one's random state is saved.
            if parts.reducer.world == 1:
                save(parts, journal)
            raise
    if journal.saved_at != progress.env_steps:
        save(parts, journal)
    return ending


def iterate(parts: Parts) -> None:
    """One round: experience, then every update it is good for."""
    parts.learner.set_progress(parts.progress.env_steps / parts.config.env_steps)
    segment = parts.actor.collect()
    parts.memory.add(parts.algorithm.prepare(segment), segment.state)
    for batch in parts.memory.batches():
        outcome = parts.learner.update(batch)
        parts.memory.reweigh(batch.keys, outcome.priorities)
        if outcome.stop:
            break
    parts.learner.check_finite()


def exchange(parts: Parts, interrupted: bool) -> list[Share]:
    """Tell the other ranks what was done, and bring counters and statistics to agreement."""
    actor, learner = parts.actor, parts.learner
    share = Share(
        actor.env_steps,
        actor.take_episodes(),
        actor.env_s,
        actor.inference_s,
        learner.learn_s,
        learner.reduce_s,
        parts.progress.cpu_seconds(),
        interrupted,
        parts.progress.elapsed(),
    )
    shares = parts.reducer.gather(share)
    parts.progress.take(shares, learner.updates)
    actor.env_steps = 0
    for moments in statistics(parts.env).values():
        moments.merge(parts.reducer.gather(moments.take_pending()))
    return shares


def save(parts: Parts, journal: Journal) -> None:
    """Write a checkpoint of everything that goes on; all ranks take part."""
    random = {
        "actor": parts.actor.generator.get_state(),
        "memory": parts.memory.generator.get_state(),
    }
    ranks = parts.reducer.gather(random)
    check_agreement(parts)
    journal.saved_at = parts.progress.env_steps
    if parts.reducer.rank == 0:
        states = {f"{name}.{rank}": s for rank, own in enumerate(ranks) for name, s in own.items()}
        journal.save(parts.progress, tensors_of(parts, states))


def check_agreement(parts: Parts) -> None:
    """Raise unless every rank has the same weights, to the bit."""
    weights = parts.learner.flat.values.detach().cpu().numpy().tobytes()
    digests = parts.reducer.gather(hashlib.sha256(weights).hexdigest())
    if len(set(digests)) > 1:
        raise RookeryError(f"the weights of the ranks differ: {digests}")


def tensors_of(parts: Parts, random: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The files of a checkpoint."""
    files: dict[str, dict[str, Tensor]] = {
        "weights": dict(parts.algorithm.network.named_parameters()),
        "optimizer": parts.learner.optimizer.state,
        "random": random,
    }
    moments = {
        f"{name}.{key}": torch.as_tensor(value)
        for name, moments in statistics(parts.env).items()
        for key, value in moments.state().items()
    }
    return files | ({"normalizer": moments} if moments else {})


def restore(parts: Parts, tensors: dict[str, dict[str, Tensor]], meta: dict[str, Any]) -> None:
    """Go on from a checkpoint; one of another network, optimizer or normalisation is refused."""
    load_weights(parts.algorithm, tensors["weights"])
    parts.learner.load_optimizer(tensors["optimizer"])
    parts.learner.updates = meta["updates"]
    parts.progress.load(meta)
    rank = parts.reducer.rank
    # A run resumed on more ranks than it had gives the new ones fresh random states.
    if f"actor.{rank}" in tensors["random"]:
        parts.actor.generator.set_state(tensors["random"][f"actor.{rank}"])
        parts.memory.generator.set_state(tensors["random"][f"memory.{rank}"])
    load_moments(parts.env, tensors.get("normalizer", {}))


def load_weights(algorithm: Algorithm, weights: dict[str, Tensor]) -> None:
    """Copy saved weights into the network's parameters; those of another network are refused."""
    parameters = dict(algorithm.network.named_parameters())
    checkpoint.check_matches(weights, {name: p.shape for name, p in parameters.items()})
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def load_moments(env: VectorEnv, saved: dict[str, Tensor]) -> None:
    """Give the environment's normalisation the statistics of a checkpoint."""
    for name, moments in statistics(env).items():
        keys = [key for key in saved if key.rpartition(".")[0] == name]
        require(
            keys, f"env.normalize_{name.split('.')[0]}: the checkpoint has no statistics for it"
        )
        moments.load({key.rpartition(".")[2]: saved[key].numpy() for key in keys})


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C or a termination signal sets; a second Ctrl-C ends at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def ask(number: int, frame: object) -> None:
        if event.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
