"""Ray clusters of several nodes on this machine, and runs on them that are watched."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rookery.runs.files import read_rows

HELPERS = Path(__file__).parent / "helpers"


@contextlib.contextmanager
def cluster_of(*cpus, **resources):
    """A Ray cluster with a node for every number of CPUs; the first is the head."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": cpus[0], "include_dashboard": False, **resources},
    )
    try:
        for count in cpus[1:]:
            nodes.add_node(num_cpus=count)
        yield nodes
    finally:
        nodes.shutdown()


class Command:
    """`rookery train` in a process of its own, watched while it runs."""

    def __init__(self, folder, *args, address=None):
        self.run = folder / "run"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path])}
        environment.pop("RAY_ADDRESS", None)
        if address is not None:
            environment["RAY_ADDRESS"] = address
            # Or Ray would look for the cluster at the machine's outer address.
            environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        self.output = folder / "output.txt"
        with self.output.open("w") as file:
            arguments = [*map(str, args), "--runs-dir", str(folder), "--name", "run"]
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rookery", "train", *arguments, "--backend", "ray"],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
            )

    def rows(self):
        return read_rows(self.run / "progress.csv")

    def log(self):
        path = self.run / "log.txt"
        return path.read_text() if path.exists() else ""

    def until(self, condition, seconds=90):
        """Wait for something to be true of the run."""
        deadline = time.monotonic() + seconds
        while not condition(self):
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text() + self.log()
            time.sleep(0.1)

    def workers(self):
        """Process ids by worker, from the newest status."""
        self.until(lambda run: (run.run / "status.txt").exists())
        found = {}
        for line in (self.run / "status.txt").read_text().splitlines():
            if " pid " in line:
                name, _, rest = line.partition("  ")
                found[name.strip()] = int(rest.partition(" pid ")[2].split()[0])
        return found

    def result(self, seconds=120):
        """How the run ended."""
        status = self.process.wait(seconds)
        assert status == 0, self.output.read_text() + self.log()
        return json.loads((self.run / "result.json").read_text())

    def stop(self, seconds=60):
        """Ask the run to save and leave."""
        (self.run / "stop").touch()
        assert self.process.wait(seconds) == 130, self.output.read_text() + self.log()

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
