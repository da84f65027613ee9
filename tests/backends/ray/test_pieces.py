"""Parts of the backend ray that need no cluster."""

import dataclasses

import pytest
import torch
from scenes import CPU

from rookery.backends.base import ProcessUsage
from rookery.backends.ray.cluster import Cluster, actors_for, check_resources, needs_of
from rookery.backends.ray.messages import (
    Origin,
    ReplayStatus,
    SegmentInfo,
    WorkerPlace,
    from_arrays,
    join_segments,
    to_arrays,
)
from rookery.backends.ray.slots import ActorSlot, ReplayStatistics, status_row, status_table
from rookery.config import RayConfig, default_config
from rookery.data.steps import FinishedEpisode, Segment, Steps
from rookery.errors import BadInput
from rookery.learning.actor import Played, Times
from rookery.memory.budget import share_of_capacity


def segment_of(rows, lanes, value):
    def full(*shape):
        return torch.full(shape, float(value))

    steps = Steps(
        obs={"a": full(rows, lanes, 3)},
        action=full(rows, lanes).long(),
        reward=full(rows, lanes),
        discount=full(rows, lanes),
        mask=torch.ones(rows, lanes),
        extra={"value": full(rows, lanes)},
    )
    return Segment(steps, {"a": full(lanes, 3)}, (full(lanes, 2),), (full(lanes, 2),), full(lanes))


def test_segments_stand_side_by_side_and_short_ones_are_masked():
    both = join_segments([segment_of(2, 1, 5), segment_of(4, 2, 7)])
    assert both.steps.mask.tolist() == [[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 1, 1]]
    assert both.steps.reward.tolist() == [[5, 7, 7], [5, 7, 7], [0, 7, 7], [0, 7, 7]]
    assert both.steps.obs["a"].shape == (4, 3, 3)
    assert both.steps.action.dtype == torch.int64
    assert both.next_obs["a"][:, 0].tolist() == [5, 7, 7]
    assert both.state[0].shape == (3, 2)
    assert both.reward.tolist() == [5, 7, 7]


def test_a_segment_alone_is_not_copied():
    segment = segment_of(2, 1, 5)
    assert join_segments([segment]) is segment


def test_arrays_travel_without_a_copy_and_without_a_warning(recwarn):
    arrays = to_arrays(segment_of(2, 1, 5))
    frozen = arrays.steps.reward
    frozen.flags.writeable = False
    tensors = from_arrays(arrays, CPU)
    assert tensors.steps.reward.data_ptr() == frozen.ctypes.data
    assert not recwarn.list


def on_ray(algorithm, **ray):
    config = dataclasses.replace(default_config(algorithm, "CartPole-v1"), backend="ray")
    return dataclasses.replace(config, ray=RayConfig(**ray))


@pytest.mark.parametrize(
    ("algorithm", "gpus", "ray", "learner"),
    [
        ("ppo", 0, {}, {"CPU": 0, "GPU": 0}),
        ("apex", 0, {}, {"CPU": 1, "GPU": 0}),
        ("ppo", 2, {}, {"CPU": 0, "GPU": 1}),
        ("ppo", 2, {"learner_gpus": 0.5, "learner_cpus": 4}, {"CPU": 4, "GPU": 0.5}),
        ("ppo", 0, {"learner_resource": "brain"}, {"CPU": 0, "GPU": 0, "brain": 0.001}),
    ],
)
def test_what_a_learner_asks_for(algorithm, gpus, ray, learner):
    assert needs_of(on_ray(algorithm, **ray), gpus).learner == learner


@pytest.mark.parametrize(
    ("algorithm", "ray", "cpus", "actors"),
    [
        ("ppo", {}, 8, 8),
        ("apex", {}, 8, 7),
        ("ppo", {"actor_cpus": 0.5}, 8, 16),
        ("ppo", {"actor_cpus": 3}, 8, 2),
        ("apex", {}, 1, 1),
    ],
)
def test_actors_that_fit(algorithm, ray, cpus, actors):
    config = on_ray(algorithm, **ray)
    assert actors_for(config, needs_of(config, 0), {"CPU": cpus}) == actors


