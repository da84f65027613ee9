"""Joining a Ray cluster, or starting one on this machine."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rookery.config import from_values
from rookery.errors import BadInput, missing_extra, require
from rookery.runs.run import machine
from rookery.sweep.plan import Options
from rookery.sweep.records import Places, Spec

CONNECT_S = 10.0
"""How long a cluster may take to answer."""
OBJECT_STORE_BYTES = 100 * 2**20
"""Shared memory of a cluster on this machine: trials exchange numbers, no arrays."""
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a client begins; a gRPC server, such as Ray's, answers with its settings."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
}
"""What keeps Ray from telling anybody, printing, moving elsewhere, and keeping files of its own."""


def require_ray() -> None:
    """BadInput if Ray with Tune is not there."""
    if any(importlib.util.find_spec(name) is None for name in ("ray", "pandas", "pyarrow")):
        raise missing_extra("sweep", "sweep")


@contextmanager
def connect(address: str | None, cpus: float | None) -> Iterator[None]:
    """Ray while the body runs: that at `address`, or one of its own on this machine's loopback,
    with so many CPUs (none: one a core)."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if address is None:
        # Without it Ray listens on the machine's outer address.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    else:
        check_answers(address)
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None:
            ray.init(
                "local",
                num_cpus=int(machine()["cores"] if cpus is None else cpus),
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _node_ip_address="127.0.0.1",
                **quiet,
            )
        else:
            ray.init(address, **quiet)
    except Exception as error:
        raise no_ray(address or "local", " ".join(str(error).split())) from error
    try:
        yield
    finally:
        ray.shutdown()


def share_out(spec: Spec, options: Options) -> Places:
    """What a trial takes of the cluster; BadInput if no machine of it has as much."""
    import ray

    config = from_values(spec.config, {})
    wanted = spec.seeds * (config.actors or 1) * (config.threads or 1)
    cpus = min(float(wanted), most_of("CPU")) if options.cpus is None else options.cpus
    for name, asked in (("CPU", cpus), ("GPU", options.gpus)):
        require(
            asked <= most_of(name),
            f"{name.lower()}s: a trial asks for {asked:g} {name}s, the largest machine has"
            f" {most_of(name):g}",
        )
    found = ray.cluster_resources()
    room = [found["CPU"] // cpus, *([found["GPU"] // options.gpus] if options.gpus else [])]
    concurrent = options.concurrent or max(1, int(min(room)))
    return Places(cpus=cpus, gpus=options.gpus, concurrent=concurrent)


def most_of(name: str) -> float:
    """The most CPUs or GPUs that one machine of the cluster has."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    return max((node["Resources"].get(name, 0.0) for node in alive), default=0.0)


def check_answers(address: str) -> None:
    """Raise unless a server like Ray's answers at HOST:PORT. Ray itself would try for minutes."""
    if address == "auto":
        return
    require(
        "://" not in address,
        f'ray-address: "{address}" is that of a Ray client; give HOST:PORT of the head node',
    )
    host, _, port = address.rpartition(":")
    require(host and port.isdigit(), f'ray-address: "{address}" is not HOST:PORT')
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_S) as server:
            server.sendall(HTTP2_GREETING)
            answer = server.recv(9)
    except TimeoutError:
        raise no_ray(address, f"waited {CONNECT_S:g} s for an answer") from None
    except (OSError, OverflowError) as error:
        raise no_ray(address, getattr(error, "strerror", None) or str(error)) from None
    settings_frame = 4
    speaks = len(answer) > 3 and answer[3] == settings_frame
    # With TLS the greeting is no greeting, and Ray has to find out for itself.
    if not speaks and os.environ.get("RAY_USE_TLS", "0") == "0":
        raise no_ray(address, "what answers there is something else")


def no_ray(address: str, why: str) -> BadInput:
    """The error for an address where no cluster answers."""
    return BadInput(f"ray-address: no Ray answers at {address}: {why}")
