"""Nodes and addresses of a Slurm job step, from its environment."""

from __future__ import annotations

import os
import re
import socket
import subprocess

from rookery.errors import require


def node_of_rank_0() -> str:
    """Return the first node of the step; in a heterogeneous one, the first of its first group."""
    require(
        os.environ.get("SLURM_DISTRIBUTION") != "arbitrary",
        "ranks: the node of rank 0 is unknown with srun -m arbitrary; set MASTER_ADDR to it",
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
    """Expand a list of nodes as Slurm writes it, such as "a[07-09,12],b"."""
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
    """Return the address of a node: by name, else as Slurm knows it, else that of the node on which
    srun was called."""
    try:
        return socket.gethostbyname(node)
    except OSError:
        launched_on = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
        return known_address(node) or launched_on


def known_address(node: str) -> str | None:
    """Return the address by which Slurm reaches a node; None if scontrol does not say."""
    command = ["scontrol", "--oneliner", "show", "node", node]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\bNodeAddr=(\S+)", output)
    return found and found[1]
