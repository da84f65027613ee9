"""Wait for a Ray cluster: python -m rookery.slurm.wait_for_cluster ADDRESS:PORT NODES SECONDS"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rookery.backends.ray.connect import require_ray
from rookery.errors import RookeryError
from rookery.slurm.head_address import listens

SAY_S = 10.0
"""How often it says what it waits for."""


@dataclass
class Wait:
    """A wait that has a limit and says what it waits for."""

    seconds: float
    what: str = ""
    began: float = field(default_factory=time.monotonic)
    said: float = -SAY_S

    def go_on(self, what: str) -> None:
        """Wait a moment more."""
        passed = time.monotonic() - self.began
        if what != self.what or passed >= self.said + SAY_S:
            print(f"waiting {passed:.0f} of {self.seconds:.0f} s for {what}", flush=True)
            self.said = passed
        self.what = what
        time.sleep(0.5)

    def watch(self) -> None:
        """End the program when the time is up, whatever it is doing: Ray's own waits are long."""
        while time.monotonic() < self.began + self.seconds:
            time.sleep(0.1)
        print(f"rookery: waited {self.seconds:.0f} s in vain for {self.what}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)


def main(args: Sequence[str]) -> None:
    """Return when as many nodes have joined the cluster as there should be."""
    address, nodes, seconds = args
    require_ray("a Ray cluster")
    wait = Wait(float(seconds))
    threading.Thread(target=wait.watch, daemon=True).start()
    while not listens(address):
        wait.go_on(f"the head of the Ray cluster to listen at {address}")
    join(address, wait)
    import ray

    while (joined := sum(node["Alive"] for node in ray.nodes())) < int(nodes):
        wait.go_on(f"nodes to join the Ray cluster: {joined} of {nodes} are there")
    wait.seconds = math.inf
    print(f"the Ray cluster at {address} has {joined} nodes", flush=True)


def join(address: str, wait: Wait) -> None:
    """Connect to the cluster; it may refuse while its head is not quite up."""
    wait.what = f"the head of the Ray cluster at {address} to answer"
    import ray

    while not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray has no common class for these
            told = str(error).strip().splitlines()
            wait.go_on(f"the head of the Ray cluster at {address} to answer: {told[0]}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RookeryError as error:
        sys.exit(f"rookery: {error}")
