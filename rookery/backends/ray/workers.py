"""The workers of a Ray run, each in its own process: actors, replay shards and learners."""

from __future__ import annotations

import math
import os
import sys
import time
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

import ray
import torch

from rookery.algorithms.base import Spaces
from rookery.backends import factory
from rookery.backends.common import ActorWithWeights, Prefetch, learn_from
from rookery.backends.ranks.join import transport_for
from rookery.backends.ranks.launch import free_port
from rookery.backends.ray.messages import (
    LearnerReport,
    Origin,
    ReplayStatus,
    SegmentInfo,
    ShardStock,
    WorkerPlace,
    WorkerReady,
    from_arrays,
    join_segments,
    to_array,
    to_arrays,
)
from rookery.backends.ray.remote_replay import RemoteReplay, SegmentIntake
from rookery.config import RunConfig
from rookery.data.steps import Batch, Lanes, Segment
from rookery.envs import register_env, statistics
from rookery.envs.wrappers.observation_record import ObservationRecord, observations_of
from rookery.learning.reduce import Reducer, Torch
from rookery.machine import cores, device_of, keep_freed_memory, resident_memory_mb
from rookery.memory.base import Memory
from rookery.memory.replay import Replay
from rookery.memory.rollout import Rollout

CPU = torch.device("cpu")
LEARN_S = 0.25
"""Time an asynchronous learner learns before it reports."""


class WorkerSpec(NamedTuple):
    """Settings that every worker of a run gets."""

    config: RunConfig
    spaces: Spaces
    step: int
    """Environment steps at the start or resumption of the run."""
    paths: list[str]
    """Module search path of the driver."""
    env_fn: Any
    """Makes the environment, if it was registered in the driver's process only."""


def start_worker(kind: type, options: dict[str, Any], spec: WorkerSpec) -> Any:
    """Start a Ray actor. Ray itself restarts none: the driver does, and logs it."""
    return ray.remote(kind).options(max_restarts=0, **options).remote(spec)


def kill_worker(handle: Any) -> None:
    """Kill a Ray actor, if it lives."""
    if handle is not None:
        ray.kill(handle)


class Worker:
    """A process of a run."""

    def __init__(self, spec: WorkerSpec):
        self.spec = spec
        self.config = spec.config
        torch.set_num_threads(1)
        keep_freed_memory()
        sys.path += [path for path in spec.paths if path not in sys.path]
        if spec.env_fn is not None:
            register_env(spec.config.environment, spec.env_fn, replace=True)

    def load_moments(self, moments: Mapping[str, Any]) -> None:
        """Normalise the rows of a replay memory in this process by these statistics."""
        if self.spec.spaces.normalizer is not None:
            self.spec.spaces.normalizer.follow(moments)

    def place(self, device: torch.device = CPU) -> WorkerPlace:
        """Return node, process id, device and threads of this process."""
        node, host = ray.get_runtime_context().get_node_id(), os.uname().nodename
        return WorkerPlace(node, host, os.getpid(), str(device), torch.get_num_threads())


class ActorWorker(Worker):
    """Plays segments with the weights it is given."""

    def begin(self, number: int, restart: int) -> WorkerReady:
        """Make the environments and the network of actor `number`."""
        config = self.config
        names = config.act_device.split(",")
        device = device_of(names[number % len(names)])
        threads = config.threads or max(1, math.ceil(config.ray.actor_cpus))
        env = factory.make_actor_env(config, number, threads)
        torch.set_num_threads(
            config.threads or factory.useful_threads(factory.spaces_of(env), threads)
        )
        # How many actors there are comes with every request.
        actor = factory.make_actor(
            config, number, number + 1, device, self.spec.step, restart, env=env
        )
        self.player = ActorWithWeights(actor)
        self.next_origin = Origin(uuid.uuid4().hex, 0)
        return WorkerReady(self.place(device))

    def collect(
        self,
        weights: Any,
        version: int,
        env_steps: int,
        lanes: Lanes,
        share: tuple[int, int],
        moments: Mapping[str, Any],
    ) -> tuple[Segment, SegmentInfo]:
        """Return a prepared segment; `share` is the actor's index among those that play, and their
        number."""
        actor, origin = self.player.actor, self.next_origin
        self.next_origin = origin._replace(number=origin.number + 1)
        self.player.load(version, from_arrays(weights, actor.device))
        for name, own in statistics(actor.env).items():
            own.follow(moments[name])
        actor.lanes, actor.collection = lanes, factory.share_of(actor.algorithm.collection, *share)
        segment = actor.algorithm.prepare(actor.collect(env_steps))
        played = actor.take_played()
        played = played._replace(
            times=played.times._replace(cpu_s=time.process_time()),
            exploration=played.exploration.mean().cpu(),
            memory_mb=resident_memory_mb(),
        )
        return to_arrays(segment), SegmentInfo(
            played=played,
            version=version,
            moments={name: own.take_pending() for name, own in statistics(actor.env).items()},
            origin=origin,
        )

    def observations(self) -> ObservationRecord | None:
        """Return what the actor's first environment has recorded."""
        return observations_of(self.player.actor.env)

    def close(self) -> None:
        self.player.actor.env.close()


