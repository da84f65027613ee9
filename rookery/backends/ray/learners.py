"""The learners of a run, as the driver sees them: lost and started anew together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
import torch
from ray.exceptions import ObjectLostError, RayError

from rookery.backends.base import LearnerLost, Tell
from rookery.backends.components import Parts, load_learned
from rookery.backends.ray.cluster import Needs
from rookery.backends.ray.failures import raise_told, reason_of
from rookery.backends.ray.messages import Began, Learned, LearnerTimes, from_arrays, to_arrays
from rookery.backends.ray.status import StatusRow
from rookery.backends.ray.waiting import Impatience, wait_for
from rookery.backends.ray.workers import Brief, LearnerRole, end, learned_state, sent_for
from rookery.errors import RookeryError

CPU = torch.device("cpu")
WAIT_S = 1.0


class Learners:
    """Ray actors that learn together.

    `parts.learner` is a mirror of the first: it counts as that one does, and has its weights after
    `catch_up`.
    """

    def __init__(self, parts: Parts, brief: Brief, needs: Needs, tell: Tell):
        self.parts, self.brief, self.needs, self.tell = parts, brief, needs, tell
        self.count = needs.learners
        self.handles: list[Any] = []
        self.began: list[Began] = []
        self.restarts = 0
        self.times_before = LearnerTimes()
        """Of the learners that were lost."""
        self.times_now = LearnerTimes()

    # ---------------------------------------------------------------- starting

    def send_for(self, writers: Sequence[int]) -> list[Any]:
        """Learners that go on from the mirror's state, each with a memory for so many actors;
        references to what they answer when they are ready."""
        options = self.needs.options("learner")
        self.handles = [sent_for(LearnerRole, options, self.brief) for _ in range(self.count)]
        meeting = ""
        if self.count > 1:
            first = self.handles[0].meeting_point.remote()
            (meeting,) = wait_for([first], "a learner", self.parts.config.ray.start_seconds)
        saved = ray.put(self.mirrored())
        return [
            learner.begin.remote(rank, self.count, meeting, writers[rank], saved)
            for rank, learner in enumerate(self.handles)
        ]

    def greet(self, references: Sequence[Any]) -> None:
        """Wait until all are ready."""
        self.began = wait_for(references, self.name(), self.parts.config.ray.start_seconds)

    def restart(self, writers: Sequence[int]) -> None:
        """New learners in place of lost ones, from the mirror's state."""
        most = self.parts.config.ray.learner_restarts
        if self.restarts >= most:
            raise RookeryError(
                f"the learners were lost {self.restarts + 1} times, more than"
                f" ray.learner_restarts={most} allows"
            )
        self.restarts += 1
        self.end()
        mirror = self.parts.learner
        mirror.sums.zero_()
        mirror.counted = 0
        self.times_before, self.times_now = self.times, LearnerTimes()
        self.greet(self.send_for(writers))
        self.tell(f"learners started anew, {self.restarts} of at most {most} times", "")

    def mirrored(self) -> dict[str, Any]:
        """The mirror's state."""
        return to_arrays(learned_state(self.parts.algorithm, self.parts.learner))

    # ---------------------------------------------------------------- hearing

    def answers(self, references: Sequence[Any], doing: str) -> list[Any]:
        """What they answer; LearnerLost if one is gone, ObjectLostError if the only one is there
        but what it was to learn from is gone."""
        waiting, impatience = list(references), Impatience(self.tell)
        try:
            while waiting:
                ready, waiting = ray.wait(waiting, num_returns=1, timeout=WAIT_S)
                for reference in ready:
                    ray.get(reference)
                impatience.look(f"{self.name()} to {doing}")
            return [ray.get(reference) for reference in references]
        except RayError as error:
            raise_told(error)
            if isinstance(error, ObjectLostError) and self.count == 1:
                raise
            raise LearnerLost(f"a learner was lost: {reason_of(error)}", str(error)) from None

    def note(self, learned: Learned) -> None:
        """Bring the mirror's counts up to date."""
        mirror = self.parts.learner
        mirror.updates = learned.updates
        mirror.samples.fill_(learned.samples)
        mirror.sums.add_(torch.tensor(learned.sums))
        mirror.counted += learned.counted
        mirror.metric_names = learned.names
        mirror.input_bytes = learned.input_bytes
        mirror.notices += learned.notices
        self.times_now = learned.times

    def catch_up(self) -> None:
        """Give the mirror the first learner's weights and optimizer."""
        references = [self.handles[0].state.remote()]
        references += [learner.digest.remote() for learner in self.handles]
        state, *digests = self.answers(references, "tell their weights")
        if len(set(digests)) > 1:
            raise RookeryError(f"the weights of the learners differ: {digests}")
        tensors = from_arrays(state, CPU)
        load_learned(self.parts, tensors, tensors["counts"])
        self.parts.progress.updates = self.parts.learner.updates

    # ---------------------------------------------------------------- telling

    @property
    def times(self) -> LearnerTimes:
        """Where the first learner's time went, that of lost ones included."""
        return self.times_before.plus(self.times_now)

    def name(self) -> str:
        """What they are called."""
        return "the learner" if self.count == 1 else f"{self.count} learners"

    def rows(self) -> list[StatusRow]:
        """The learners, for the status."""
        told = f"{self.parts.learner.updates:,} updates"
        return [
            StatusRow(f"learner {rank}", began.where, self.restarts, told)
            for rank, began in enumerate(self.began)
        ]

    def end(self) -> None:
        """End them."""
        for handle in self.handles:
            end(handle)
