"""What cannot be done on a cluster is told in one line, soon, and leaves nothing behind."""

import re
import socket
import sys

import pytest
from ray_runs import HELPERS

import rookery
from rookery.backends.ray import cluster
from rookery.errors import BadInput


def refused(folder, **settings):
    """The line that a run is refused with; no folder of it is left."""
    settings = {"algorithm": "ppo", "environment": "CartPole-v1", "backend": "ray"} | settings
    with pytest.raises(BadInput) as told:
        rookery.train(**settings, runs_dir=folder / "runs")
    assert not list((folder / "runs").glob("*"))
    assert "\n" not in str(told.value)
    return str(told.value)


@pytest.fixture
def listener():
    """A server that takes connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("ray://127.0.0.1:10001", "is that of a Ray client; give HOST:PORT of the head node"),
        ("127.0.0.1", "is not HOST:PORT"),
        ("no-such-host.invalid:6379", "no Ray answers at no-such-host.invalid:6379"),
    ],
)
def test_an_address_that_is_none(tmp_path, monkeypatch, address, line):
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert line in refused(tmp_path)


def test_nobody_at_the_address(tmp_path, monkeypatch):
    address = f"127.0.0.1:{closed_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert f"no Ray answers at {address}: Connection refused" in refused(tmp_path)


def test_somebody_else_at_the_address(tmp_path, monkeypatch, listener):
    monkeypatch.setenv("RAY_ADDRESS", listener)
    monkeypatch.setattr(cluster, "RAY_CONNECT_S", 0.2)
    assert f"no Ray answers at {listener}: waited 0.2 s for an answer" in refused(tmp_path)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"actors": 50},
            "actors=50, learners=1: they ask for 50 CPUs, and the cluster has 3 nodes with 5 CPUs",
        ),
        ({"ray": {"learner_gpus": 1}}, "ray.learner_gpus: a learner asks for 1 GPU, and no node"),
        ({"device": "cuda"}, "ray.learner_gpus: a learner asks for 1 GPU, and no node has more"),
        ({"ray": {"actor_cpus": 3}}, "an actor asks for 3 CPU, and no node has more than 2"),
        ({"ray": {"learner_resource": "brain"}}, "ray.learner_resource=brain"),
        ({"ray": {"actor_cpus": 0}}, "actors=auto needs ray.actor_cpus or ray.actor_gpus above 0"),
        ({"algorithm": "vpg", "actors": 3, "algo": {"episodes": 2}}, "less than one for each of 3"),
        ({"algorithm": "apex", "algo": {"capacity": 10}}, "algo.capacity=10"),
        ({"algorithm": "apex", "actors": 1, "ray": {"replay_shards": 2}}, "ray.replay_shards=2"),
    ],
)
def test_more_than_there_is(joined_cluster, tmp_path, settings, line):
    assert line in refused(tmp_path, **settings)


def test_a_module_that_workers_cannot_import(joined_cluster, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(HELPERS))
    monkeypatch.setenv("ROOKERY_TEST_DRIVER", "1")
    line = refused(tmp_path, environment="driver_only:Only", actors=1)
    assert "actor 0 could not start" in line
    assert "the simulator is not installed on this node" in line
    sys.modules.pop("driver_only", None)


def test_a_wait_for_others_has_a_limit(joined_cluster, tmp_path):
    import ray

    ray.init(address=joined_cluster.address, log_to_driver=False)
    try:
        hog = ray.util.placement_group([{"CPU": cpus} for cpus in (1, 2, 2)])
        ray.get(hog.ready())
        line = refused(tmp_path, actors=1, ray={"start_seconds": 9})
        # On a busy machine the learner itself may not be ready in time.
        waiting = r"waiting for (1 of 1 actors|the learner)"
        assert re.search(rf"timed out after 9 s \(ray.start_seconds\) {waiting}", line)
        assert "of which 0 CPUs are free" in line
    finally:
        ray.shutdown()


def test_settings_that_disagree(tmp_path):
    assert "learners=2 needs --backend ray" in refused(tmp_path, backend="serial", learners=2)
    assert "learners=3 must be at most actors=2" in refused(tmp_path, learners=3, actors=2)
    assert "ray.actor_gpus must be a whole number" in refused(tmp_path, ray={"actor_gpus": 1.5})
