"""The roles of a run on a cluster, each in a process of its own."""

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
from torch import Tensor

from rookery.algorithms.base import Algorithm, Collection, Spaces
from rookery.backends.actor_threads import Player
from rookery.backends.components import learned_tensors, load_weights, spaces_of
from rookery.backends.factory import make_algorithm, seeds, useful_threads
from rookery.backends.ranks.join import transport_for
from rookery.backends.ranks.launch import free_port
from rookery.backends.ray.intake import Intake
from rookery.backends.ray.messages import (
    Began,
    Kept,
    Learned,
    LearnerTimes,
    Origin,
    Played,
    Stock,
    Where,
    from_arrays,
    joined,
    numbers,
    to_arrays,
)
from rookery.backends.ray.remote_replay import RemoteReplay
from rookery.backends.ray.replay_statistics import kept_of, stock_of
from rookery.backends.serial import learn_from
from rookery.backends.threads import Prefetch
from rookery.config import RunConfig
from rookery.data.steps import Batch, Lanes, Segment
from rookery.envs import make_env, pool_of, register_env, statistics, turned
from rookery.learning.actor import Actor
from rookery.learning.learner import Learner
from rookery.learning.reduce import Alone, Reducer, Torch
from rookery.machine import cores, device_of, keep_freed_memory
from rookery.memory.base import Memory
from rookery.memory.replay import Replay
from rookery.memory.rollout import Rollout

CPU = torch.device("cpu")
STUDY_S = 0.25
"""How long an asynchronous learner learns before it reports."""


class Brief(NamedTuple):
    """What every role of a run is told."""

    config: RunConfig
    spaces: Spaces
    step: int
    """Where this sitting began."""
    paths: list[str]
    """Where the driver looks for modules."""
    env_fn: Any
    """What makes the environment, where it was registered in the driver's process only."""


def sent_for(role: type, options: dict[str, Any], brief: Brief) -> Any:
    """A Ray actor for a role. Ray itself starts none anew: the driver does, and tells of it."""
    return ray.remote(role).options(max_restarts=0, **options).remote(brief)


def end(handle: Any) -> None:
    """End a Ray actor, if it lives."""
    if handle is not None:
        ray.kill(handle)


def learned_state(algorithm: Algorithm, learner: Learner) -> dict[str, dict[str, Tensor]]:
    """What a learner needs to go on from where another is: networks, optimizer and counts."""
    counts = {name: torch.tensor(count) for name, count in learner.counts().items()}
    return learned_tensors(algorithm, learner) | {"counts": counts}


class Role:
    """A process with a part in a run."""

    def __init__(self, brief: Brief):
        self.brief = brief
        self.config = brief.config
        torch.set_num_threads(1)
        keep_freed_memory()
        sys.path += [path for path in brief.paths if path not in sys.path]
        if brief.env_fn is not None:
            register_env(brief.config.environment, brief.env_fn, replace=True)

    def follow(self, moments: Mapping[str, Any]) -> None:
        """Scale rows of a replay memory in this process by these statistics, where it does."""
        if self.brief.spaces.normalizer is not None:
            self.brief.spaces.normalizer.follow(moments)

    def where(self, device: torch.device = CPU) -> Where:
        """Where this process is."""
        node = ray.get_runtime_context().get_node_id()
        return Where(node, os.uname().nodename, os.getpid(), str(device), torch.get_num_threads())


