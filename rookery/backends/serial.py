"""The backend `serial`, and each rank of `ranks`: one actor in turn with the learner."""

from __future__ import annotations

import torch
from torch import Tensor

from rookery.backends.base import Backend, CheckpointState, Report, Setup
from rookery.backends.common import ActorTally, Clock, actor_metrics, learn_from
from rookery.backends.contents import learner_tensors, load_learner, normalizer_tensors
from rookery.config import RunConfig
from rookery.envs import statistics
from rookery.errors import RookeryError
from rookery.learning.actor import Actor
from rookery.learning.learner import Learner
from rookery.memory.base import Memory
from rookery.runs.checkpoint import Checkpoint


class Serial(Backend):
    """One actor in turn with the learner, alone or as a rank of `learner.reducer`."""

    def __init__(self, config: RunConfig, actor: Actor, memory: Memory, learner: Learner):
        self.config = config
        self.actor = actor
        self.memory = memory
        self.learner = learner
        self.reducer = learner.reducer
        self.collective = self.reducer.world > 1
        self.tally = ActorTally()
        self.clock = Clock()

    def setup(self) -> Setup:
        reducer = self.reducer
        several = reducer.world > 1
        return Setup(
            backend="ranks" if several else self.config.chosen_backend,
            description=f"ranks x {reducer.world} over {reducer.name}" if several else "serial",
            transport=reducer.name,
            ranks=reducer.world,
            device=str(self.learner.device),
            threads=torch.get_num_threads(),
            engine=self.actor.env.engine,  # type: ignore[attr-defined]
            weights=self.learner.weights,
            memory=self.memory.describe(),
        )

    def start(self) -> None:
        self.clock = Clock()

    def advance(self, env_steps: int) -> None:
        """Collect a segment, add it to the memory, and make every update that is due."""
        done = env_steps / self.config.env_steps
        self.learner.set_progress(done)
        self.memory.set_progress(done)
        segment = self.actor.collect(env_steps)
        self.memory.add(self.actor.algorithm.prepare(segment))
        learn_from(self.memory, self.learner)

    def report(self, interrupted: bool) -> Report:
        """Exchange progress and the statistics of normalisation with the other ranks."""
        learner, clock = self.learner, self.clock
        self.tally.add(self.actor.take_played())
        if self.reducer.rank == 0:
            self.tally.notices += learner.take_notices()
        own = self.tally.take(learner.times, clock.cpu_seconds(), interrupted, clock.elapsed())
        workers = self.reducer.gather(own)
        for moments in statistics(self.actor.env).values():
            moments.merge(self.reducer.gather(moments.take_pending()))
        return Report(workers, learner.updates, learner.samples, learner.input_bytes)

    def metrics(self, seconds: float) -> dict[str, float]:
        return (
            self.learner.take_metrics()
            | {"learning_rate": self.learner.learning_rate}
            | self.memory.take_report(seconds)
            | actor_metrics([self.tally], self.actor.algorithm.explores_by)
            | {"actors_healthy": self.reducer.world}
        )

    def state(self) -> CheckpointState | None:
        ranks = self.reducer.gather(self.random_states())
        digests = self.reducer.gather(self.learner.digest())
        if len(set(digests)) > 1:
            raise RookeryError(f"the weights of the ranks differ: {digests}")
        if self.reducer.rank > 0:
            return None
        random = {f"{name}.{rank}": s for rank, own in enumerate(ranks) for name, s in own.items()}
        tensors = learner_tensors(self.learner) | {"random": random}
        return CheckpointState(tensors | normalizer_tensors(self.actor.env), self.learner.counts())

    def random_states(self) -> dict[str, Tensor]:
        """Return the states of this rank's random generators."""
        return {
            "actor": self.actor.generator.get_state(),
            "memory": self.memory.generator.get_state(),
        }

    def restore(self, saved: Checkpoint) -> None:
        """Load networks, optimizer, counters and random states; the statistics of normalisation
        are loaded before the actor resets its environments."""
        load_learner(self.learner, saved.tensors)
        self.learner.load_counts(saved.meta)
        # A run resumed on more ranks than it had gives the new ones fresh random states.
        random, rank = saved.tensors["random"], self.reducer.rank
        if f"actor.{rank}" in random:
            self.actor.generator.set_state(random[f"actor.{rank}"])
            self.memory.generator.set_state(random[f"memory.{rank}"])

    def close(self) -> None:
        self.actor.env.close()