def test_a_cluster_that_is_too_small_says_what_it_has():
    config = on_ray("apex")
    cluster = Cluster(2, {"CPU": 4.0}, {"CPU": 2.0}, {"CPU": 4.0})
    check_resources(config, needs_of(config, 0), 3, cluster)
    with pytest.raises(BadInput, match="they ask for 5 CPUs, and the cluster has 2 nodes with 4"):
        check_resources(config, needs_of(config, 0), 4, cluster)


def test_a_part_of_a_capacity():
    assert share_of_capacity(1001, 2) == 500
    assert share_of_capacity("8GB", 4) == "2000000.000KB"


def played(steps, episodes=(), env_s=0.0, cpu_s=0.0, memory_mb=0.0):
    times = Times(env_s=env_s, cpu_s=cpu_s)
    done = Played(steps, list(episodes), [], times, torch.tensor(0.1), memory_mb)
    return SegmentInfo(done, 3, {}, Origin("a", 0))


def test_a_slot_adds_up_the_work_of_all_its_processes():
    slot = ActorSlot(0, lambda restart: (object(), object()))
    slot.fill()
    slot.add(played(10, [FinishedEpisode(5.0, 10, False)], env_s=1.0, cpu_s=2.0), 0)
    slot.add(played(10, [FinishedEpisode(7.0, 10, True)], env_s=1.5, cpu_s=3.0), 0)
    slot.fill()
    slot.add(played(4, env_s=0.25, cpu_s=0.5), 0)
    assert slot.env_steps == 24
    assert slot.tally.all_times.env_s == 1.75
    assert slot.tally.all_times.cpu_s == 3.5
    assert slot.returns == [5, 7]


def test_memory_is_that_of_the_living_processes():
    slot = ActorSlot(0, lambda restart: (object(), object()))
    slot.fill()
    slot.add(played(10, memory_mb=300.0), 0)
    slot.add(played(10, memory_mb=310.0), 0)
    usage = ProcessUsage(seconds=8.0, cpu_s=2.0, memory_mb=100.0)
    assert slot.tally.take(Times(), False, usage).memory_mb == 410
    slot.fill()
    progress = slot.tally.take(Times(cpu_s=1.0), False, usage)
    assert (progress.memory_mb, progress.seconds, progress.times.cpu_s) == (100, 8, 3)
    memories = ReplayStatistics()
    empty = ReplayStatus(0, 0, 0, 0.0, 0.0, True)
    memories.statuses = {0: empty._replace(memory_mb=50.0), 1: empty._replace(memory_mb=70.0)}
    memories.lost = {0}
    assert memories.memory_mb == 70


def test_a_lost_memory_counts_for_what_it_did_only():
    replay_statistics = ReplayStatistics()
    assert replay_statistics.take_report(1.0) == {}
    replay_statistics.statuses[0] = ReplayStatus(100, 50, 40, 0.8, 10.0, True)
    replay_statistics.statuses[1] = ReplayStatus(100, 50, 40, 0.4, 20.0, True)
    report = replay_statistics.take_report(2.0)
    assert report["added_per_second"] == 100
    assert report["replay_fill"] == pytest.approx(0.6)
    replay_statistics.lost.add(0)
    replay_statistics.statuses[2] = ReplayStatus(10, 0, 0, 0.1, 0.0, True)
    report = replay_statistics.take_report(1.0)
    assert report["added_per_second"] == 10
    assert report["trained_per_second"] == 0
    assert report["replay_fill"] == pytest.approx(0.25)


def test_the_status_tells_of_many_actors_by_node():
    here, there = (WorkerPlace(node * 10, "host", 7, "cpu", 1) for node in "ab")
    slots = [ActorSlot(i, lambda restart: (None, None)) for i in range(20)]
    for slot in slots[:19]:
        slot.place = here if slot.number < 12 else there
        slot.add(played(5, [FinishedEpisode(float(slot.number), 5, False)]), 0)
    cluster = Cluster(2, {"CPU": 20.0}, {"CPU": 12.0}, {"CPU": 1.0})
    learner = status_row("learner 0", here, 1, "9 updates")
    text = status_table(slots, [learner], cluster)
    assert "19 of 20 actors play" in text
    assert "12 actors  host aaaaaa" in text
    assert "7 actors   host bbbbbb" in text
    assert "1 actors   -" in text
    assert "learner 0" in text
    assert "in use: 19 of 20 CPUs" in text
    assert all(len(line) < 120 for line in text.splitlines())
    assert "actor 3 " in status_table(slots[:4], [], cluster)
