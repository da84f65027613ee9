"""Actors that play while learners learn, with replay shards between them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rookery.backends.base import Tell
from rookery.backends.components import Parts
from rookery.backends.factory import seeds
from rookery.backends.ray.cluster import Needs, actors_for
from rookery.backends.ray.driver import Driver
from rookery.backends.ray.failures import weights_lost
from rookery.backends.ray.messages import Kept, Played
from rookery.backends.ray.slots import ActorPost, Post, ShardPost
from rookery.backends.ray.status import StatusRow
from rookery.backends.ray.waiting import wait_for
from rookery.backends.ray.workers import Brief, ShardRole, end, sent_for
from rookery.config import RunConfig
from rookery.errors import require
from rookery.memory.budget import share_of_capacity
from rookery.runs.checkpoint import Checkpoint

MOMENT_S = 0.1
UNDER_WAY = 2
"""Segments an actor may have under way, so that it need not wait for the driver."""
STUDIES = 2
"""Requests to learn under way, for the same reason."""
SETTLE_S = 5.0
"""How long nodes must have stayed before the replay is made anew for them."""
POLL_S = 0.01
"""Time between questions whether a shard takes segments again."""


class Streams(Driver):
    """Keeps segments, stored rows and updates flowing; nobody waits for the slowest."""

    def __init__(self, parts: Parts, brief: Brief, needs: Needs, tell: Tell):
        super().__init__(parts, brief, needs, tell)
        self.under_way: dict[Any, Callable[[Any], None]] = {}
        """What to do with an answer, by the reference to it."""
        self.of: dict[Any, Post] = {}
        """Whose answer it is."""
        self.studies: list[list[tuple[Any, Any]]] = []
        self.room = len(self.actors)
        """How many actors the shards have room for."""
        self.shards: list[ShardPost] = []
        self.numbers: dict[int, int] = {}
        """By post: what tells its shard from those before and after it."""
        self.fresh = itertools.count()
        self.wanted = (self.room, 0.0)
        """How many actors there could be, and since when."""

    # ---------------------------------------------------------------- shards

    def start_memory(self) -> None:
        """Send for the replay shards, beside the learners."""
        count = self.config.ray.replay_shards or self.learners.count
        require(
            count <= self.room,
            f"ray.replay_shards={count} is more than one for each of {self.room} actors",
        )
        self.shards = [
            ShardPost(number, self.start_shard(number, count)) for number in range(count)
        ]
        for post in self.shards:
            post.fill()
        starting = [post.starting for post in self.shards]
        made = wait_for(starting, f"{count} replay shards", self.config.ray.start_seconds)
        for post, answer in zip(self.shards, made, strict=True):
            post.starting = None
            self.welcome(post, answer)
        self.note_memory(made)

    def start_shard(self, number: int, count: int) -> Callable[[int], tuple[Any, Any]]:
        """What fills a shard's post: on the node of the learner that draws from it, if it lives."""
        brief = self.brief._replace(config=config_of_shard(self.config, count))

        def start(restart: int) -> tuple[Any, Any]:
            writers = len(range(number, self.room, count))
            options: dict[str, Any] = {"num_cpus": 0}
            node = self.learners.began[number % self.learners.count].where.node
            if any(each["NodeID"] == node and each["Alive"] for each in ray.nodes()):
                # Not soft: Ray then ignores the node for actors that ask for no CPU.
                beside = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
                options["scheduling_strategy"] = beside
            handle = sent_for(ShardRole, options, brief)
            seed = seeds(self.config.seed, number, brief.step, 10_000 + restart)[1]
            return handle, handle.begin.remote(writers, seed)

        return start

    def most_actors(self) -> int:
        return self.room

    def posts(self) -> list[Post]:
        return [*super().posts(), *self.shards]

    def welcome(self, post: Post, answer: Any) -> None:
        if isinstance(post, ShardPost):
            answer = answer.where
        super().welcome(post, answer)
        if isinstance(post, ShardPost):
            post.kept, post.asked = None, False
            self.numbers[post.number] = next(self.fresh)
            self.deal_shards()

    def deal_shards(self) -> None:
        """Tell every learner which shards to draw from."""
        for rank, learner in enumerate(self.learners.handles):
            own = {
                self.numbers[post.number]: post.handle
                for post in self.shards[rank :: self.learners.count]
                if post.ready
            }
            learner.draw_from.remote(own)

    def shard_of(self, post: Post) -> tuple[ShardPost, int]:
        """Where an actor's segments go, and as which writer."""
        count = len(self.shards)
        return self.shards[post.number % count], post.number // count

    def replace(self, post: Post, error: RayError) -> None:
        self.give_up(post)
        super().replace(post, error)
        self.forget_segments(post)

    def give_up(self, post: Post) -> None:
        """Expect nothing more of one that was lost."""
        if isinstance(post, ShardPost) and post.number in self.numbers:
            self.ledger.lost.add(self.numbers[post.number])
        lost = [reference for reference, whose in self.of.items() if whose is post]
        for reference in lost:
            del self.under_way[reference], self.of[reference]

    def follow_cluster(self) -> None:
        """Have as many actors as there is room for, and make room if that has grown for good."""
        target, now = actors_for(self.config, self.needs, self.cluster.total), time.monotonic()
        if target != self.wanted[0]:
            self.wanted = target, now
        if target > self.room and now > self.wanted[1] + SETTLE_S:
            self.make_room(target)
        super().follow_cluster()

    def make_room(self, actors: int) -> None:
        """Start the replay shards anew, with room for more actors."""
        self.tell(f"replay shards start anew, with room for {actors} actors", "")
        self.room = actors
        for post in self.shards:
            self.give_up(post)
            end(post.handle)
            post.fill()
            self.forget_segments(post)

    def forget_segments(self, post: Post) -> None:
        """Segments on their way to a shard are lost, with it or with the node they came from."""
        for actor in self.actors:
            if self.shard_of(actor)[0] is post:
                actor.under_way &= self.under_way.keys()

    # ---------------------------------------------------------------- the flow

    def advance(self) -> None:
        """See to what has come, for a moment."""
        self.look_after()
        self.feed()
        self.keep_learning()
        references = [*self.under_way, *(told for study in self.studies for told, _ in study)]
        blocked = any(shard.ready and not shard.may_insert for shard in self.shards)
        moment = POLL_S if blocked else MOMENT_S
        ready, _ = ray.wait(references, num_returns=1, timeout=moment)
        if ready:
            ready, _ = ray.wait(references, num_returns=len(references), timeout=0)
        for reference in ready:
            # One that was lost took those with it that were on their way to it or from it.
            if reference in self.under_way:
                self.hear(reference)
        self.take_studies(set(ready))

    def hear(self, reference: Any) -> None:
        """Go on with an answer."""
        go_on, post = self.under_way.pop(reference), self.of.pop(reference)
        try:
            answer = ray.get(reference)
        except RayError as error:
            if isinstance(post, ActorPost):
                post.under_way.discard(reference)
                weights_lost(error)
            if isinstance(error, ObjectLostError):
                self.forget_segments(post)
            else:
                self.replace(post, error)
            return
        go_on(answer)

    def expect(self, reference: Any, post: Post, go_on: Callable[[Any], None]) -> None:
        """Go on when an answer has come."""
        self.under_way[reference], self.of[reference] = go_on, post

    def feed(self) -> None:
        """Ask actors to play, as far as the replay takes what they bring."""
        playing = self.ready()
        for index, post in enumerate(playing):
            shard, _ = self.shard_of(post)
            while shard.may_insert and len(post.under_way) < UNDER_WAY:
                segment, played = self.collect(post, index, len(playing))
                post.under_way.add(played)
                self.expect(played, post, self.stores(post, segment, played))
        now = time.monotonic()
        for shard in self.shards:
            if shard.ready and not shard.may_insert and not shard.asked and now >= shard.ask_at:
                shard.asked, shard.ask_at = True, now + POLL_S
                self.expect(shard.handle.kept.remote(), shard, self.notes(shard))

    def stores(self, post: ActorPost, segment: Any, token: Any) -> Callable[[Any], None]:
        """What to do once an actor has played a segment."""

        def go_on(played: Played) -> None:
            self.note_played(post, played)
            shard, writer = self.shard_of(post)
            if not shard.ready:
                post.under_way.discard(token)
                return
            reference = shard.handle.add.remote(segment, writer, played.origin, self.moments())

            def stored(kept: Kept) -> None:
                post.under_way.discard(token)
                self.notes(shard)(kept)

            self.expect(reference, shard, stored)

        return go_on

    def notes(self, shard: ShardPost) -> Callable[[Any], None]:
        """What to do once a shard has told how it is."""

        def go_on(kept: Kept) -> None:
            shard.kept, shard.asked = kept, False
            self.ledger.kept[self.numbers[shard.number]] = kept

        return go_on

    def keep_learning(self) -> None:
        """Keep requests to learn under way."""
        while len(self.studies) < STUDIES:
            done = self.done()
            self.studies.append(
                [
                    learner.study.options(num_returns=2).remote(done)
                    for learner in self.learners.handles
                ]
            )

    def take_studies(self, ready: set[Any]) -> None:
        """Take down what was learned, in order."""
        while self.studies and any(told in ready for told, _ in self.studies[0]):
            study = self.studies.pop(0)
            learned, *_ = self.learners.answers([told for told, _ in study], "learn")
            self.note_learned(learned, study[0][1])

    def catch_up(self) -> None:
        """Once everything that was asked of the learners is done."""
        self.take_studies({told for study in self.studies for told, _ in study})
        super().catch_up()

    def recover(self, saved: Checkpoint) -> None:
        self.studies = []
        super().recover(saved)
        self.deal_shards()

    def gauges(self) -> dict[str, float]:
        return super().gauges() | {"shards_healthy": sum(post.ready for post in self.shards)}

    def memory_rows(self) -> list[StatusRow]:
        rows = []
        for post in self.shards:
            told = "" if post.kept is None else f"{100 * post.kept.fill:.0f} % full"
            rows.append(StatusRow(str(post), post.where, post.restarts, told))
        return rows


def config_of_shard(config: RunConfig, count: int) -> RunConfig:
    """The run's settings with a shard's part of the replay."""
    algo: Any = config.algo
    part = dataclasses.replace(
        algo,
        # Shards tell plain probabilities: weights are made where windows of all shards meet.
        beta=1.0,
        beta_end=None,
        capacity=share_of_capacity(algo.capacity, count),
        warm_up=math.ceil(algo.warm_up / count),
    )
    return dataclasses.replace(config, algo=part)