class ActorRole(Role):
    """Plays segments with the weights it is given."""

    def begin(self, number: int, restart: int) -> Where:
        """Make the environments and the network."""
        config, step = self.config, self.brief.step
        names = config.act_device.split(",")
        device = device_of(names[number % len(names)])
        threads = config.threads or max(1, math.ceil(config.ray.actor_cpus))
        name = turned(config.environment, number * config.envs)
        env = make_env(name, config.env, num_envs=config.envs, threads=threads)
        torch.set_num_threads(config.threads or useful_threads(spaces_of(env), threads))
        algorithm = make_algorithm(config, spaces_of(env), device)
        algorithm.network.to(device)
        own = seeds(config.seed, number, step, 1 + restart)
        lanes = Lanes(0, config.envs, config.envs)
        actor = Actor(
            env, algorithm, algorithm.collection, device, *own, lanes=lanes, pooled=pool_of(env)
        )
        self.player = Player(actor)
        self.next_origin = Origin(uuid.uuid4().hex, 0)
        return self.where(device)

    def collect(
        self,
        weights: Any,
        version: int,
        env_steps: int,
        lanes: Lanes,
        collection: Collection,
        moments: Mapping[str, Any],
    ) -> tuple[Segment, Played]:
        """A segment, prepared, and what it took."""
        actor, origin = self.player.actor, self.next_origin
        self.next_origin = origin._replace(number=origin.number + 1)
        self.player.take(version, from_arrays(weights, actor.device))
        for name, own in statistics(actor.env).items():
            own.follow(moments[name])
        actor.lanes, actor.collection = lanes, collection
        segment = actor.algorithm.prepare(actor.collect(env_steps))
        seen = {name: own.take_pending() for name, own in statistics(actor.env).items()}
        return to_arrays(segment), Played(
            env_steps=actor.take_steps(),
            episodes=actor.take_episodes(),
            notices=actor.take_notices(),
            times=actor.times,
            cpu_s=time.process_time(),
            explore=float(actor.explore.mean()),
            version=version,
            moments=seen,
            origin=origin,
        )

    def close(self) -> None:
        """Close the environments."""
        self.player.actor.env.close()


class ShardRole(Role):
    """A part of the replay memory."""

    def begin(self, writers: int, seed: int) -> Began:
        """Make room."""
        algorithm = make_algorithm(self.config, self.brief.spaces, CPU)
        memory = algorithm.memory(self.config.envs, writers, seed)
        assert isinstance(memory, Replay)
        self.memory = memory
        self.intake = Intake(memory)
        return Began(self.where(), memory=memory.describe(), memory_bytes=memory.nbytes())

    def add(
        self, segment: Segment, writer: int, origin: Origin, moments: Mapping[str, Any]
    ) -> Kept:
        """Store a segment of an actor's, and scale rows by these statistics from now on."""
        self.follow(moments)
        self.intake.add(from_arrays(segment, CPU), writer, origin)
        return self.kept()

    def sample(self, sizes: list[int], charge: int) -> tuple[list[Batch | None], Stock]:
        """So many windows for each of several batches, where there are any, and what is left to
        draw from once so many windows were charged."""
        memory = self.memory
        parts = [
            to_arrays(memory.take(size)) if size and memory.distribution.count else None
            for size in sizes
        ]
        memory.limiter.note_sampled(charge * memory.windows.samples)
        return parts, stock_of(memory)

    def reweigh(self, keys: Any, priorities: Any) -> None:
        """New priorities of a batch's windows."""
        given = None if priorities is None else torch.from_numpy(priorities)
        self.memory.reweigh(torch.from_numpy(keys), given)

    def kept(self) -> Kept:
        """How the memory is."""
        return kept_of(self.memory)


