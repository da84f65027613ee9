"""Connect to Ray and allot CPUs and GPUs to trials."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager

from rookery.backends.ray.cluster import cluster_now, connected
from rookery.config import from_values
from rookery.errors import missing_extra, require
from rookery.sweep.plan import SweepOptions
from rookery.sweep.records import SweepSpec, TrialResources

OBJECT_STORE_BYTES = 100 * 2**20
"""Size of a local Ray's object store: trials exchange numbers, not arrays."""
TUNE_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
}
"""Variables that keep Tune from printing, from changing directory and from writing its own logs."""


def require_tune() -> None:
    """Raise BadInput unless Ray Tune is installed."""
    if any(importlib.util.find_spec(name) is None for name in ("ray", "pandas", "pyarrow")):
        raise missing_extra("sweep", "sweep")


@contextmanager
def connect() -> Iterator[None]:
    """Connect to the cluster at RAY_ADDRESS, or start Ray on this machine, while the body runs."""
    for name, value in TUNE_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with connected("sweep", 1, object_store_memory=OBJECT_STORE_BYTES):
        yield


def trial_resources(spec: SweepSpec, options: SweepOptions) -> TrialResources:
    """Return the resources of one trial; raise BadInput if no machine of the cluster has them."""
    config, there = from_values(spec.config, {}), cluster_now()
    most = there.largest
    actors = 1 if config.actors == "auto" else config.actors
    wanted = spec.seeds * actors * (config.threads or 1)
    cpus = min(float(wanted), most["CPU"]) if options.cpus is None else options.cpus
    for name, asked in (("CPU", cpus), ("GPU", options.gpus)):
        require(
            asked <= most.get(name, 0.0),
            f"{name.lower()}s: a trial asks for {asked:g} {name}s, the largest machine has"
            f" {most.get(name, 0.0):g}",
        )
    gpus = [there.amount("GPU") // options.gpus] if options.gpus else []
    room = [there.amount("CPU") // cpus, *gpus]
    concurrent = options.concurrent or max(1, int(min(room)))
    return TrialResources(cpus=cpus, gpus=options.gpus, concurrent=concurrent)
