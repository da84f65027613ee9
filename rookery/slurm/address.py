"""Where the head of a job is to be met: python -m rookery.slurm.address prints ADDRESS:PORT."""

from __future__ import annotations

import os
import socket

from rookery.runtime.slurm import address_of


def own_address() -> str:
    """The address of the node this runs on."""
    return address_of(os.environ.get("SLURMD_NODENAME") or socket.gethostname())


def free_port(address: str) -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def listens(address: str) -> bool:
    """Whether somebody takes connections there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    here = own_address()
    print(f"{here}:{free_port(here)}")
