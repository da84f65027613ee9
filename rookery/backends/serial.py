"""The backend `serial`, and each rank of `ranks`: one actor in turn with the learner."""

from __future__ import annotations

import torch

from rookery.backends.base import Backend, CheckpointState, ProcessUsage, Report, Setup
from rookery.backends.common import ActorTally, actor_metrics, learn_from, normalizer_tensors
from rookery.config import RunConfig
from rookery.data.layer_records import LayerRecords
from rookery.envs import statistics
from rookery.envs.wrappers.observation_record import ObservationRecord, observations_of
from rookery.errors import RookeryError
from rookery.learning.actor import Actor
from rookery.learning.diagnosis import UpdateEvidence
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
            weights=self.learner.flat.values.numel(),
            memory=self.memory.describe(),
        )

    def advance(self, env_steps: int) -> None:
        """Collect a segment, add it to the memory, and make every update that is due."""
        done = env_steps / self.config.env_steps
        self.learner.set_progress(done)
        self.memory.set_progress(done)
        segment = self.actor.collect(env_steps)
        self.memory.add(self.actor.algorithm.prepare(segment))
        learn_from(self.memory, self.learner)

    def report(self, interrupted: bool, usage: ProcessUsage) -> Report:
        """Exchange progress and the statistics of normalisation with the other ranks."""
        learner, tally = self.learner, self.tally
        tally.add(self.actor.take_played())
        if self.reducer.rank == 0:
            tally.notices += learner.take_notices()
        own = tally.take(learner.times, interrupted, usage)
        workers = self.reducer.gather(own)
        for moments in statistics(self.actor.env).values():
            moments.merge(self.reducer.gather(moments.take_pending()))
        return Report(workers, learner.updates, learner.samples, learner.input_bytes)

    def metrics(self, seconds: float) -> dict[str, float]:
        return (
            self.learner.take_metrics()
            | {"learning_rate": self.learner.optimizer.learning_rate}
            | self.memory.take_report(seconds)
            | actor_metrics([self.tally], self.actor.algorithm.explores_by)
            | {"actors_healthy": self.reducer.world}
        )

    def layer_records(self) -> LayerRecords | None:
        return self.learner.take_records()

    def evidence(self) -> UpdateEvidence | None:
        return self.learner.evidence

    def state(self) -> CheckpointState | None:
        generators = {"actor": self.actor.generator, "memory": self.memory.generator}
        ranks = self.reducer.gather({name: each.get_state() for name, each in generators.items()})
        digests = self.reducer.gather(self.learner.digest())
        if len(set(digests)) > 1:
            raise RookeryError(f"the weights of the ranks differ: {digests}")
        if self.reducer.rank > 0:
            return None
        random = {f"{name}.{rank}": s for rank, own in enumerate(ranks) for name, s in own.items()}
        tensors = self.learner.tensors() | {"random": random}
        return CheckpointState(tensors | normalizer_tensors(self.actor.env), self.learner.counts())

    def restore(self, saved: Checkpoint) -> None:
        """Load networks, optimizer, counters and random states; the statistics of normalisation
        are loaded before the actor resets its environments."""
        self.learner.load(saved.tensors, saved.meta)
        # A run resumed on more ranks than it had gives the new ones fresh random states.
        random, rank = saved.tensors["random"], self.reducer.rank
        if f"actor.{rank}" in random:
            self.actor.generator.set_state(random[f"actor.{rank}"])
            self.memory.generator.set_state(random[f"memory.{rank}"])

    def observations(self) -> ObservationRecord | None:
        return observations_of(self.actor.env)

    def close(self) -> None:
        self.actor.env.close()
