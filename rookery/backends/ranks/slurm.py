"""What Slurm tells a step of itself."""

from __future__ import annotations

import os
import re
import socket
import subprocess

from rookery.errors import require


def node_of_rank_0() -> str:
    """The first node of the step; in a heterogeneous one, the first of its first group."""
    require(
        os.environ.get("SLURM_DISTRIBUTION") != "arbitrary",
        "ranks: srun -m arbitrary does not tell where rank 0 is; set MASTER_ADDR to its node",
    )
    step = nodes_named(os.environ.get("SLURM_STEP_NODELIST", "localhost"))
    groups = [
        os.environ.get(f"SLURM_JOB_NODELIST_{kind}_GROUP_{group}", "")
        for group in range(int(os.environ.get("SLURM_HET_SIZE", "0")))
        for kind in ("HET", "PACK")
    ]
    grouped = [node for names in groups for node in nodes_named(names) if node in step]
    return (grouped or step)[0]


def nodes_named(names: str) -> list[str]:
    """The nodes that Slurm writes as "a[07-09,12],b"."""
    nodes = []
    for item in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names):
        head, _, rest = item.partition("[")
        spans, _, tail = rest.partition("]")
        for span in spans.split(","):
            low, _, high = span.partition("-")
            numbers = range(int(low), int(high or low) + 1) if low else ()
            middles = [f"{number:0{len(low)}}" for number in numbers] or [""]
            nodes += [
                head + middle + end for middle in middles for end in nodes_named(tail) or [""]
            ]
    return nodes


def address_of(node: str) -> str:
    """The address of a node's name, or the one Slurm knows for it, or where that cannot be asked
    the address srun was called on."""
    try:
        return socket.gethostbyname(node)
    except OSError:
        launched_on = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
        return known_address(node) or launched_on


def known_address(node: str) -> str | None:
    """The address by which Slurm reaches a node; None if it does not tell."""
    command = ["scontrol", "--oneliner", "show", "node", node]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\bNodeAddr=(\S+)", told)
    return found and found[1]