class LearnerRole(Role):
    """One of the learners."""

    def meeting_point(self) -> str:
        """An address on this node where learners can find each other."""
        return f"tcp://{ray.util.get_node_ip_address()}:{free_port()}"

    def begin(
        self, rank: int, world: int, meeting: str, writers: int, tensors: dict[str, Any]
    ) -> Began:
        """Join the other learners, and go on from saved tensors."""
        config, step = self.config, self.brief.step
        device = device_of(config.device)
        network_seed, memory_seed = seeds(config.seed, rank, step, 0)
        available = config.ray.learner_cpus or cores()
        threads = config.threads or useful_threads(self.brief.spaces, max(1, int(available)))
        torch.set_num_threads(threads)
        torch.manual_seed(network_seed)
        self.algorithm: Algorithm = make_algorithm(config, self.brief.spaces, device)
        self.reducer: Reducer = Alone()
        if world > 1:
            transport = transport_for(config.learner.transport, device, "ray")
            self.reducer = Torch(transport, rank, world, meeting)
        self.learner = Learner(
            self.algorithm, config.learner, self.reducer, device, config.precision, config.compile
        )
        saved = from_arrays(tensors, CPU)
        load_weights(self.algorithm, saved)
        self.learner.load_optimizer(saved["optimizer"])
        self.learner.load_counts(saved["counts"])
        self.memory: Memory | None = None
        self.wait_s = 0.0
        if type(self.algorithm).asynchronous:
            algo: Any = config.algo
            betas = (algo.beta, algo.beta_end) if algo.alpha else (0.0, None)
            self.replay = RemoteReplay(
                device, config.learner.prefetch, algo.batch_size, memory_seed, *betas
            )
            self.prefetch = Prefetch(self.replay, self.algorithm, config.learner.prefetch)
            self.prefetch.start()
            self.next_batch: Any = None
            return Began(self.where(device), self.reducer.name)
        self.memory = self.algorithm.memory(config.envs, writers, memory_seed)
        size = 0
        if isinstance(self.memory, Replay):
            size, self.intake = self.memory.nbytes(), Intake(self.memory)
        return Began(self.where(device), self.reducer.name, self.memory.describe(), size)

    def learn(
        self,
        done: float,
        moments: Mapping[str, Any],
        sources: list[tuple[int, Origin]],
        *segments: Segment,
    ) -> tuple[Learned, Any]:
        """Every update that is due with these segments, of which writer and origin are told, rows
        being scaled by these statistics; what it came to, and the weights."""
        memory, device = self.memory, self.learner.device
        assert memory is not None
        self.follow(moments)
        self.learner.set_progress(done)
        memory.set_progress(done)
        given = [from_arrays(segment, device) for segment in segments]
        most = None
        if isinstance(memory, Rollout):
            memory.add(joined(given))
        else:
            assert isinstance(memory, Replay)
            for (writer, origin), segment in zip(sources, given, strict=True):
                self.intake.add(segment, writer, origin)
            if self.reducer.world > 1:
                most = min(self.reducer.gather(memory.due()))
        learn_from(memory, self.learner, most)
        return self.learned(), numbers(self.learner.flat.values)

    def draw_from(self, shards: dict[int, Any]) -> None:
        """The replay shards to draw from, by their numbers."""
        self.replay.shards = shards

    def study(self, done: float) -> tuple[Learned, Any]:
        """Updates on what the replay shards give, until weights are due or time is up; what it came
        to, and the weights."""
        learner, every = self.learner, self.config.learner.publish_updates
        learner.set_progress(done)
        self.replay.set_progress(done)
        end = time.perf_counter() + STUDY_S
        while True:
            self.fetch()
            over = time.perf_counter() >= end
            all_have, any_over = self.agreed(self.next_batch is not None, over)
            if all_have:
                outcome = learner.update(self.next_batch)
                self.replay.reweigh(self.next_batch.keys, outcome.priorities)
                self.next_batch = None
                if learner.updates % every == 0:
                    break
            if any_over:
                break
        learner.check_finite()
        return self.learned(), numbers(learner.flat.values)

    def fetch(self) -> None:
        """Wait a moment for a batch, if there is none."""
        start = time.perf_counter()
        if self.next_batch is None:
            self.next_batch = self.prefetch.get()
        self.wait_s += time.perf_counter() - start

    def agreed(self, has: bool, over: bool) -> tuple[bool, bool]:
        """Whether all learners have a batch, and whether time is up for any."""
        if self.reducer.world == 1:
            return has, over
        votes = torch.tensor([float(has), float(over)], device=self.learner.device)
        self.reducer.sum(votes)
        have, up = votes.tolist()
        return have == self.reducer.world, up > 0

    def learned(self) -> Learned:
        """What was done since the last call."""
        learner = self.learner
        report = Learned(
            updates=learner.updates,
            samples=float(learner.samples),
            counted=learner.counted,
            sums=numbers(learner.sums),
            names=learner.metric_names,
            input_bytes=learner.input_bytes,
            kept=kept_of(self.memory) if isinstance(self.memory, Replay) else None,
            times=LearnerTimes(learner.learn_s, learner.reduce_s, self.wait_s, time.process_time()),
            notices=learner.take_notices(),
        )
        learner.sums.zero_()
        learner.counted = 0
        return report

    def state(self) -> dict[str, Any]:
        """What a checkpoint says of the learner."""
        return to_arrays(learned_state(self.algorithm, self.learner))

    def digest(self) -> str:
        """What tells whether learners have the same weights."""
        return self.learner.digest()
