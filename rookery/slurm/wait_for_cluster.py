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

from rookery.backends.ray.cluster import require_ray
from rookery.errors import RookeryError
from rookery.slurm.head_address import is_listening

PRINT_S = 10.0
"""Seconds between lines that say what is awaited."""


@dataclass
class TimedWait:
    """A wait with a time limit that prints what it waits for."""

    seconds: float
    what: str = ""
    began: float = field(default_factory=time.monotonic)
    said: float = -PRINT_S

    def pause(self, what: str) -> None:
        """Wait half a second more for `what`."""
        passed = time.monotonic() - self.began
        if what != self.what or passed >= self.said + PRINT_S:
            print(f"waiting {passed:.0f} of {self.seconds:.0f} s for {what}", flush=True)
            self.said = passed
        self.what = what
        time.sleep(0.5)

    def exit_at_limit(self) -> None:
        """End the program when the time is up, even within a call to Ray with its long timeouts."""
        while time.monotonic() < self.began + self.seconds:
            time.sleep(0.1)
        end = f"rookery: timed out after {self.seconds:.0f} s waiting for {self.what}"
        print(end, file=sys.stderr, flush=True)
        os._exit(1)


def main(args: Sequence[str]) -> None:
    """Return when the expected number of nodes has joined the cluster."""
    address, nodes, seconds = args
    require_ray("a Ray cluster")
    wait = TimedWait(float(seconds))
    threading.Thread(target=wait.exit_at_limit, daemon=True).start()
    while not is_listening(address):
        wait.pause(f"the head of the Ray cluster to listen at {address}")
    wait.what = head = f"the head of the Ray cluster at {address} to answer"
    import ray

    while not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray has no common class for these
            wait.pause(f"{head}: {str(error).strip().splitlines()[0]}")
    while (joined := sum(node["Alive"] for node in ray.nodes())) < int(nodes):
        wait.pause(f"nodes to join the Ray cluster: {joined} of {nodes} joined")
    wait.seconds = math.inf
    print(f"the Ray cluster at {address} has {joined} nodes", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RookeryError as error:
        sys.exit(f"rookery: {error}")
