"""Actor and learner in turn: every synchronous run, alone or as a rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from rookery.envs import statistics
from rookery.learning.actor import Actor
from rookery.runtime.progress import Share
from rookery.runtime.state import Parts


class Serial:
    """One actor in turn with the learner."""

    def __init__(self, parts: Parts, actor: Actor):
        self.parts = parts
        self.actor = actor

    def begin(self) -> None:
        """Nothing goes on in the background."""

    def advance(self) -> None:
        """One round: experience, then every update that is due."""
        parts = self.parts
        segment = self.actor.collect(parts.progress.env_steps)
        parts.memory.add(parts.algorithm.prepare(segment))
        for batch in parts.memory.batches():
            outcome = parts.learner.update(batch)
            parts.memory.reweigh(batch.keys, outcome.priorities)
            if outcome.stop:
                break
        parts.learner.check_finite()

    def exchange(self, interrupted: bool) -> list[Share]:
        """Tell the other ranks what was done, and bring statistics to agreement."""
        actor, parts = self.actor, self.parts
        share = Share(
            env_steps=actor.take_steps(),
            episodes=actor.take_episodes(),
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
            "memory": self.parts.memory.generator.get_state(),
        }

    def restore(self, random: dict[str, Tensor]) -> None:
        """Go on from the random states of a checkpoint, where it has those of this rank: a run
        resumed on more ranks than it had gives the new ones fresh states."""
        rank = self.parts.reducer.rank
        if f"actor.{rank}" in random:
            self.actor.generator.set_state(random[f"actor.{rank}"])
            self.parts.memory.generator.set_state(random[f"memory.{rank}"])

    @contextmanager
    def paused(self) -> Iterator[None]:
        yield

    def close(self) -> None:
        self.actor.env.close()
