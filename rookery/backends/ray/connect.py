"""Connect to a Ray cluster, or start one on this machine."""

from __future__ import annotations

import importlib.util
import math
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from rookery.errors import BadInput, missing_extra, require
from rookery.machine import cores

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
    with ExitStack() as starting:
        if address is None:
            starting.enter_context(on_loopback())
        else:
            check_answers(address)
        import ray

        join_segments = ray.is_initialized()
        if not join_segments:
            local["num_cpus"] = max(cores(), math.ceil(cpus))
            init(address, local)
    try:
        yield
    finally:
        if not join_segments:
            ray.shutdown()


def require_ray(what: str) -> None:
    """Raise BadInput unless Ray is installed."""
    if importlib.util.find_spec("ray") is None:
        raise missing_extra(what, "ray")


def init(address: str | None, local: dict[str, Any]) -> None:
    """Join the cluster, or start one on this machine."""
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} | local
    try:
        ray.init(address or "local", **options)
    except Exception as error:
        raise no_ray(address or "local", " ".join(str(error).split())) from error


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
