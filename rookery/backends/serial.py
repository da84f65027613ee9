"""Actor and learner in turn: every synchronous run, alone or as a rank."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from rookery.backends.base import Backend, Setup
from rookery.backends.components import Parts
from rookery.backends.progress import Share
from rookery.envs import statistics
from rookery.learning.actor import Actor
from rookery.learning.learner import Learner
from rookery.memory.base import Memory


def learn_from(memory: Memory, learner: Learner, most: int | None = None) -> None:
    """Every update that is due, or the first of them."""
    for batch in itertools.islice(memory.batches(learner.ahead), most):
        outcome = learner.update(batch)
        memory.reweigh(batch.keys, outcome.priorities)
        if outcome.stop:
            break
    learner.check_finite()


class Serial(Backend):
    """One actor in turn with the learner."""

    def __init__(self, parts: Parts, memory: Memory, actor: Actor):
        self.parts = parts
        self.memory = memory
        self.actor = actor

    def setup(self) -> Setup:
        reducer, device = self.parts.reducer, self.parts.learner.device
        several = f"ranks x {reducer.world} over {reducer.name}"
        line = several if reducer.world > 1 else "serial"
        return Setup(line, reducer.name, reducer.world, str(device), torch.get_num_threads())

    def advance(self) -> None:
        """One round: experience, then every update that is due."""
        parts = self.parts
        self.memory.set_progress(parts.progress.env_steps / parts.config.env_steps)
        segment = self.actor.collect(parts.progress.env_steps)
        self.memory.add(parts.algorithm.prepare(segment))
        learn_from(self.memory, parts.learner)

    def exchange(self, interrupted: bool) -> list[Share]:
        """Tell the other ranks what was done, and bring statistics to agreement."""
        actor, parts = self.actor, self.parts
        share = Share(
            env_steps=actor.take_steps(),
            episodes=actor.take_episodes(),
            notices=actor.take_notices(),
            **actor.times._asdict(),
            learn_s=parts.learner.learn_s,
            reduce_s=parts.learner.reduce_s,
            wait_s=0.0,
            cpu_s=parts.progress.cpu_seconds(),
            interrupted=interrupted,
            seconds=parts.progress.elapsed(),
        )
        shares = parts.reducer.gather(share)
        for moments in statistics(parts.env).values():
            moments.merge(parts.reducer.gather(moments.take_pending()))
        return shares

    def gauges(self) -> dict[str, float]:
        """The weights that act are always the newest."""
        name = self.parts.algorithm.explores_by
        explore = {name: float(self.actor.explore.mean())} if name else {}
        return explore | {
            "policy_lag_mean": 0.0,
            "policy_lag_max": 0.0,
            "actors_healthy": self.parts.reducer.world,
        }

    def random_state(self) -> dict[str, Tensor]:
        return {
            "actor": self.actor.generator.get_state(),
            "memory": self.memory.generator.get_state(),
        }

    def restore(self, random: dict[str, Tensor]) -> None:
        """Go on from the random states of a checkpoint, where it has those of this rank: a run
        resumed on more ranks than it had gives the new ones fresh states."""
        rank = self.parts.reducer.rank
        if f"actor.{rank}" in random:
            self.actor.generator.set_state(random[f"actor.{rank}"])
            self.memory.generator.set_state(random[f"memory.{rank}"])

    def close(self) -> None:
        self.actor.env.close()
