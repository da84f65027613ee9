"""The resources that a run needs, and those of the Ray cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from rookery.algorithms import algorithm_class
from rookery.config import RunConfig
from rookery.errors import require


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
