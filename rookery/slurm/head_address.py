"""python -m rookery.slurm.head_address prints the ADDRESS:PORT of a job's Ray head."""

from __future__ import annotations

import os
import socket

from rookery.backends.ranks.launch import free_port
from rookery.backends.ranks.slurm import address_of

LOOPBACK_NETWORK = ("127.0.0.1", "127.0.1.1")
"""Addresses that a machine's own name often resolves to on that machine."""


def own_address() -> str:
    """Return the address at which other nodes reach this one."""
    address = address_of(os.environ.get("SLURMD_NODENAME") or socket.gethostname())
    if address not in LOOPBACK_NETWORK:
        return address
    # The address from which connections to other machines are made: 192.0.2.1 is reserved for
    # documentation (RFC 5737), and connecting a UDP socket sends nothing.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def is_listening(address: str) -> bool:
    """True if something accepts connections at the address."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    here = own_address()
    print(f"{here}:{free_port(here)}")