class ShardWorker(Worker):
    """A shard of the replay memory."""

    def begin(self, writers: int, seed: int) -> WorkerReady:
        """Make the memory."""
        algorithm = factory.make_algorithm(self.config, self.spec.spaces, CPU)
        memory = algorithm.memory(self.config.envs, writers, seed)
        assert isinstance(memory, Replay)
        self.memory = memory
        self.intake = SegmentIntake(memory)
        return WorkerReady(self.place(), memory=memory.describe(), memory_bytes=memory.nbytes())

    def add(
        self, segment: Segment, writer: int, origin: Origin, moments: Mapping[str, Any]
    ) -> ReplayStatus:
        """Store an actor's segment, and normalise rows by these statistics from now on."""
        self.load_moments(moments)
        self.intake.add(from_arrays(segment, CPU), writer, origin)
        return self.status()

    def sample(self, sizes: list[int], charge: int) -> tuple[list[Batch | None], ShardStock]:
        """Return `sizes` windows for each of several batches, None where the shard is empty, and
        what is left to draw from after `charge` windows were charged."""
        memory = self.memory
        parts = [
            to_arrays(memory.take(size)) if size and memory.distribution.count else None
            for size in sizes
        ]
        memory.limiter.note_sampled(charge * memory.windows.samples)
        return parts, ShardStock.of(memory)

    def reweigh(self, keys: Any, priorities: Any) -> None:
        """Set new priorities of a batch's windows."""
        given = None if priorities is None else torch.from_numpy(priorities)
        self.memory.reweigh(torch.from_numpy(keys), given)

    def status(self) -> ReplayStatus:
        return ReplayStatus.of(self.memory)._replace(memory_mb=resident_memory_mb())


