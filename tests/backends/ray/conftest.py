"""Ray clusters on this machine's loopback, for as long as the tests run."""

from __future__ import annotations

import pytest

from rookery.backends.ray.cluster import on_loopback

with on_loopback():
    pytest.importorskip("ray", reason="the extra `ray` is not installed")

from in_process import Here
from ray_runs import Command, cluster_of

from rookery.backends.factory import make_driver
from rookery.backends.ray import workers
from rookery.config import resolve


@pytest.fixture(scope="package")
def shared_cluster():
    """Three nodes that no test harms."""
    with cluster_of(1, 2, 2) as nodes:
        yield nodes


@pytest.fixture
def joined_cluster(shared_cluster, monkeypatch):
    """Runs of this test join the shared cluster."""
    monkeypatch.setenv("RAY_ADDRESS", shared_cluster.address)
    return shared_cluster


@pytest.fixture
def drive(monkeypatch):
    """Starts the driver of a run whose workers are all in this process; returns the stand-in for
    Ray, the driver, and the lines it tells."""
    monkeypatch.setattr(workers, "LEARN_S", 0.0)
    started = []

    def start(algorithm, environment, cpus=64, **settings):
        here = Here(monkeypatch)
        here.cpus = cpus
        settings["backend"] = "ray"
        config = resolve(algorithm, environment, settings, use_preset=False).config
        told = []
        driver = make_driver(config, None, lambda line, more: told.append(line))
        started.append(driver)
        return here, driver, told

    yield start
    for driver in started:
        driver.close()


@pytest.fixture
def command(tmp_path):
    """Starts `rookery train` with the arguments given; it never outlives the test."""
    started = []

    def start(*args, address=None):
        started.append(Command(tmp_path, *args, address=address))
        return started[-1]

    yield start
    for each in started:
        each.end()
