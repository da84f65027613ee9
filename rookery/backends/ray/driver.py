"""The driver of a Ray run: starts the workers, restarts those that are lost, reports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import ray
from gymnasium.vector import VectorEnv
from ray.exceptions import RayError

from rookery.algorithms.base import Algorithm
from rookery.backends.base import Backend, CheckpointState, Log, ProcessUsage, Report, Setup
from rookery.backends.common import actor_metrics, load_normalizer, normalizer_tensors
from rookery.backends.factory import share_of
from rookery.backends.ray.cluster import Needs, actors_for, check_resources, cluster_now
from rookery.backends.ray.failures import raise_cause, reason_of, start_failure, timed_out
from rookery.backends.ray.learners import WAIT_S, LearnerGroup
from rookery.backends.ray.messages import LearnerReport, SegmentInfo, WorkerReady
from rookery.backends.ray.slots import ActorSlot, ReplayStatistics, Slot, StatusRow, status_table
from rookery.backends.ray.workers import ActorWorker, WorkerSpec, kill_worker, start_worker
from rookery.data.layer_records import LayerRecords
from rookery.data.steps import Lanes
from rookery.envs import statistics
from rookery.envs.wrappers.observation_record import ObservationRecord
from rookery.errors import BadInput, RunFailed
from rookery.learning.actor import Times
from rookery.learning.optimizers import learning_rate_at
from rookery.memory.budget import gigabytes
from rookery.runs.checkpoint import Checkpoint

CLUSTER_LOOK_S = 2.0
"""Time between looks at the cluster."""
OBSERVED_S = 20.0
"""Longest wait for what an actor has recorded: it answers after the segments it was asked for."""
CLOSE_S = 2.0
"""Time that actors get to close their environments."""


class Driver(Backend):
    """Base class of synchronous and asynchronous runs on Ray."""

    recovers = True

    closing: ExitStack
    """Closes the environment and the connection to Ray at the end of the run."""
    memory: str | None = None
    """A line about the replay memories; None without a replay."""
    room: int | None = None
    """Number of actors the replay memories have room for; None without a replay."""

    def __init__(
        self, spec: WorkerSpec, env: VectorEnv, algorithm: Algorithm, needs: Needs, log: Log
    ):
        self.spec, self.config, self.needs, self.log = spec, spec.config, needs, log
        self.env = env
        """Holds the statistics of normalisation over all actors."""
        self.algorithm = algorithm
        """Never learns: the driver reads its properties."""
        self.cluster = cluster_now()
        self.looked = time.monotonic()
        count = actors_for(self.config, needs, self.cluster.total)
        check_resources(self.config, needs, count, self.cluster)
        share_of(algorithm.collection, 0, count)
        self.started = False
        self.env_steps = 0
        self.version = 0
        """Version of `weights`."""
        self.weights: Any = None
        """Reference to the newest weights."""
        self.learners = LearnerGroup(spec, needs, log)
        self.replay_statistics = ReplayStatistics()
        self.ended_cpu_s = 0.0
        """CPU time of actors that left."""
        self.wait_s = 0.0
        """Time the learners waited for segments."""
        self.actors = [self.actor_slot(number) for number in range(count)]

    def start_workers(self, saved: Checkpoint | None) -> None:
        """Start all workers, and wait until they are ready."""
        if saved is not None:
            load_normalizer(self.env, saved.tensors)
        starting = self.learners.start(self.writers(), saved)
        for slot in self.actors:
            slot.fill()
        self.learners.wait_until_ready(starting)
        self.publish(self.learners.handles[0].weights.remote())
        ready = self.start_memory()
        lines = [each.memory for each in ready if each.memory is not None]
        if lines:
            size = gigabytes(sum(each.memory_bytes for each in ready))
            self.memory = lines[0] if len(lines) == 1 else f"replay: {len(lines)} x, {size}"
            self.room = len(self.actors)
        self.wait_for_actors()
        self.started = True

    def start_memory(self) -> Sequence[WorkerReady]:
        """Start the replay shards, if the learners have no memory of their own; return the answers
        of the workers that have one."""
        return self.learners.ready

    def start_actor(self, number: int, restart: int) -> tuple[Any, Any]:
        """Start the process of an actor; return its handle and a reference to its answer."""
        options = self.needs.options("actor") | {"scheduling_strategy": "SPREAD"}
        handle = start_worker(ActorWorker, options, self.spec)
        return handle, handle.begin.remote(number, restart)

    def actor_slot(self, number: int) -> ActorSlot:
        """Return a new slot of an actor."""
        return ActorSlot(number, partial(self.start_actor, number))

    def writers(self) -> list[int]:
        """Return how many actors write to the memory of each learner."""
        count = self.learners.count
        return [len(range(rank, len(self.actors), count)) for rank in range(count)]

    def wait_for_actors(self) -> None:
        """Wait until all actors are ready, or after ray.start_seconds go on with those that are."""
        deadline = time.monotonic() + self.config.ray.start_seconds
        while time.monotonic() < deadline and not all(slot.ready for slot in self.actors):
            self.check_starting(WAIT_S)
        if len(self.ready()) < self.learners.count:
            raise self.too_few_actors()
        if missing := [str(slot) for slot in self.actors if not slot.ready]:
            self.log(f"going on without {', '.join(missing)}: no room on the cluster yet", "")

    def too_few_actors(self) -> BadInput:
        """Return the error for actors that do not start."""
        what = f"{self.learners.count} of {len(self.actors)} actors"
        return timed_out(what, self.config.ray.start_seconds)

    def setup(self) -> Setup:
        first, count = self.learners.ready[0], self.learners.count
        learners = "" if count == 1 else f" and {count} learners"
        return Setup(
            backend="ray",
            description=f"ray on {self.cluster.nodes_text}, {len(self.actors)} actors{learners}",
            transport=first.transport,
            ranks=count,
            device=first.place.device,
            threads=first.place.threads,
            engine=self.env.engine,  # type: ignore[attr-defined]
            weights=sum(p.numel() for p in self.algorithm.network.parameters()),
            memory=self.memory,
        )

    def slots(self) -> list[Slot]:
        """Return the slots of all workers that are restarted one by one."""
        return list(self.actors)

    def ready(self) -> list[ActorSlot]:
        """Return the actors that can play."""
        return [slot for slot in self.actors if slot.ready]

    def watch_cluster(self) -> None:
        """See which workers have started, and now and then what the cluster has."""
        self.check_starting(0)
        if time.monotonic() < self.looked + CLUSTER_LOOK_S:
            return
        self.cluster = cluster_now()
        self.looked = time.monotonic()
        if self.config.actors == "auto":
            self.follow_cluster()

    def check_starting(self, timeout: float) -> None:
        """Note workers that have become ready, and replace those that failed to start."""
        starting = {slot.starting: slot for slot in self.slots() if slot.starting is not None}
        if not starting:
            return
        ready, _ = ray.wait(list(starting), num_returns=1, timeout=timeout)
        if ready:
            ready, _ = ray.wait(list(starting), num_returns=len(starting), timeout=0)
        for reference in ready:
            slot = starting[reference]
            try:
                answer = ray.get(reference)
            except RayError as error:
                if not self.started:
                    raise start_failure(error, str(slot)) from None
                self.replace(slot, error)
                continue
            slot.starting = None
            self.slot_ready(slot, answer)
            if slot.restarts:
                self.log(
                    f"{slot} restarted on {self.node_name(slot)}, restart {slot.restarts} of at"
                    f" most {self.restart_limit(slot)[1]}",
                    "",
                )

    def slot_ready(self, slot: Slot, answer: WorkerReady) -> None:
        """Note that a worker is ready."""
        slot.place = answer.place

    def restart_limit(self, slot: Slot) -> tuple[str, int]:
        """Return name and value of the setting that limits restarts of a slot."""
        if isinstance(slot, ActorSlot):
            return "actor_restarts", self.config.actor_restarts
        return "ray.learner_restarts", self.config.ray.learner_restarts

    def replace(self, slot: Slot, error: RayError) -> None:
        """Start another process in place of a lost one; RunFailed after too many."""
        raise_cause(error)
        reason = reason_of(error)
        where = f" on {self.node_name(slot)}" if slot.place else ""
        self.log(f"{slot}{where} was lost: {reason}", str(error))
        kill_worker(slot.handle)
        setting, limit = self.restart_limit(slot)
        if slot.restarts >= limit:
            raise RunFailed(
                f"{slot} was lost {slot.restarts + 1} times, more than {setting}={limit} allows;"
                f" at last: {reason}"
            )
        slot.restarts += 1
        slot.fill()

    def follow_cluster(self) -> None:
        """Have as many actors as the cluster has room for."""
        target = actors_for(self.config, self.needs, self.cluster.total)
        if self.room is not None:
            target = min(target, self.room)
        while len(self.actors) < target:
            slot = self.actor_slot(len(self.actors))
            # As if it had played as long as the others: means over actors then stay smooth.
            slot.tally.earlier_times = self.actors[0].tally.all_times
            slot.fill()
            self.actors.append(slot)
            self.log(f"{slot} joins: the cluster has {self.cluster.describe()}", "")
        while len(self.actors) > target and not self.actors[-1].ready:
            slot = self.actors.pop()
            kill_worker(slot.handle)
            self.ended_cpu_s += slot.tally.all_times.cpu_s
            self.log(f"{slot} leaves: the cluster has {self.cluster.describe()}", "")

    def node_name(self, slot: Slot) -> str:
        """Return host and node of a slot's process."""
        return f"{slot.place.host} ({slot.place.node[:6]})" if slot.place else "no node"

    def collect(self, slot: ActorSlot, index: int, playing: int) -> tuple[Any, Any]:
        """Ask an actor, `index` of `playing`, for a segment; return references to it and to its
        SegmentInfo."""
        envs = self.config.envs
        return slot.handle.collect.options(num_returns=2).remote(
            self.weights,
            self.version,
            self.env_steps,
            Lanes(slot.number * envs, envs, len(self.actors) * envs),
            (index, playing),
            self.moments(),
        )

    def moments(self) -> dict[str, Any]:
        """Return the statistics of normalisation that all processes share, by name."""
        return {name: moments.shared() for name, moments in statistics(self.env).items()}

    def count_played(self, slot: ActorSlot, info: SegmentInfo) -> None:
        """Count a segment, and merge its statistics of normalisation."""
        slot.add(info, self.version - info.version)
        for name, moments in statistics(self.env).items():
            moments.merge([info.moments[name]])

    @property
    def done(self) -> float:
        """Share of the run that is done."""
        return self.env_steps / self.config.env_steps

    def take_reports(self, reports: Sequence[LearnerReport], weights: Any) -> None:
        """Take the learners' reports, and publish the first one's weights if they are new."""
        if reports[0].updates != self.learners.updates:
            self.publish(weights)
        self.learners.add(reports)

    def publish(self, weights: Any) -> None:
        """Let actors play with these weights from now on."""
        self.version += 1
        self.weights = weights

    def report(self, interrupted: bool, usage: ProcessUsage) -> Report:
        learners = self.learners
        times = learners.times.plus(Times(wait_s=self.wait_s, cpu_s=self.ended_cpu_s))
        others_mb = learners.memory_mb + self.replay_statistics.memory_mb
        usage = usage._replace(memory_mb=usage.memory_mb + others_mb)
        workers = []
        for slot in self.actors:
            workers.append(slot.tally.take(times, interrupted, usage))
            times, usage = times._replace(cpu_s=0.0), ProcessUsage(usage.seconds)
        workers[0].notices.extend(learners.notices)
        learners.notices = []
        return Report(workers, learners.updates, learners.samples, learners.input_bytes)

    def metrics(self, seconds: float) -> dict[str, float]:
        return (
            self.learners.take_metrics()
            | {"learning_rate": learning_rate_at(self.algorithm.config, self.done)}
            | self.replay_statistics.take_report(seconds)
            | actor_metrics([slot.tally for slot in self.actors], self.algorithm.explores_by)
            | {"actors_healthy": len(self.ready()), "nodes_alive": self.cluster.nodes}
        )

    def layer_records(self) -> LayerRecords | None:
        return self.learners.take_records()

    def observations(self) -> ObservationRecord | None:
        """Ask actor 0; one that was lost is replaced when its next segment does not come."""
        slot = self.actors[0]
        if not slot.ready:
            return None
        asked = slot.handle.observations.remote()
        ready, _ = ray.wait([asked], num_returns=1, timeout=OBSERVED_S)
        try:
            return ray.get(asked) if ready else None
        except RayError:
            return None

    def status(self) -> str:
        others = [*self.learners.rows(), *self.memory_rows()]
        return status_table(self.actors, others, cluster_now())

    def memory_rows(self) -> list[StatusRow]:
        """Return the replay memory's rows of the status table."""
        return []

    def state(self) -> CheckpointState:
        learned = self.learners.state()
        tensors = learned.tensors | {"random": {}} | normalizer_tensors(self.env)
        return learned._replace(tensors=tensors)

    def restore(self, saved: Checkpoint) -> None:
        """Replace the learners with new ones that continue from a checkpoint."""
        load_normalizer(self.env, saved.tensors)
        self.learners.restart(self.writers(), saved)
        self.publish(self.learners.handles[0].weights.remote())

    def close(self) -> None:
        """Let actors close their environments, end all workers, and disconnect from Ray."""
        closing = [slot.handle.close.remote() for slot in self.ready()]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        self.closing.close()

    def end(self) -> None:
        for slot in self.slots():
            kill_worker(slot.handle)
        self.learners.end()