class LearnerWorker(Worker):
    """One of the learners."""

    def meeting_point(self) -> str:
        """Return an address on this node where learners can find each other."""
        return f"tcp://{ray.util.get_node_ip_address()}:{free_port()}"

    def begin(
        self,
        rank: int,
        world: int,
        address: str,
        writers: int,
        tensors: dict[str, Any] | None,
        counts: Mapping[str, Any] | None,
    ) -> WorkerReady:
        """Join the other learners, and continue from a checkpoint's tensors and counts if given."""
        config = self.config
        device = device_of(config.device)
        network_seed, memory_seed = factory.seeds(config.seed, rank, self.spec.step, 0)
        available = max(1, int(config.ray.learner_cpus or cores()))
        torch.set_num_threads(config.threads or factory.useful_threads(self.spec.spaces, available))
        self.reducer = Reducer()
        if world > 1:
            transport = transport_for(config.learner.transport, device, "ray")
            self.reducer = Torch(transport, rank, world, address)
        self.learner = factory.make_learner(
            config, self.spec.spaces, self.reducer, device, network_seed
        )
        if tensors is not None and counts is not None:
            self.learner.load(from_arrays(tensors, CPU), counts)
        self.memory: Memory | None = None
        self.wait_s = 0.0
        algorithm = self.learner.algorithm
        if algorithm.asynchronous:
            algo: Any = config.algo
            betas = (algo.beta, algo.beta_end) if algo.alpha else (0.0, None)
            self.replay = RemoteReplay(
                device, config.learner.prefetch, algo.batch_size, memory_seed, *betas
            )
            self.prefetch = Prefetch(self.replay, algorithm, config.learner.prefetch)
            self.prefetch.start()
            self.next_batch: Any = None
            return WorkerReady(self.place(device), self.reducer.name)
        self.memory = algorithm.memory(config.envs, writers, memory_seed)
        size = 0
        if isinstance(self.memory, Replay):
            size, self.intake = self.memory.nbytes(), SegmentIntake(self.memory)
        return WorkerReady(self.place(device), self.reducer.name, self.memory.describe(), size)

    def weights(self) -> Any:
        """Return a copy of the network's weights."""
        return to_array(self.learner.flat.values)

    def learn(
        self,
        done: float,
        moments: Mapping[str, Any],
        sources: list[tuple[int, Origin]],
        *segments: Segment,
    ) -> tuple[LearnerReport, Any]:
        """Make every update that is due with these segments, of which `sources` names writer and
        origin; return the report and the weights."""
        memory, device = self.memory, self.learner.device
        assert memory is not None
        self.load_moments(moments)
        self.learner.set_progress(done)
        memory.set_progress(done)
        given = [from_arrays(segment, device) for segment in segments]
        limit = None
        if isinstance(memory, Rollout):
            memory.add(join_segments(given))
        else:
            assert isinstance(memory, Replay)
            for (writer, origin), segment in zip(sources, given, strict=True):
                self.intake.add(segment, writer, origin)
            if self.reducer.world > 1:
                limit = min(self.reducer.gather(memory.due()))
        learn_from(memory, self.learner, limit)
        return self.report(), self.weights()

    def set_shards(self, shards: dict[int, Any]) -> None:
        """Set the replay shards to draw from, by number."""
        self.replay.shards = shards

    def learn_from_shards(self, done: float) -> tuple[LearnerReport, Any]:
        """Make updates on batches of the replay shards until weights are to be published or time
        is up; return the report and the weights."""
        learner, every = self.learner, self.config.learner.publish_updates
        learner.set_progress(done)
        self.replay.set_progress(done)
        deadline = time.perf_counter() + LEARN_S
        while True:
            if self.next_batch is None:
                start = time.perf_counter()
                self.next_batch = self.prefetch.get()
                self.wait_s += time.perf_counter() - start
            over = time.perf_counter() >= deadline
            all_have, any_over = self.agree(self.next_batch is not None, over)
            if all_have:
                outcome = learner.update(self.next_batch)
                self.replay.reweigh(self.next_batch.keys, outcome.priorities)
                self.next_batch = None
                if learner.updates % every == 0:
                    break
            if any_over:
                break
        learner.check_finite()
        return self.report(), self.weights()

    def agree(self, has_batch: bool, over: bool) -> tuple[bool, bool]:
        """Return whether all learners have a batch, and whether time is up for any."""
        if self.reducer.world == 1:
            return has_batch, over
        votes = torch.tensor([float(has_batch), float(over)], device=self.learner.device)
        self.reducer.sum(votes)
        have, up = votes.tolist()
        return have == self.reducer.world, up > 0

    def report(self) -> LearnerReport:
        """Return what was done since the last call."""
        learner = self.learner
        report = LearnerReport(
            updates=learner.updates,
            samples=float(learner.samples),
            counted=learner.counted,
            sums=to_array(learner.sums),
            names=learner.metric_names,
            input_bytes=learner.input_bytes,
            replay=ReplayStatus.of(self.memory) if isinstance(self.memory, Replay) else None,
            times=learner.times._replace(wait_s=self.wait_s, cpu_s=time.process_time()),
            memory_mb=resident_memory_mb(),
            notices=learner.take_notices(),
            measured={} if learner.diagnosis is None else learner.diagnosis.take(),
            records=learner.take_records(),
        )
        learner.sums.zero_()
        learner.counted = 0
        return report

    def state(self) -> tuple[dict[str, Any], dict[str, int]]:
        """Return networks and optimizer, and counts, for a checkpoint."""
        return to_arrays(self.learner.tensors()), self.learner.counts()

    def digest(self) -> str:
        """Return a hash that is equal for learners with the same weights."""
        return self.learner.digest()
