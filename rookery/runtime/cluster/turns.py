"""Actors and learners in turn: every synchronous algorithm on a cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayError

from rookery.runs.checkpoint import Checkpoint
from rookery.runtime.cluster.driver import WAIT_S, WARN_S, Driver, weights_lost
from rookery.runtime.cluster.posts import ActorPost, Post
from rookery.runtime.cluster.wire import Began

Collected = dict[int, Any]
"""References to segments, by the number of the actor."""


class Turns(Driver):
    """A segment of every actor that is alive, then every update that is due."""

    room: int | None = None
    """How many actors the learners' replay memories were made for; None: they have none."""

    def note_memory(self, began: Sequence[Began]) -> None:
        super().note_memory(began)
        if self.ledger.line is not None:
            self.room = len(self.actors)

    def most_actors(self) -> int | None:
        return self.room

    def welcome(self, post: Post, answer: Any) -> None:
        super().welcome(post, answer)
        if post.restarts:
            learner = self.learners[post.number % len(self.learners)]
            learner.cut.remote(post.number // len(self.learners))

    def advance(self) -> None:
        """One round."""
        start = time.perf_counter()
        collected = self.gather()
        self.wait_s += time.perf_counter() - start
        shared = self.shared_out(collected)
        references = [
            learner.learn.options(num_returns=2).remote(
                self.done(),
                [number // len(self.learners) for number in numbers],
                *[collected[number] for number in numbers],
            )
            for learner, numbers in zip(self.learners, shared, strict=True)
        ]
        try:
            learned = self.answers([told for told, _ in references], "learn")
        except ObjectLostError as error:
            self.tell("segments were lost with their node, and are played again", str(error))
            return
        for rank, each in enumerate(learned):
            if each.kept is not None:
                self.ledger.kept[self.memory_number(rank)] = each.kept
        self.note_learned(learned[0], references[0][1])

    def memory_number(self, rank: int) -> int:
        """What tells a learner's memory from those of the learners before it."""
        return rank + self.restarts * len(self.learners)

    def recover(self, saved: Checkpoint) -> None:
        self.ledger.lost |= {self.memory_number(rank) for rank in range(len(self.learners))}
        super().recover(saved)

    def gather(self) -> Collected:
        """Segments of all actors that are alive; at least one for each learner."""
        collected: Collected = {}
        deadline = time.monotonic() + self.config.ray.start_seconds
        while len(collected) < len(self.learners):
            self.look_after()
            playing = [post for post in self.ready() if post.number not in collected]
            if playing:
                self.play(playing, collected)
            elif time.monotonic() > deadline:
                raise self.too_long(f"{len(self.learners)} of {len(self.actors)} actors")
            else:
                self.settle(WAIT_S)
        return collected

    def play(self, playing: list[ActorPost], collected: Collected) -> None:
        """A segment of each of these actors, as far as they live."""
        under_way: dict[Any, tuple[ActorPost, Any]] = {}
        for index, post in enumerate(playing):
            segment, played = self.collect(post, index, len(playing))
            under_way[played] = post, segment
        began, warned = time.monotonic(), False
        heard: list[tuple[ActorPost, Any]] = []
        while under_way:
            ready, _ = ray.wait(list(under_way), num_returns=len(under_way), timeout=WAIT_S)
            for reference in ready:
                post, segment = under_way.pop(reference)
                post.under_way.discard(reference)
                try:
                    heard.append((post, ray.get(reference)))
                    collected[post.number] = segment
                except RayError as error:
                    weights_lost(error)
                    self.replace(post, error)
            if not warned and time.monotonic() > began + WARN_S:
                warned = True
                names = ", ".join(str(post) for post, _ in under_way.values())
                self.tell(f"waiting for {names}", "")
        for post, played in sorted(heard, key=lambda pair: pair[0].number):
            self.note_played(post, played)

    def shared_out(self, collected: Collected) -> list[list[int]]:
        """Whose segments each learner gets: a replay needs the same actors every time, a rollout
        the same number of them."""
        numbers, count = sorted(collected), len(self.learners)
        if self.room is None:
            return [numbers[rank::count] for rank in range(count)]
        return [[n for n in numbers if n % count == rank] for rank in range(count)]
