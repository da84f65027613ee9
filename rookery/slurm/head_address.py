"""python -m rookery.slurm.head_address prints the ADDRESS:PORT of a job's Ray head."""

from __future__ import annotations

import os
import socket

from rookery.backends.ranks.launch import free_port
from rookery.backends.ranks.slurm import address_of

LOOPBACK = ("127.0.0.1", "127.0.1.1")
"""What a machine's own name often leads to, there alone."""


def own_address() -> str:
    """The address at which other nodes reach the one this runs on."""
    address = address_of(os.environ.get("SLURMD_NODENAME") or socket.gethostname())
    return outward_address() if address in LOOPBACK else address


def outward_address() -> str:
    """The address that connections from here come from."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # for documentation only; a datagram needs no answer
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


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
