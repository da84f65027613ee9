"""The process that looks after a run on a cluster: who plays, who learns, who was lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import ray
from ray.exceptions import RayError

from rookery.backends.base import Backend, Setup, Tell
from rookery.backends.components import Parts, load_learned, load_moments
from rookery.backends.factory import share_of
from rookery.backends.progress import Share
from rookery.backends.ray import cluster as resources
from rookery.backends.ray.failures import raise_told, reason_of, refusal
from rookery.backends.ray.learners import WAIT_S, Learners
from rookery.backends.ray.messages import Began, Learned, Played, numbers
from rookery.backends.ray.replay_statistics import ReplayLedger
from rookery.backends.ray.slots import ActorPost, Post
from rookery.backends.ray.status import StatusRow, table
from rookery.backends.ray.waiting import too_long
from rookery.backends.ray.workers import ActorRole, Brief, end, sent_for
from rookery.data.steps import Lanes
from rookery.envs import statistics
from rookery.errors import BadInput, EnvironmentFailure
from rookery.memory.budget import gigabytes
from rookery.runs.checkpoint import Checkpoint

LOOK_S = 2.0
"""Time between looks at the cluster."""
CLOSE_S = 2.0
"""How long roles may take to close."""


class Driver(Backend):
    """What both kinds of runs on a cluster have in common."""

    recovers = True

    closing: ExitStack
    """What is left open for as long as the run goes on."""

    def __init__(self, parts: Parts, brief: Brief, needs: resources.Needs, tell: Tell):
        assert isinstance(parts.memory, ReplayLedger)
        self.parts, self.config, self.ledger = parts, parts.config, parts.memory
        self.brief, self.needs = brief, needs
        self.tell = tell
        self.cluster = resources.cluster_now()
        self.looked = time.monotonic()
        count = resources.actors_for(self.config, needs, self.cluster.total)
        resources.check(self.config, needs, count, self.cluster)
        share_of(parts.algorithm.collection, 0, count)
        self.begun = False
        self.version = 0
        self.weights = ray.put(numbers(parts.learner.flat.values))
        self.learners = Learners(parts, brief, needs, tell)
        self.cpu_gone = 0.0
        """CPU seconds of actors that are no more."""
        self.lag_sum, self.lag_max, self.segments = 0, 0, 0
        self.wait_s = 0.0
        self.actors = [ActorPost(number, self.start_actor(number)) for number in range(count)]

    # ---------------------------------------------------------------- starting

    def start(self) -> None:
        """Send for everybody, and wait until they are there."""
        begun = self.learners.send_for(self.writers())
        for post in self.actors:
            post.fill()
        self.learners.greet(begun)
        self.start_memory()
        self.wait_for_actors()
        self.begun = True
        self.parts.progress.started = time.monotonic()

    def start_memory(self) -> None:
        """Send for what keeps experience, if it is not the learners."""
        self.note_memory(self.learners.began)

    def note_memory(self, began: Sequence[Began]) -> None:
        """Say what the replay memories that were made will take, if any were."""
        lines = [each.memory for each in began if each.memory is not None]
        if lines:
            size = gigabytes(sum(each.memory_bytes for each in began))
            self.ledger.line = lines[0] if len(lines) == 1 else f"replay: {len(lines)} x, {size}"

    def start_actor(self, number: int) -> Callable[[int], tuple[Any, Any]]:
        """What fills an actor's post."""

        def start(restart: int) -> tuple[Any, Any]:
            options = self.needs.options("actor") | {"scheduling_strategy": "SPREAD"}
            handle = sent_for(ActorRole, options, self.brief)
            return handle, handle.begin.remote(number, restart)

        return start

    def writers(self) -> list[int]:
        """How many actors write to the memory of each learner."""
        count = self.learners.count
        return [len(range(rank, len(self.actors), count)) for rank in range(count)]

    def wait_for_actors(self) -> None:
        """Until all are there, or a run can go on with those that are."""
        deadline = time.monotonic() + self.config.ray.start_seconds
        while time.monotonic() < deadline and not all(post.ready for post in self.actors):
            self.settle(WAIT_S)
        if len(self.ready()) < self.learners.count:
            raise self.too_few()
        if missing := [str(post) for post in self.actors if not post.ready]:
            self.tell(f"going on without {', '.join(missing)}, which found no place yet", "")

    def too_few(self) -> BadInput:
        """The error for actors that do not come."""
        what = f"{self.learners.count} of {len(self.actors)} actors"
        return too_long(what, self.config.ray.start_seconds)

    def setup(self) -> Setup:
        first, count = self.learners.began[0], self.learners.count
        learners = "" if count == 1 else f" and {count} learners"
        line = f"ray on {self.cluster.nodes_text}, {len(self.actors)} actors{learners}"
        return Setup(line, first.transport, count, first.where.device, first.where.threads)

    # ---------------------------------------------------------------- looking after

    def posts(self) -> list[Post]:
        """Everybody who is started anew when lost, one by one."""
        return list(self.actors)

    def ready(self) -> list[ActorPost]:
        """The actors that can play."""
        return [post for post in self.actors if post.ready]

    def look_after(self) -> None:
        """See who has come, and now and then what the cluster has."""
        self.settle(0)
        if time.monotonic() < self.looked + LOOK_S:
            return
        self.cluster = resources.cluster_now()
        self.looked = time.monotonic()
        if self.config.actors == "auto":
            self.follow_cluster()

    def settle(self, timeout: float) -> None:
        """Welcome those who are ready, and replace those who failed to start."""
        starting = {post.starting: post for post in self.posts() if post.starting is not None}
        if not starting:
            return
        ready, _ = ray.wait(list(starting), num_returns=1, timeout=timeout)
        if ready:
            ready, _ = ray.wait(list(starting), num_returns=len(starting), timeout=0)
        for reference in ready:
            post = starting[reference]
            try:
                answer = ray.get(reference)
            except RayError as error:
                if not self.begun:
                    raise refusal(error, str(post)) from None
                self.replace(post, error)
                continue
            post.starting = None
            self.welcome(post, answer)
            if post.restarts:
                self.tell(
                    f"{post} started anew on {self.node_name(post)}, {post.restarts} of at most"
                    f" {self.most_restarts(post)[1]} times",
                    "",
                )

    def welcome(self, post: Post, answer: Any) -> None:
        """Somebody is ready."""
        post.where = answer

    def most_restarts(self, post: Post) -> tuple[str, int]:
        """The setting that limits how often a post is filled anew."""
        if isinstance(post, ActorPost):
            return "actor_restarts", self.config.actor_restarts
        return "ray.learner_restarts", self.config.ray.learner_restarts

    def replace(self, post: Post, error: RayError) -> None:
        """Send for another process in place of one that was lost, if that is allowed."""
        raise_told(error)
        reason = reason_of(error)
        where = f" on {self.node_name(post)}" if post.where else ""
        self.tell(f"{post}{where} was lost: {reason}", str(error))
        end(post.handle)
        setting, most = self.most_restarts(post)
        if post.restarts >= most:
            raise EnvironmentFailure(
                f"{post} was lost {post.restarts + 1} times, more than {setting}={most} allows;"
                f" at last: {reason}"
            )
        post.restarts += 1
        post.fill()

    def follow_cluster(self) -> None:
        """Have as many actors as the cluster has room for."""
        target = resources.actors_for(self.config, self.needs, self.cluster.total)
        most = self.most_actors()
        target = target if most is None else min(target, most)
        while len(self.actors) < target:
            post = ActorPost(len(self.actors), self.start_actor(len(self.actors)))
            # As if it had played as long as the others: means over actors then stay smooth.
            post.times_before = self.actors[0].times_before.plus(self.actors[0].times)
            post.fill()
            self.actors.append(post)
            self.tell(f"{post} joins: the cluster has {self.cluster.describe()}", "")
        while len(self.actors) > target and not self.actors[-1].ready:
            post = self.actors.pop()
            end(post.handle)
            self.cpu_gone += post.cpu_before + post.cpu_s
            self.tell(f"{post} leaves: the cluster has {self.cluster.describe()}", "")

    def most_actors(self) -> int | None:
        """How many the memory has room for; None: any number."""
        return None

    def node_name(self, post: Post) -> str:
        """Where a post is filled."""
        return f"{post.where.host} ({post.where.node[:6]})" if post.where else "no node"

    # ---------------------------------------------------------------- playing and learning

    def collect(self, post: ActorPost, index: int, playing: int) -> tuple[Any, Any]:
        """Ask one of several actors for a segment; references to it and to what it took."""
        envs = self.config.envs
        return post.handle.collect.options(num_returns=2).remote(
            self.weights,
            self.version,
            self.parts.progress.env_steps,
            Lanes(post.number * envs, envs, len(self.actors) * envs),
            share_of(self.parts.algorithm.collection, index, playing),
            self.moments(),
        )

    def moments(self) -> dict[str, Any]:
        """The statistics of normalisation that all processes share, by their names."""
        return {name: moments.shared() for name, moments in statistics(self.parts.env).items()}

    def note_played(self, post: ActorPost, played: Played) -> None:
        """Take down what came with a segment."""
        post.note(played)
        lag = self.version - played.version
        self.lag_sum, self.lag_max = self.lag_sum + lag, max(self.lag_max, lag)
        self.segments += 1
        for name, moments in statistics(self.parts.env).items():
            moments.merge([played.moments[name]])

    def done(self) -> float:
        """The part of the run that is done."""
        return self.parts.progress.env_steps / self.config.env_steps

    def note_learned(self, learned: Learned, weights: Any) -> None:
        """Take down what was learned, and let the weights be played with if they are new."""
        if learned.updates != self.parts.learner.updates:
            self.publish(weights)
        self.learners.note(learned)

    def publish(self, weights: Any) -> None:
        """Let actors play with these weights."""
        self.version += 1
        self.weights = weights

    def exchange(self, interrupted: bool) -> list[Share]:
        """What each actor did."""
        progress = self.parts.progress
        learners = self.learners.times
        here = progress.cpu_seconds() + learners.cpu_s + self.cpu_gone
        shares: list[Share] = []
        for post in self.actors:
            env_steps, post.env_steps = post.env_steps, 0
            episodes, post.episodes = post.episodes, []
            notices, post.notices = post.notices, []
            shares.append(
                Share(
                    env_steps=env_steps,
                    episodes=episodes,
                    notices=notices,
                    **post.times_before.plus(post.times)._asdict(),
                    learn_s=learners.learn_s,
                    reduce_s=learners.reduce_s,
                    wait_s=learners.wait_s + self.wait_s,
                    cpu_s=post.cpu_before + post.cpu_s + (0.0 if shares else here),
                    interrupted=interrupted,
                    seconds=progress.elapsed(),
                )
            )
        return shares

    def gauges(self) -> dict[str, float]:
        """Who is there, and how far behind the newest weights those are that were played with."""
        lag, most = self.lag_sum / max(1, self.segments), self.lag_max
        self.lag_sum, self.lag_max, self.segments = 0, 0, 0
        name = self.parts.algorithm.explores_by
        explore = [post.explore for post in self.actors]
        return ({name: sum(explore) / len(explore)} if name else {}) | {
            "policy_lag_mean": lag,
            "policy_lag_max": most,
            "actors_healthy": len(self.ready()),
            "nodes_alive": self.cluster.nodes,
        }

    def status(self) -> str:
        return table(self.actors, self.memory_rows(), self.learners.rows(), resources.cluster_now())

    def memory_rows(self) -> list[StatusRow]:
        """What keeps experience, for the status."""
        return []

    # ---------------------------------------------------------------- state

    def catch_up(self) -> None:
        self.learners.catch_up()

    def recover(self, saved: Checkpoint) -> None:
        """New learners, from a checkpoint."""
        load_learned(self.parts, saved.tensors, saved.meta)
        load_moments(self.parts.env, saved.tensors.get("normalizer", {}))
        self.learners.restart(self.writers())
        self.publish(ray.put(numbers(self.parts.learner.flat.values)))

    # ---------------------------------------------------------------- ending

    def close(self) -> None:
        """Let actors close their environments, end all roles, and leave the cluster."""
        closing = [post.handle.close.remote() for post in self.ready()]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        self.closing.close()

    def end(self) -> None:
        """End all roles."""
        for post in self.posts():
            end(post.handle)
        self.learners.end()
