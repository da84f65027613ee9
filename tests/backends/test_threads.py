"""Actors in threads: whole weights, pauses, ends, failures, and a small run of it all."""

import io
import os
import sys
import threading
import time
from types import SimpleNamespace
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from scenes import CPU
from torch import nn

from rookery.backends.base import ProcessUsage
from rookery.backends.common import ActorWithWeights, Prefetch, WeightStore
from rookery.backends.threads import Threads
from rookery.data.steps import FinishedEpisode
from rookery.envs import register_env
from rookery.errors import RunFailed
from rookery.learning.actor import Played, Stopped, Times
from rookery.machine import lower_priority_of_new_threads
from rookery.memory.distributions import Uniform
from rookery.memory.limiter import Limiter
from rookery.memory.replay import Replay, Transitions
from rookery.memory.ring import Layout, Ring
from rookery.training.start import train

THREAD_WAIT_S = 20
"""How long a thread may take for what takes a moment."""


def eventually(condition):
    """Whether something comes true."""
    end = time.monotonic() + THREAD_WAIT_S
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return False


def in_background(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# ---------------------------------------------------------------- weights


def test_weights_are_never_seen_in_part():
    weights = WeightStore(torch.zeros(200_000))
    over = threading.Event()

    def publish():
        values = torch.zeros(200_000)
        while not over.is_set():
            values += 1  # in place, as the optimizer does
            weights.publish(values)

    publisher = in_background(publish)
    seen, before, end = 0, 0, time.monotonic() + 1
    try:
        while time.monotonic() < end or seen < 10:
            version, values = weights.newest
            assert version >= before
            assert bool((values == version).all())
            time.sleep(0.001)
            assert bool((values == version).all())
            seen, before = seen + 1, version
    finally:
        over.set()
        publisher.join(THREAD_WAIT_S)
    assert before > 10


class Puppet:
    """An actor that does what it is told: `step` is called for every segment."""

    def __init__(self, step):
        self.step = step
        self.algorithm = self
        self.env = self
        self.network = nn.Linear(2, 3)
        self.device = CPU
        self.explore = torch.zeros(1)
        self.stopped = False
        self.env_s = self.inference_s = self.transfer_s = 0.0
        self.closed = 0
        self.asked = []

    @property
    def times(self):
        return Times(self.env_s, self.inference_s, self.transfer_s)

    def collect(self, env_steps):
        self.asked.append(env_steps)
        return self.step(self)

    def prepare(self, segment):
        return segment

    def take_played(self):
        return Played(5, [FinishedEpisode(1.0, 5, False)], [], self.times, self.explore)

    def close(self):
        self.closed += 1


class Notes:
    """A memory that only notes what it is given."""

    def __init__(self, limiter=None):
        self.limiter = limiter or Limiter(None, 0, 0)
        self.added, self.cuts = [], []

    def add(self, segment, writer):
        self.added.append((writer, segment))

    def cut(self, writer):
        self.cuts.append(writer)


def play(actor):
    time.sleep(0.001)
    return "rows"


def a_memory():
    kind = Layout(torch.empty(1, device="meta"), torch.empty((), device="meta"), {})
    chance, limiter = Uniform(1, 10), Limiter(None, 0, 0)
    return Replay(Ring(kind, 1, 10), Transitions(1, 0.9), chance, limiter, 4, 0, CPU)


class Scene:
    """A actors of puppets, ended with the test."""

    def __init__(self, step=play, count=2, restarts=3, memory=None, make=None):
        self.memory = memory or Notes()
        self.told, self.made = [], []
        config = SimpleNamespace(actor_restarts=restarts, learner=SimpleNamespace(prefetch=1))
        learner = SimpleNamespace(
            algorithm=None,
            flat=SimpleNamespace(values=torch.zeros(9)),
            times=Times(),
            take_notices=list,
            updates=0,
            samples=0.0,
            input_bytes=None,
        )

        def make_actor(number, restart):
            self.made.append((number, restart, Puppet(step)))
            return make(number, restart) if make and restart else self.made[-1][2]

        def tell(line, details):
            self.told.append((line, details))

        self.actors = Threads(config, learner, self.memory, count, make_actor, tell)

    def __enter__(self):
        for thread in self.actors.threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self.actors.close()

    def lines(self):
        return [line for line, _ in self.told]


def test_a_player_takes_the_newest_weights():
    player = ActorWithWeights(Puppet(play))
    weights = WeightStore(torch.arange(9.0))
    player.load(*weights.newest)
    assert player.version == 0
    assert player.actor.network.weight.flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert player.actor.network.bias.tolist() == [6, 7, 8]
    values = torch.full((9,), 3.0)
    weights.publish(values)
    values.fill_(-1)
    player.load(*weights.newest)
    assert player.version == 1
    assert player.actor.network.bias.tolist() == [3, 3, 3]


# ---------------------------------------------------------------- the actors


def test_everybody_plays_into_their_own_part_of_the_memory():
    with Scene(count=3) as scene:
        scene.actors.env_steps = 77
        assert eventually(lambda: {w for w, _ in scene.memory.added} == {0, 1, 2})
        assert {segment for _, segment in scene.memory.added} == {"rows"}
        assert eventually(lambda: all(77 in actor.asked for _, _, actor in scene.made))
        assert scene.actors.healthy() == 3
        with scene.actors.changed:
            for thread in scene.actors.threads:
                assert thread.tally.env_steps == 5 * thread.tally.segments
                assert len(thread.tally.episodes) == thread.tally.segments
    assert scene.actors.healthy() == 0
    assert [actor.closed for _, _, actor in scene.made] == [1, 1, 1]
    assert scene.told == []


def test_a_pause_stops_everybody_until_the_resume():
    with Scene(count=4) as scene:
        for _ in range(5):
            before = len(scene.memory.added)
            assert eventually(lambda n=before: len(scene.memory.added) > n + 8)
            scene.actors.pause()
            stands = len(scene.memory.added)
            playing = [len(actor.asked) for _, _, actor in scene.made]
            time.sleep(0.1)
            assert len(scene.memory.added) == stands
            assert [len(actor.asked) for _, _, actor in scene.made] == playing
            assert scene.actors.healthy() == 4
            scene.actors.resume()
        for writer in range(4):
            last = len(scene.memory.added)
            assert eventually(
                lambda n=last, w=writer: any(x == w for x, _ in scene.memory.added[n:])
            )


def test_a_pause_waits_for_the_segment_that_is_being_played():
    gate = threading.Event()

    def step(actor):
        gate.wait(THREAD_WAIT_S)
        return "rows"

    with Scene(step, count=1) as scene:
        assert eventually(lambda: scene.made[0][2].asked)
        pausing = in_background(scene.actors.pause)
        time.sleep(0.1)
        assert pausing.is_alive()
        gate.set()
        pausing.join(THREAD_WAIT_S)
        assert not pausing.is_alive()
        assert len(scene.memory.added) == 1


def test_a_pause_ends_when_the_last_who_plays_fails_for_good():
    gate = threading.Event()

    def step(actor):
        gate.wait(THREAD_WAIT_S)
        raise RuntimeError("broken")

    with Scene(step, count=1, restarts=0) as scene:
        assert eventually(lambda: scene.made[0][2].asked)
        pausing = in_background(scene.actors.pause)
        time.sleep(0.1)
        assert pausing.is_alive()
        gate.set()
        pausing.join(5)
        hangs = pausing.is_alive()
        scene.actors.resume()
        assert not hangs


def test_a_crew_pauses_and_stops_before_it_has_started():
    scene = Scene()
    scene.actors.pause()
    scene.actors.resume()
    scene.actors.close()
    assert scene.told == []


def stop_time(scene):
    start = time.monotonic()
    scene.actors.close()
    return time.monotonic() - start


def test_actors_that_wait_for_the_learner_stop():
    limiter = Limiter(1.0, 0, 10)
    limiter.note_inserted(1)
    limiter.note_inserted(1_000)
    with Scene(count=4, memory=Notes(limiter)) as scene:
        time.sleep(0.2)
        assert scene.memory.added == []
        assert stop_time(scene) < 2
        assert scene.actors.healthy() == 0
        assert scene.told == []
        assert all(thread.tally.wait_s > 0.1 for thread in scene.actors.threads)


def test_actors_that_wait_for_the_learner_go_on_when_it_has_learned():
    limiter = Limiter(1.0, 0, 10)
    limiter.note_inserted(1)
    limiter.note_inserted(11)
    with Scene(count=1, memory=Notes(limiter)) as scene:
        time.sleep(0.1)
        assert scene.memory.added == []
        limiter.note_sampled(1)
        assert eventually(lambda: scene.memory.added)


def test_actors_that_wait_for_the_learner_pause():
    limiter = Limiter(1.0, 0, 10)
    limiter.note_inserted(1)
    limiter.note_inserted(1_000)
    with Scene(count=2, memory=Notes(limiter)) as scene:
        pausing = in_background(scene.actors.pause)
        pausing.join(THREAD_WAIT_S)
        assert not pausing.is_alive()


def test_actors_in_the_middle_of_a_segment_stop():
    def step(actor):
        while not actor.stopped:
            time.sleep(0.005)
        raise Stopped

    with Scene(step, count=4) as scene:
        assert eventually(lambda: all(actor.asked for _, _, actor in scene.made))
        assert stop_time(scene) < 2
        assert scene.actors.healthy() == 0
        assert scene.memory.added == []
        assert scene.told == []
        assert [actor.closed for _, _, actor in scene.made] == [1, 1, 1, 1]


def test_paused_actors_stop():
    with Scene(count=3) as scene:
        scene.actors.pause()
        assert stop_time(scene) < 2
        assert scene.actors.healthy() == 0


def test_an_actor_that_hangs_is_told_of_and_left_behind():
    gate = threading.Event()
    with Scene(lambda actor: gate.wait(THREAD_WAIT_S), count=1) as scene:
        assert eventually(lambda: scene.made[0][2].asked)
        assert stop_time(scene) < 4
        assert scene.lines() == ["actor-0 did not stop within 2 s"]
        gate.set()
        scene.actors.threads[0].join(THREAD_WAIT_S)


# ---------------------------------------------------------------- failures


def test_a_failed_actor_is_logged_and_restarted():
    failing = {1}  # segments, counted over all of actor 0's lives

    def step(actor):
        if actor is scene.made[0][2] and len(actor.asked) in failing:
            raise ValueError("the floor is lava")
        return play(actor)

    scene = Scene(step, count=2)
    with scene:
        assert eventually(lambda: len(scene.made) == 3)
        assert scene.made[2][:2] == (0, 1)
        assert scene.made[0][2].closed == 1
        assert eventually(lambda: (0, "rows") in scene.memory.added)
        assert scene.memory.cuts == [0]
        assert scene.actors.healthy() == 2
        scene.actors.check()
        line, details = scene.told[0]
        assert line == "actor 0 failed: the floor is lava"
        assert "Traceback" in details
        assert "ValueError" in details
        assert scene.lines()[1] == "actor 0 restarted (1 of at most 3 times)"
        assert scene.actors.threads[0].player.actor is scene.made[2][2]
        assert scene.actors.threads[0].player.version == 0  # it took the weights that there are


def test_an_actor_is_restarted_at_most_so_often():
    def step(actor):
        if actor in [actor for number, _, actor in scene.made if number == 1]:
            raise ValueError("again")
        return play(actor)

    scene = Scene(step, count=2, restarts=2)
    with scene:
        assert eventually(lambda: scene.actors.threads[1].failure is not None)
        assert eventually(lambda: scene.actors.healthy() == 1)
        with pytest.raises(RunFailed) as raised:
            scene.actors.check()
        assert str(raised.value) == (
            "actor 1 failed 3 times, at last with: again; log.txt has the traceback"
        )
        assert [made[:2] for made in scene.made] == [(0, 0), (1, 0), (1, 1), (1, 2)]
        assert scene.memory.cuts == [1, 1]
        assert scene.lines().count("actor 1 failed: again") == 3
        before = len(scene.memory.added)
        assert eventually(lambda: len(scene.memory.added) > before)  # the other one plays on
    assert [actor.closed for _, _, actor in scene.made] == [1, 1, 1, 1]


def test_an_actor_that_cannot_be_made_again_has_failed():
    def make(number, restart):
        raise OSError("no more processes")

    def step(actor):
        raise ValueError("first")

    with Scene(step, count=1, make=make) as scene:
        assert eventually(lambda: scene.actors.threads[0].failure is not None)
        with pytest.raises(RunFailed, match="no more processes"):
            scene.actors.check()


def test_an_environment_that_does_not_close_is_told_of():
    with Scene(count=1) as scene:
        actor = scene.made[0][2]

        def close():
            raise OSError("stuck")

        actor.close = close
    assert scene.lines() == ["actor 0: closing its environments failed: stuck"]


def test_times_do_not_run_back_when_an_actor_is_restarted():
    def step(actor):
        if actor is not scene.made[0][2]:
            return play(actor)
        actor.env_s += 1.0
        actor.inference_s += 2.0
        if len(actor.asked) == 3:
            raise ValueError("late")
        return "rows"

    scene = Scene(step, count=1)
    with scene:
        assert eventually(lambda: len(scene.made) == 2)
        assert eventually(lambda: scene.memory.cuts == [0])
        share = scene.actors.report(False, ProcessUsage()).workers[0]
    assert share.times.env_s >= 3.0
    assert share.times.inference_s >= 6.0


# ---------------------------------------------------------------- batches drawn ahead


class Batches:
    """A memory whose batches are numbers."""

    def __init__(self, most=10**9, failure=None):
        self.count, self.most, self.failure = 0, most, failure

    def wait_until_due(self, timeout):
        if self.count < self.most or self.failure:
            return True
        time.sleep(timeout)
        return False

    def sample(self):
        if self.count == self.most:
            raise self.failure
        self.count += 1
        return self.count


class Negated:
    """An algorithm that computes something of a batch ahead."""

    def precompute_targets(self, batch, coming=None):
        return -batch


def test_batches_come_in_order_and_not_too_far_ahead():
    memory = Batches()
    prefetch = Prefetch(memory, Negated(), depth=2)
    prefetch.start()
    try:
        assert eventually(lambda: memory.count == 3)  # two are ready, one waits for a place
        time.sleep(0.1)
        assert memory.count == 3
        assert [prefetch.get() for _ in range(20)] == [-n for n in range(1, 21)]
    finally:
        prefetch.stop()
    assert not prefetch.is_alive()


def test_without_a_batch_the_learner_gets_nothing():
    prefetch = Prefetch(Batches(most=1), Negated(), depth=2)
    prefetch.start()
    try:
        assert eventually(lambda: prefetch.get() == -1)
        assert prefetch.get() is None
    finally:
        prefetch.stop()
    assert not prefetch.is_alive()


def test_what_is_raised_while_drawing_reaches_the_learner():
    prefetch = Prefetch(Batches(most=2, failure=ValueError("torn")), Negated(), depth=5)
    prefetch.start()
    assert eventually(lambda: not prefetch.is_alive())
    assert [prefetch.get(), prefetch.get()] == [-1, -2]
    for _ in range(2):
        with pytest.raises(ValueError, match="torn"):
            prefetch.get()
    prefetch.stop()


def test_drawing_may_be_stopped_before_it_started():
    Prefetch(Batches(), Negated(), depth=1).stop()


# ---------------------------------------------------------------- whole runs

SMALL = {
    "capacity": 2_000,
    "warm_up": 200,
    "batch_size": 16,
    "rollout_steps": 8,
    "samples_per_insert": 2.0,
}


def small_run(environment, folder, algorithm="apex", algo=SMALL, **settings):
    console = io.StringIO()
    run = train(
        algorithm,
        environment,
        backend="threads",
        actors=2,
        envs=2,
        env_steps=3_000,
        threads=1,
        algo=algo,
        net={"hidden": (16,)},
        runs_dir=folder,
        name="r",
        use_preset=False,
        console=console,
        **settings,
    )
    return run, console.getvalue()


def ours():
    """Threads that a run may have left behind."""
    return {
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(("actor-", "prefetch"))
    }


def test_a_small_run_in_threads(tmp_path):
    run, console = small_run("CartPole-v1", tmp_path)
    assert run.result["status"] == "finished"
    assert run.result["backend"] == "threads"
    assert run.result["env_steps"] >= 3_000
    assert run.result["updates"] > 0
    assert ours() == set()
    assert "threads x 2" in console
    rows = run.progress()
    for name in (
        "added_per_second",
        "sampled_per_second",
        "trained_per_second",
        "replay_fill",
        "replay_age_mean",
        "policy_lag_mean",
        "policy_lag_max",
        "wait_s",
        "epsilon",
        "actors_healthy",
    ):
        assert np.isfinite(rows[-1][name]), name
    assert rows[-1]["actors_healthy"] == 2
    assert rows[-1]["replay_fill"] == 1
    # 0.4^(1 + 7 i / 3) of environment i of 4
    ladder = [0.4 ** (1 + 7 * i / 3) for i in range(4)]
    assert rows[-1]["epsilon"] == pytest.approx(np.mean(ladder), rel=1e-4)
    # Samples per insert, from the end of the warm-up on; reset rows are rows.
    assert run.result["updates"] * 16 <= 2.0 * 3_000 * 1.3


def test_dqn_runs_in_threads_too(tmp_path):
    """Its epsilon falls with the steps of all actors."""
    algo = SMALL | {"epsilon_start": 1.0, "epsilon_end": 0.0, "epsilon_steps": 1_500}
    run, console = small_run(
        "CartPole-v1", tmp_path, algorithm="dqn", algo=algo, env={"time_limit": 5}
    )
    assert run.result["backend"] == "threads"
    assert run.result["updates"] > 0
    assert "threads x 2" in console
    assert run.progress()[-1]["epsilon"] == 0
    assert run.progress()[-1]["episode_truncated_share"] == 1
    assert ours() == set()


class Brittle(gymnasium.Wrapper):
    """CartPole that raises at its 500th step."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 500:
            raise RuntimeError("the pole broke")
        return super().step(action)


def test_a_run_survives_environments_that_fail(tmp_path):
    register_env("brittle", Brittle, replace=True)
    run, console = small_run("brittle", tmp_path, actor_restarts=50)
    assert run.result["status"] == "finished"
    assert run.result["env_steps"] >= 3_000
    assert ours() == set()
    log = (run.path / "log.txt").read_text()
    # Two actors of two environments each: 3,000 steps are three lives at least.
    for text in (log, console):
        assert "failed: " in text
        assert "the pole broke" in text
        assert "restarted (1 of at most 50 times)" in text
    assert "Traceback" in log
    assert "Traceback" not in console
    assert run.progress()[-1]["actors_healthy"] == 2


def test_a_run_ends_when_an_actor_fails_too_often(tmp_path):
    register_env("brittle", Brittle, replace=True)
    # Two environments each: at most 2,000 steps are played before the first actor fails.
    with pytest.raises(RunFailed, match=r"actor \d failed 1 times.*the pole broke"):
        small_run("brittle", tmp_path, actor_restarts=0)
    assert ours() == set()
    assert list((tmp_path / "r" / "checkpoints").iterdir())


# ---------------------------------------------------------------- who goes first


def niceness(thread):
    return os.getpriority(os.PRIO_PROCESS, thread)


class Helped(gymnasium.Wrapper):
    """CartPole with a thread that was there from its start, as native environments have them."""

    seen: ClassVar[list[tuple[int, int]]] = []
    """Priorities of the thread that steps and of the helper."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.over = threading.Event()
        self.helper = in_background(self.over.wait)

    def step(self, action):
        self.seen.append((niceness(threading.get_native_id()), niceness(self.helper.native_id)))
        return super().step(action)

    def close(self):
        self.over.set()
        super().close()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_actors_and_the_threads_of_their_environments_let_the_learner_go_first(tmp_path):
    own = niceness(threading.get_native_id())
    Helped.seen.clear()
    register_env("helped", Helped, replace=True)
    small_run("helped", tmp_path)
    later = min(own + 10, 19)
    assert set(Helped.seen) == {(later, later)}
    assert niceness(threading.get_native_id()) == own


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_threads_started_before_or_after_do_not_lower_priority():
    over = threading.Event()
    before = in_background(over.wait)
    with lower_priority_of_new_threads():
        meanwhile = in_background(over.wait)
    after = in_background(over.wait)
    own = niceness(threading.get_native_id())
    ranks = [niceness(thread.native_id) for thread in (before, meanwhile, after)]
    over.set()
    assert ranks == [own, min(own + 10, 19), own]
