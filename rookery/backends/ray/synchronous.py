"""Actors and learners in turn: every synchronous algorithm on a cluster."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayError

from rookery.backends.ray.driver import Driver
from rookery.backends.ray.failures import weights_lost
from rookery.backends.ray.learners import WAIT_S
from rookery.backends.ray.messages import Origin, Played
from rookery.backends.ray.slots import ActorPost
from rookery.backends.ray.waiting import Impatience
from rookery.runs.checkpoint import Checkpoint

Collected = dict[int, tuple[Any, Origin]]
"""References to segments and where they come from, by the number of the actor."""


class Turns(Driver):
    """A segment of every actor that is alive, then every update that is due."""

    room: int | None = None
    """How many actors the learners' replay memories were made for; None: they have none."""

    def start_memory(self) -> None:
        """The learners have it, if there is one."""
        super().start_memory()
        if self.ledger.line is not None:
            self.room = len(self.actors)

    def most_actors(self) -> int | None:
        return self.room

    def advance(self) -> None:
        """One round."""
        start = time.perf_counter()
        collected = self.gather()
        self.wait_s += time.perf_counter() - start
        shared = self.shared_out(collected)
        references = [
            learner.learn.options(num_returns=2).remote(
                self.done(),
                self.moments(),
                [(number // self.learners.count, collected[number][1]) for number in numbers],
                *[collected[number][0] for number in numbers],
            )
            for learner, numbers in zip(self.learners.handles, shared, strict=True)
        ]
        try:
            learned = self.learners.answers([told for told, _ in references], "learn")
        except ObjectLostError as error:
            self.tell("segments were lost with their node, and are played again", str(error))
            return
        for rank, each in enumerate(learned):
            if each.kept is not None:
                self.ledger.kept[self.memory_number(rank)] = each.kept
        self.note_learned(learned[0], references[0][1])

    def memory_number(self, rank: int) -> int:
        """What tells a learner's memory from those of the learners before it."""
        return rank + self.learners.restarts * self.learners.count

    def recover(self, saved: Checkpoint) -> None:
        self.ledger.lost |= {self.memory_number(rank) for rank in range(self.learners.count)}
        super().recover(saved)

    def gather(self) -> Collected:
        """Segments of all actors that are alive; at least one for each learner."""
        collected: Collected = {}
        deadline = time.monotonic() + self.config.ray.start_seconds
        while len(collected) < self.learners.count:
            self.look_after()
            playing = [post for post in self.ready() if post.number not in collected]
            if playing:
                self.play(playing, collected)
            elif time.monotonic() > deadline:
                raise self.too_few()
            else:
                self.settle(WAIT_S)
        return collected

    def play(self, playing: list[ActorPost], collected: Collected) -> None:
        """A segment of each of these actors, as far as they live."""
        under_way: dict[Any, tuple[ActorPost, Any]] = {}
        for index, post in enumerate(playing):
            segment, told = self.collect(post, index, len(playing))
            under_way[told] = post, segment
        impatience = Impatience(self.tell)
        heard: list[tuple[ActorPost, Played]] = []
        while under_way:
            ready, _ = ray.wait(list(under_way), num_returns=len(under_way), timeout=WAIT_S)
            for reference in ready:
                post, segment = under_way.pop(reference)
                try:
                    played: Played = ray.get(reference)
                    heard.append((post, played))
                    collected[post.number] = segment, played.origin
                except RayError as error:
                    weights_lost(error)
                    self.replace(post, error)
            impatience.look(", ".join(str(post) for post, _ in under_way.values()))
        for post, played in sorted(heard, key=lambda pair: pair[0].number):
            self.note_played(post, played)

    def shared_out(self, collected: Collected) -> list[list[int]]:
        """Whose segments each learner gets: a replay needs the same actors every time, a rollout
        the same number of them."""
        numbers, count = sorted(collected), self.learners.count
        if self.room is None:
            return [numbers[rank::count] for rank in range(count)]
        return [[n for n in numbers if n % count == rank] for rank in range(count)]
