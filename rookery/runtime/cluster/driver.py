"""The process that looks after a run on a cluster: who plays, who learns, who was lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import ray
import torch
from ray.exceptions import ActorUnavailableError, ObjectLostError, RayError, RayTaskError

from rookery.data.steps import Lanes
from rookery.envs import statistics
from rookery.errors import BadInput, EnvironmentFailure, RookeryError
from rookery.memory.budget import gigabytes
from rookery.runs.checkpoint import Checkpoint
from rookery.runtime.backend import Backend, LearnerLost, Setup, Tell
from rookery.runtime.cluster import resources
from rookery.runtime.cluster.ledger import ReplayLedger
from rookery.runtime.cluster.posts import ActorPost, Post
from rookery.runtime.cluster.roles import ActorRole, Brief, LearnerRole
from rookery.runtime.cluster.status import StatusRow, table
from rookery.runtime.cluster.wire import (
    Began,
    Learned,
    Played,
    Where,
    from_arrays,
    numbers,
    to_arrays,
)
from rookery.runtime.making import share_of
from rookery.runtime.progress import Share
from rookery.runtime.state import Parts, learned_tensors, load_learned, load_moments

CPU = torch.device("cpu")
LOOK_S = 2.0
"""Time between looks at the cluster."""
WAIT_S = 1.0
CLOSE_S = 2.0
"""How long roles may take to close."""
WARN_S = 60.0
"""After how long a wait is told of."""


class Driver(Backend):
    """What both kinds of runs on a cluster have in common.

    `parts.learner` is a mirror of the first learner: it counts as that one does, and has its
    weights after `catch_up`.
    """

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
        self.restarts = 0
        """Of the learners."""
        self.version = 0
        self.weights = ray.put(numbers(parts.learner.flat.values))
        self.learners: list[Any] = []
        self.learner_at: list[Where] = []
        self.learned: Learned | None = None
        self.times_before = (0.0, 0.0, 0.0, 0.0)
        self.samples_before = 0.0
        self.cpu_gone = 0.0
        """CPU seconds of actors that are no more."""
        self.lag_sum, self.lag_max, self.segments = 0, 0, 0
        self.wait_s = 0.0
        self.actors = [ActorPost(number, self.start_actor(number)) for number in range(count)]

    # ---------------------------------------------------------------- starting

    def start(self) -> None:
        """Send for everybody, and wait until they are there."""
        begun = self.ask_learners(self.tensors())
        for post in self.actors:
            post.fill()
        self.greet_learners(self.wait_for(begun, learners_text(begun)))
        self.start_memory()
        self.wait_for_actors()
        self.begun = True
        self.parts.progress.started = time.monotonic()

    def start_memory(self) -> None:
        """Send for what keeps experience, if it is not the learners."""

    def greet_learners(self, began: Sequence[Began]) -> None:
        """All learners are ready."""
        self.learner_at = [each.where for each in began]
        self.note_memory(began)

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

    def ask_learners(self, tensors: dict[str, Any]) -> list[Any]:
        """Send for learners that go on from these tensors; what they answer when they are ready."""
        count, options = self.needs.learners, self.needs.options("learner")
        self.learners = [sent_for(LearnerRole, options, self.brief) for _ in range(count)]
        meeting = ""
        if count > 1:
            (meeting,) = self.wait_for([self.learners[0].meeting_point.remote()], "a learner")
        saved = ray.put(tensors)
        return [
            learner.begin.remote(rank, count, meeting, self.writers_of(rank), saved)
            for rank, learner in enumerate(self.learners)
        ]

    def writers_of(self, rank: int) -> int:
        """How many actors write to a learner's memory."""
        return len(range(rank, len(self.actors), self.needs.learners))

    def wait_for(self, references: Sequence[Any], what: str) -> list[Any]:
        """What they answer; BadInput if they fail or take too long."""
        deadline = time.monotonic() + self.config.ray.start_seconds
        waiting, answers = list(references), {}
        while waiting:
            left = deadline - time.monotonic()
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, left))
            if not ready:
                raise self.too_long(what)
            try:
                answers[ready[0]] = ray.get(ready[0])
            except RayError as error:
                raise refusal(error, what) from None
        return [answers[reference] for reference in references]

    def wait_for_actors(self) -> None:
        """Until all are there, or a run can go on with those that are."""
        deadline = time.monotonic() + self.config.ray.start_seconds
        while time.monotonic() < deadline and not all(post.ready for post in self.actors):
            self.settle(WAIT_S)
        if len(self.ready()) < self.needs.learners:
            raise self.too_long(f"{self.needs.learners} of {len(self.actors)} actors")
        if missing := [str(post) for post in self.actors if not post.ready]:
            self.tell(f"going on without {', '.join(missing)}, which found no place yet", "")

    def too_long(self, what: str) -> BadInput:
        """The error for a wait that was too long."""
        self.cluster = resources.cluster_now()
        return BadInput(
            f"ray: waited {self.config.ray.start_seconds:g} s (ray.start_seconds) for {what};"
            f" the cluster has {self.cluster.describe()}, of which"
            f" {self.cluster.free.get('CPU', 0):g} CPUs are free"
        )

    def setup(self) -> Setup:
        first, count = self.learner_at[0], self.needs.learners
        learners = "" if count == 1 else f" and {count} learners"
        nodes = "1 node" if self.cluster.nodes == 1 else f"{self.cluster.nodes} nodes"
        line = f"ray on {nodes}, {len(self.actors)} actors{learners}"
        transport = "one process" if count == 1 else "gloo"
        if first.device.startswith("cuda") and count > 1:
            transport = "nccl"
        return Setup(line, transport, count, first.device, first.threads)

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
        segment, played = post.handle.collect.options(num_returns=2).remote(
            self.weights,
            self.version,
            self.parts.progress.env_steps,
            Lanes(post.number * envs, envs, len(self.actors) * envs),
            share_of(self.parts.algorithm.collection, index, playing),
            {name: moments.shared() for name, moments in statistics(self.parts.env).items()},
        )
        post.under_way.add(played)
        return segment, played

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

    def answers(self, references: Sequence[Any], doing: str) -> list[Any]:
        """What the learners answer; LearnerLost if one is gone, ObjectLostError if the only one is
        there but what it was to learn from is gone."""
        waiting, began, warned = list(references), time.monotonic(), False
        try:
            while waiting:
                ready, waiting = ray.wait(waiting, num_returns=1, timeout=WAIT_S)
                for reference in ready:
                    ray.get(reference)
                if not warned and time.monotonic() > began + WARN_S:
                    warned = True
                    self.tell(f"waiting for {learners_text(waiting)} to {doing}", "")
            return [ray.get(reference) for reference in references]
        except RayError as error:
            raise_told(error)
            if isinstance(error, ObjectLostError) and len(self.learners) == 1:
                raise
            raise LearnerLost(f"a learner was lost: {reason_of(error)}", str(error)) from None

    def note_learned(self, learned: Learned, weights: Any) -> None:
        """Bring the mirror's counts up to date, and let the weights be played with."""
        mirror = self.parts.learner
        if learned.updates != mirror.updates:
            self.version += 1
            self.weights = weights
        mirror.updates = learned.updates
        mirror.samples.fill_(self.samples_before + learned.samples)
        mirror.sums.add_(torch.tensor(learned.sums))
        mirror.counted += learned.counted
        mirror.metric_names = learned.names
        mirror.input_bytes = learned.input_bytes
        self.learned = learned

    def learner_times(self) -> tuple[float, float, float, float]:
        """Seconds the first learner learned, reduced, waited, and used of a CPU."""
        if self.learned is None:
            return self.times_before
        now = self.learned[-4:]
        return tuple(a + b for a, b in zip(self.times_before, now, strict=True))  # type: ignore[return-value]

    def exchange(self, interrupted: bool) -> list[Share]:
        """What each actor did."""
        progress = self.parts.progress
        learn_s, reduce_s, wait_s, learner_cpu = self.learner_times()
        here = progress.cpu_seconds() + learner_cpu + self.cpu_gone
        shares: list[Share] = []
        for post in self.actors:
            env_steps, post.env_steps = post.env_steps, 0
            episodes, post.episodes = post.episodes, []
            shares.append(
                Share(
                    env_steps=env_steps,
                    episodes=episodes,
                    **post.times_before.plus(post.times)._asdict(),
                    learn_s=learn_s,
                    reduce_s=reduce_s,
                    wait_s=wait_s + self.wait_s,
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
        return table(self.actors, self.memory_rows(), self.learner_rows(), resources.cluster_now())

    def learner_rows(self) -> list[StatusRow]:
        """The learners, for the status."""
        mirror = self.parts.learner
        return [
            StatusRow(f"learner {rank}", where, self.restarts, f"{mirror.updates:,} updates")
            for rank, where in enumerate(self.learner_at)
        ]

    def memory_rows(self) -> list[StatusRow]:
        """What keeps experience, for the status."""
        return []

    # ---------------------------------------------------------------- state

    def tensors(self) -> dict[str, Any]:
        """What learners go on from: the mirror's state."""
        mirror = self.parts.learner
        files = learned_tensors(self.parts.algorithm, mirror)
        return to_arrays(files | {"counts": {"updates": torch.tensor(mirror.updates)}})

    def catch_up(self) -> None:
        """Give the mirror the learner's weights and optimizer."""
        references = [self.learners[0].state.remote()]
        references += [learner.digest.remote() for learner in self.learners]
        state, *digests = self.answers(references, "tell their weights")
        if len(set(digests)) > 1:
            raise RookeryError(f"the weights of the learners differ: {digests}")
        tensors = from_arrays(state, CPU)
        load_learned(self.parts, tensors, int(tensors["counts"]["updates"]))
        self.parts.progress.updates = self.parts.learner.updates

    def recover(self, saved: Checkpoint) -> None:
        """New learners, from a checkpoint."""
        most = self.config.ray.learner_restarts
        if self.restarts >= most:
            raise RookeryError(
                f"the learners were lost {self.restarts + 1} times, more than"
                f" ray.learner_restarts={most} allows"
            )
        self.restarts += 1
        for learner in self.learners:
            end(learner)
        self.times_before = self.learner_times()
        self.samples_before = float(self.parts.learner.samples)
        self.learned = None
        mirror = self.parts.learner
        mirror.sums.zero_()
        mirror.counted = 0
        load_learned(self.parts, saved.tensors, saved.meta["updates"])
        load_moments(self.parts.env, saved.tensors.get("normalizer", {}))
        began = self.ask_learners(self.tensors())
        self.greet_learners(self.wait_for(began, learners_text(began)))
        self.version += 1
        self.weights = ray.put(numbers(mirror.flat.values))
        self.tell(f"learners started anew, {self.restarts} of at most {most} times", "")

    # ---------------------------------------------------------------- ending

    def close(self) -> None:
        """Let actors close their environments, end all roles, and leave the cluster."""
        closing = [post.handle.close.remote() for post in self.ready()]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        self.closing.close()

    def end(self) -> None:
        """End all roles."""
        for handle in (*(post.handle for post in self.posts()), *self.learners):
            end(handle)


def learners_text(learners: Sequence[Any]) -> str:
    """How many learners there are, in words."""
    return "the learner" if len(learners) == 1 else f"{len(learners)} learners"


def sent_for(role: type, options: dict[str, Any], brief: Brief) -> Any:
    """A Ray actor for a role. Ray itself starts none anew: the driver does, and tells of it."""
    return ray.remote(role).options(max_restarts=0, **options).remote(brief)


def end(handle: Any) -> None:
    """End a Ray actor, if it lives."""
    if handle is not None:
        ray.kill(handle)


def weights_lost(error: RayError) -> None:
    """Raise LearnerLost if what an actor was to play with is gone: it lay on the learner's node."""
    if isinstance(error, ObjectLostError):
        raise LearnerLost("the weights were lost with the learner's node", str(error)) from None


def raise_told(error: RayError) -> None:
    """Raise what a role says is wrong with the run itself."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    if isinstance(cause, RookeryError) and not isinstance(cause, EnvironmentFailure):
        raise cause from None


def refusal(error: RayError, what: str) -> BadInput:
    """The error for a role that could not start."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    told = str(cause) if isinstance(cause, RookeryError) else reason_of(error)
    return BadInput(f"ray: {what} could not start: {told}", str(error))


def reason_of(error: RayError) -> str:
    """Why a role was lost, in a line."""
    if isinstance(error, RayTaskError):
        return f"{type(error.cause).__name__}: {' '.join(str(error.cause).split())}"
    if isinstance(error, ActorUnavailableError):
        return "it cannot be reached"
    text = " ".join(str(error).split())
    if "node has died" in text or "node was terminated" in text:
        return "its node died"
    if "died unexpectedly" in text or "process has died" in text or "worker died" in text:
        return "its process died"
    return text[:300]
