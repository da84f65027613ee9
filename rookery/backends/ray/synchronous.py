"""Synchronous runs on Ray: actors and learners take turns."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayError

from rookery.backends.ray.driver import Driver
from rookery.backends.ray.failures import SlowWaitLog, raise_if_weights_lost
from rookery.backends.ray.learners import WAIT_S
from rookery.backends.ray.messages import Origin, SegmentInfo
from rookery.backends.ray.slots import ActorSlot
from rookery.runs.checkpoint import Checkpoint

Collected = dict[int, tuple[Any, Origin]]
"""References to segments, and their origins, by number of the actor."""


class SynchronousDriver(Driver):
    """Every round: a segment of every living actor, then every update that is due."""

    def advance(self, env_steps: int) -> None:
        self.env_steps = env_steps
        start = time.perf_counter()
        collected = self.gather()
        self.wait_s += time.perf_counter() - start
        # With a replay a learner always gets the same actors, with a rollout as many as the others.
        numbers, count = sorted(collected), self.learners.count
        shared = [
            numbers[rank::count] if self.room is None else [n for n in numbers if n % count == rank]
            for rank in range(count)
        ]
        references = [
            learner.learn.options(num_returns=2).remote(
                self.done,
                self.moments(),
                [(number // count, collected[number][1]) for number in own],
                *[collected[number][0] for number in own],
            )
            for learner, own in zip(self.learners.handles, shared, strict=True)
        ]
        try:
            reports = self.learners.answers([report for report, _ in references], "learn")
        except ObjectLostError as error:
            self.log("segments were lost with their node; playing them again", str(error))
            return
        for rank, report in enumerate(reports):
            if report.replay is not None:
                self.replay_statistics.statuses[self.memory_number(rank)] = report.replay
        self.take_reports(reports, references[0][1])

    def memory_number(self, rank: int) -> int:
        """Return a number that tells a learner's memory from those of earlier learners."""
        return rank + self.learners.restarts * self.learners.count

    def restore(self, saved: Checkpoint) -> None:
        self.replay_statistics.lost |= {
            self.memory_number(rank) for rank in range(self.learners.count)
        }
        super().restore(saved)

    def gather(self) -> Collected:
        """Return segments of all living actors; at least one for each learner."""
        collected: Collected = {}
        deadline = time.monotonic() + self.config.ray.start_seconds
        while len(collected) < self.learners.count:
            self.watch_cluster()
            playing = [slot for slot in self.ready() if slot.number not in collected]
            if playing:
                self.play(playing, collected)
            elif time.monotonic() > deadline:
                raise self.too_few_actors()
            else:
                self.check_starting(WAIT_S)
        return collected

    def play(self, playing: list[ActorSlot], collected: Collected) -> None:
        """Collect a segment of each of these actors, unless they die."""
        under_way: dict[Any, tuple[ActorSlot, Any]] = {}
        for index, slot in enumerate(playing):
            segment, info = self.collect(slot, index, len(playing))
            under_way[info] = slot, segment
        slow_wait = SlowWaitLog(self.log)
        infos: list[tuple[ActorSlot, SegmentInfo]] = []
        while under_way:
            ready, _ = ray.wait(list(under_way), num_returns=len(under_way), timeout=WAIT_S)
            for reference in ready:
                slot, segment = under_way.pop(reference)
                try:
                    answer: SegmentInfo = ray.get(reference)
                    infos.append((slot, answer))
                    collected[slot.number] = segment, answer.origin
                except RayError as error:
                    raise_if_weights_lost(error)
                    self.replace(slot, error)
            slow_wait.check(", ".join(str(slot) for slot, _ in under_way.values()))
        for slot, info in sorted(infos, key=lambda pair: pair[0].number):
            self.count_played(slot, info)
