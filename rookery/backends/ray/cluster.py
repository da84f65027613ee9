"""Ray clusters: connecting to one or starting one here, its resources, and those a run needs."""

from __future__ import annotations

import importlib.util
import math
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from rookery.errors import BadInput, missing_extra, require
from rookery.machine import cores

if TYPE_CHECKING:
    from rookery.config import RunConfig

RAY_CONNECT_S = 10.0
"""Time limit for a cluster's answer."""
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""An empty SETTINGS frame of HTTP/2; the fourth byte is its kind."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS
"""First bytes of a gRPC client; a gRPC server such as Ray's answers with a SETTINGS frame."""


@contextmanager
def connected(what: str, cpus: float, **local: Any) -> Iterator[None]:
    """Connect to Ray while the body runs: to the one this process has joined, the one at
    RAY_ADDRESS, or a new one on this machine's loopback with at least `cpus` CPUs and the options
    `local`."""
    require_ray(what)
    address = os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    with ExitStack() as starting:
        if address is None:
            starting.enter_context(on_loopback())
            options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} | local
            options["num_cpus"] = max(cores(), math.ceil(cpus))
        else:
            check_answers(address)
        import ray

        joined = ray.is_initialized()
        if not joined:
            try:
                ray.init(address or "local", **options)
            except Exception as error:
                raise no_ray(address or "local", " ".join(str(error).split())) from error
    try:
        yield
    finally:
        if not joined:
            ray.shutdown()


def require_ray(what: str) -> None:
    """Raise BadInput unless Ray is installed."""
    if importlib.util.find_spec("ray") is None:
        raise missing_extra(what, "ray")


@contextmanager
def on_loopback() -> Iterator[None]:
    """Make Ray, if imported and started in the body, listen on loopback instead of the machine's
    external address."""
    name = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    before = os.environ.get(name)
    os.environ[name] = before or "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


def check_answers(address: str) -> None:
    """Raise unless a server like Ray's answers at HOST:PORT. Ray itself would try for minutes."""
    if address in ("auto", "local"):
        return
    require(
        "://" not in address,
        f'ray-address: "{address}" is that of a Ray client; give HOST:PORT of the head node',
    )
    host, _, port = address.rpartition(":")
    require(host and port.isdigit(), f'ray-address: "{address}" is not HOST:PORT')
    try:
        with socket.create_connection((host, int(port)), timeout=RAY_CONNECT_S) as server:
            server.sendall(GREETING)
            answer = server.recv(len(SETTINGS))
    except TimeoutError:
        raise no_ray(address, f"waited {RAY_CONNECT_S:g} s for an answer") from None
    except (OSError, OverflowError) as error:
        raise no_ray(address, getattr(error, "strerror", None) or str(error)) from None
    # With TLS the greeting is no greeting, and Ray has to find out for itself.
    if answer[3:4] != SETTINGS[3:4] and os.environ.get("RAY_USE_TLS", "0") == "0":
        raise no_ray(address, "what answers there is something else")


def no_ray(address: str, why: str) -> BadInput:
    """Return the error for an address where no cluster answers."""
    return BadInput(f"ray-address: no Ray answers at {address}: {why}")


class Needs(NamedTuple):
    """Resources of each kind of worker."""

    actor: dict[str, float]
    learner: dict[str, float]
    learners: int

    def amount(self, name: str, actors: int) -> float:
        """Return what the learners and `actors` actors need together."""
        return actors * self.actor[name] + self.learners * self.learner[name]

    def options(self, worker: str) -> dict[str, Any]:
        """Return the resources of a worker as options for Ray."""
        asked = dict(self.actor if worker == "actor" else self.learner)
        cpus, gpus = asked.pop("CPU"), asked.pop("GPU")
        return {"num_cpus": cpus, "num_gpus": gpus, "resources": asked}


class Cluster(NamedTuple):
    """Nodes and resources of a cluster."""

    nodes: int
    total: dict[str, float]
    largest: dict[str, float]
    """The most that a single node has."""
    free: dict[str, float]

    @property
    def nodes_text(self) -> str:
        return "1 node" if self.nodes == 1 else f"{self.nodes} nodes"

    def describe(self) -> str:
        cpus, gpus = self.amount("CPU"), self.amount("GPU")
        return f"{self.nodes_text} with {cpus:g} CPUs and {gpus:g} GPUs"

    def amount(self, name: str) -> float:
        return self.total.get(name, 0.0)


def needs_of(config: RunConfig, gpus_there: float) -> Needs:
    """Return what the workers of a run need; each learner gets a GPU if there are enough."""
    from rookery.algorithms import algorithm_class

    ray = config.ray
    cpus, gpus = ray.learner_cpus, ray.learner_gpus
    if cpus is None:
        cpus = 1.0 if algorithm_class(config.algorithm).asynchronous else 0.0
    if gpus is None:
        wants = config.device.startswith("cuda")
        may = config.device == "auto" and gpus_there >= config.learners
        gpus = 1.0 if wants or may else 0.0
    learner = {"CPU": cpus, "GPU": gpus}
    if ray.learner_resource is not None:
        # A trace of it: enough to be sent to a node that has it.
        learner[ray.learner_resource] = 0.001
    return Needs({"CPU": ray.actor_cpus, "GPU": ray.actor_gpus}, learner, config.learners)


def cluster_now() -> Cluster:
    """Return the cluster's resources as Ray reports them now."""
    import ray

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    names = {name for node in alive for name in node}
    return Cluster(
        len(alive),
        {name: sum(node.get(name, 0.0) for node in alive) for name in names},
        {name: max(node.get(name, 0.0) for node in alive) for name in names},
        ray.available_resources(),
    )


def actors_for(config: RunConfig, needs: Needs, there: Mapping[str, float]) -> int:
    """Return the number of actors asked for, or that fit beside the learners."""
    if config.actors != "auto":
        return config.actors
    fits = []
    for name, each in needs.actor.items():
        if each > 0:
            left = there.get(name, 0.0) - needs.learners * needs.learner.get(name, 0.0)
            fits.append(math.floor(left / each + 1e-9))
    require(fits, "actors=auto needs ray.actor_cpus or ray.actor_gpus above 0")
    return max(config.learners, min(fits))


def check_resources(config: RunConfig, needs: Needs, actors: int, cluster: Cluster) -> None:
    """Raise BadInput unless the cluster has the resources, free or in use."""
    for worker, each, setting in (
        ("an actor", needs.actor, "actor"),
        ("a learner", needs.learner, "learner"),
    ):
        for name, amount in each.items():
            most = cluster.largest.get(name, 0.0)
            what = {"CPU": f"ray.{setting}_cpus", "GPU": f"ray.{setting}_gpus"}
            require(
                amount <= most,
                f"{what.get(name, f'ray.{setting}_resource={name}')}: {worker} asks for {amount:g}"
                f" {name}, and no node has more than {most:g}; there are {cluster.describe()}",
            )
    for name in ("CPU", "GPU"):
        asked = needs.amount(name, actors)
        require(
            asked <= cluster.amount(name) + 1e-9,
            f"actors={actors}, learners={config.learners}: they ask for {asked:g} {name}s, and the"
            f" cluster has {cluster.describe()}; lower --actors, or use auto",
        )
