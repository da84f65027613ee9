"""Asynchronous runs on Ray: actors play while learners learn, with replay shards between them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ray
from gymnasium.vector import VectorEnv
from ray.exceptions import ObjectLostError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rookery.algorithms.base import Algorithm
from rookery.backends.base import CheckpointState, Log
from rookery.backends.factory import seeds
from rookery.backends.ray.cluster import Needs, actors_for
from rookery.backends.ray.driver import Driver
from rookery.backends.ray.failures import raise_if_weights_lost, wait_for
from rookery.backends.ray.messages import ReplayStatus, SegmentInfo, WorkerReady
from rookery.backends.ray.slots import ActorSlot, ShardSlot, Slot, StatusRow, status_row
from rookery.backends.ray.workers import ShardWorker, WorkerSpec, kill_worker, start_worker
from rookery.config import RunConfig
from rookery.errors import require
from rookery.memory.budget import share_of_capacity
from rookery.runs.checkpoint import Checkpoint

ROUND_S = 0.1
"""Longest wait for an answer in a round."""
SEGMENTS_UNDER_WAY = 2
"""Segments requested of an actor at a time, so that it need not wait for the driver."""
LEARN_REQUESTS = 2
"""Requests to learn under way, for the same reason."""
GROW_AFTER_S = 5.0
"""Time that new nodes must have stayed before the replay is enlarged for them."""
SHARD_POLL_S = 0.01
"""Time between questions whether a shard accepts segments again."""

Handler = Callable[[Any], None]
"""Called with the answer to a request."""


class AsynchronousDriver(Driver):
    """Keeps segments, stored rows and updates flowing; no worker waits for the slowest."""

    room: int

    def __init__(
        self, spec: WorkerSpec, env: VectorEnv, algorithm: Algorithm, needs: Needs, log: Log
    ):
        super().__init__(spec, env, algorithm, needs, log)
        self.requests: dict[Any, tuple[Slot, Handler]] = {}
        """Requests under way, by the reference to their answer."""
        self.learning: list[list[tuple[Any, Any]]] = []
        """References to the learners' reports and weights, for each request to learn."""
        self.room = len(self.actors)
        self.shards: list[ShardSlot] = []
        self.shard_ids: dict[int, int] = {}
        """By slot number: an id that tells its shard from earlier and later ones."""
        self.fresh_ids = itertools.count()
        self.wanted = (self.room, 0.0)
        """Number of actors the cluster has room for, and since when."""

    def start_memory(self) -> Sequence[WorkerReady]:
        """Start the replay shards on the learners' nodes."""
        count = self.config.ray.replay_shards or self.learners.count
        require(
            count <= self.room,
            f"ray.replay_shards={count} is more than one for each of {self.room} actors",
        )
        self.shards = [
            ShardSlot(number, partial(self.start_shard, number, count)) for number in range(count)
        ]
        for slot in self.shards:
            slot.fill()
        starting = [slot.starting for slot in self.shards]
        ready = wait_for(starting, f"{count} replay shards", self.config.ray.start_seconds)
        for slot, answer in zip(self.shards, ready, strict=True):
            slot.starting = None
            self.slot_ready(slot, answer)
        return ready

    def start_shard(self, number: int, count: int, restart: int) -> tuple[Any, Any]:
        """Start one of `count` shards, on the node of the learner that draws from it if it lives;
        return its handle and a reference to its answer."""
        spec = self.spec._replace(config=shard_config(self.config, count))
        writers = len(range(number, self.room, count))
        options: dict[str, Any] = {"num_cpus": 0}
        node = self.learners.ready[number % self.learners.count].place.node
        if any(each["NodeID"] == node and each["Alive"] for each in ray.nodes()):
            # Not soft: Ray then ignores the node for actors that need no CPU.
            on_node = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
            options["scheduling_strategy"] = on_node
        handle = start_worker(ShardWorker, options, spec)
        seed = seeds(self.config.seed, number, spec.step, 10_000 + restart)[1]
        return handle, handle.begin.remote(writers, seed)

    def slots(self) -> list[Slot]:
        return [*super().slots(), *self.shards]

    def slot_ready(self, slot: Slot, answer: WorkerReady) -> None:
        super().slot_ready(slot, answer)
        if isinstance(slot, ShardSlot):
            slot.status, slot.polled = None, False
            self.shard_ids[slot.number] = next(self.fresh_ids)
            self.assign_shards()

    def assign_shards(self) -> None:
        """Send every learner the shards to draw from."""
        for rank, learner in enumerate(self.learners.handles):
            own = {
                self.shard_ids[slot.number]: slot.handle
                for slot in self.shards[rank :: self.learners.count]
                if slot.ready
            }
            learner.set_shards.remote(own)

    def shard_of(self, slot: Slot) -> tuple[ShardSlot, int]:
        """Return the shard that stores an actor's segments, and the actor's writer number there."""
        count = len(self.shards)
        return self.shards[slot.number % count], slot.number // count

    def replace(self, slot: Slot, error: RayError) -> None:
        self.forget_requests(slot)
        super().replace(slot, error)
        self.forget_segments(slot)

    def forget_requests(self, slot: Slot) -> None:
        """Expect no answers of a lost worker."""
        if isinstance(slot, ShardSlot) and slot.number in self.shard_ids:
            self.replay_statistics.lost.add(self.shard_ids[slot.number])
        for reference in [r for r, (whose, _) in self.requests.items() if whose is slot]:
            del self.requests[reference]

    def forget_segments(self, slot: Slot) -> None:
        """Expect no segments that were on their way to a lost shard, or lost with their node."""
        for actor in self.actors:
            if self.shard_of(actor)[0] is slot:
                actor.under_way &= self.requests.keys()

    def follow_cluster(self) -> None:
        """Have as many actors as there is room for; enlarge the replay if the cluster has grown."""
        target, now = actors_for(self.config, self.needs, self.cluster.total), time.monotonic()
        if target != self.wanted[0]:
            self.wanted = target, now
        if target > self.room and now > self.wanted[1] + GROW_AFTER_S:
            self.enlarge_replay(target)
        super().follow_cluster()

    def enlarge_replay(self, actors: int) -> None:
        """Restart the replay shards with room for more actors."""
        self.log(f"restarting the replay shards with room for {actors} actors", "")
        self.room = actors
        for slot in self.shards:
            self.forget_requests(slot)
            kill_worker(slot.handle)
            slot.fill()
            self.forget_segments(slot)

    def advance(self, env_steps: int) -> None:
        """Handle the answers that have come, and keep requests under way."""
        self.env_steps = env_steps
        self.watch_cluster()
        self.request_segments()
        while len(self.learning) < LEARN_REQUESTS:
            calls = [
                each.learn_from_shards.options(num_returns=2) for each in self.learners.handles
            ]
            self.learning.append([call.remote(self.done) for call in calls])
        reports = [report for request in self.learning for report, _ in request]
        references = [*self.requests, *reports]
        blocked = any(shard.ready and not shard.may_insert for shard in self.shards)
        timeout = SHARD_POLL_S if blocked else ROUND_S
        ready, _ = ray.wait(references, num_returns=1, timeout=timeout)
        if ready:
            ready, _ = ray.wait(references, num_returns=len(references), timeout=0)
        for reference in ready:
            # A worker that was lost meanwhile took its requests with it.
            if reference in self.requests:
                self.handle_answer(reference)
        self.take_learned(set(ready))

    def handle_answer(self, reference: Any) -> None:
        """Call the handler of a request with its answer, or replace the worker that failed."""
        slot, handler = self.requests.pop(reference)
        try:
            answer = ray.get(reference)
        except RayError as error:
            if isinstance(slot, ActorSlot):
                slot.under_way.discard(reference)
                raise_if_weights_lost(error)
            if isinstance(error, ObjectLostError):
                self.forget_segments(slot)
            else:
                self.replace(slot, error)
            return
        handler(answer)

    def request_segments(self) -> None:
        """Ask actors for segments, as far as the replay accepts them."""
        playing = self.ready()
        for index, slot in enumerate(playing):
            shard, _ = self.shard_of(slot)
            while shard.may_insert and len(slot.under_way) < SEGMENTS_UNDER_WAY:
                segment, info = self.collect(slot, index, len(playing))
                slot.under_way.add(info)
                self.requests[info] = slot, partial(self.store_segment, slot, segment, info)
        now = time.monotonic()
        for shard in self.shards:
            if shard.ready and not shard.may_insert and not shard.polled and now >= shard.poll_at:
                shard.polled, shard.poll_at = True, now + SHARD_POLL_S
                asked = shard.handle.status.remote()
                self.requests[asked] = shard, partial(self.take_status, shard)

    def store_segment(self, slot: ActorSlot, segment: Any, token: Any, info: SegmentInfo) -> None:
        """Send a segment that was played to its shard."""
        self.count_played(slot, info)
        shard, writer = self.shard_of(slot)
        if not shard.ready:
            slot.under_way.discard(token)
            return
        reference = shard.handle.add.remote(segment, writer, info.origin, self.moments())
        self.requests[reference] = shard, partial(self.note_stored, slot, token, shard)

    def note_stored(
        self, slot: ActorSlot, token: Any, shard: ShardSlot, status: ReplayStatus
    ) -> None:
        """Note that a shard has stored an actor's segment."""
        slot.under_way.discard(token)
        self.take_status(shard, status)

    def take_status(self, shard: ShardSlot, status: ReplayStatus) -> None:
        """Take the counters of a shard."""
        shard.status, shard.polled = status, False
        self.replay_statistics.statuses[self.shard_ids[shard.number]] = status

    def take_learned(self, ready: set[Any]) -> None:
        """Take the reports of learners that are ready, in order."""
        while self.learning and any(report in ready for report, _ in self.learning[0]):
            request = self.learning.pop(0)
            reports = self.learners.answers([report for report, _ in request], "learn")
            self.take_reports(reports, request[0][1])

    def state(self) -> CheckpointState:
        """Return the state once everything that was asked of the learners is done."""
        self.take_learned({report for request in self.learning for report, _ in request})
        return super().state()

    def restore(self, saved: Checkpoint) -> None:
        self.learning = []
        super().restore(saved)
        self.assign_shards()

    def metrics(self, seconds: float) -> dict[str, float]:
        healthy = sum(slot.ready for slot in self.shards)
        return super().metrics(seconds) | {"shards_healthy": healthy}

    def memory_rows(self) -> list[StatusRow]:
        rows = []
        for slot in self.shards:
            text = "" if slot.status is None else f"{100 * slot.status.fill:.0f} % full"
            rows.append(status_row(str(slot), slot.place, slot.restarts, text))
        return rows


def shard_config(config: RunConfig, count: int) -> RunConfig:
    """Return the run's settings with the part of the replay that one of `count` shards holds."""
    algo: Any = config.algo
    part = dataclasses.replace(
        algo,
        # Shards send plain probabilities: the learner weights windows of all shards together.
        beta=1.0,
        beta_end=None,
        capacity=share_of_capacity(algo.capacity, count),
        warm_up=math.ceil(algo.warm_up / count),
    )
    return dataclasses.replace(config, algo=part)
