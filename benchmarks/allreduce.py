"""Time a sum over ranks: one vector, one transport.

    python benchmarks/allreduce.py --transport mpi --floats 10_000
    rookery bench benchmarks/allreduce.yaml

Starts its own ranks on this machine, and prints one JSON object: the median of the calls in
microseconds, as rank 0 sees them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch

from rookery.backends.ranks import join as ranks
from rookery.backends.ranks.launch import MPI_AS_ROOT, free_port, mpirun
from rookery.processes import rank_place

CPU = torch.device("cpu")


def main() -> None:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--transport", choices=["mpi", "gloo"], required=True)
    parser.add_argument("--floats", type=lambda text: int(text.replace("_", "")), required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--calls", type=int, default=300)
    options = parser.parse_args()
    where = rank_place()
    if where is None:
        start(options.transport, options.ranks)
    else:
        measure(where, options)


def start(transport: str, count: int) -> None:
    """Run this program once a rank."""
    command = [sys.executable, *sys.argv]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if transport == "mpi":
        subprocess.run(mpirun(count) + command, env=environment | MPI_AS_ROOT, check=True)
        return
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            command,
            env=environment | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(count)
    ]
    sys.exit(max(process.wait() for process in processes))


def measure(where: ranks.RankPlace, options: argparse.Namespace) -> None:
    """Sum a vector again and again; rank 0 tells."""
    torch.set_num_threads(1)
    reducer = ranks.join(where, options.transport, CPU)
    vector = torch.ones(options.floats)
    times = []
    for _ in range(options.calls):
        vector.fill_(1.0)
        start = time.perf_counter()
        reducer.sum(vector)
        times.append(time.perf_counter() - start)
    assert float(vector[-1]) == reducer.world
    if reducer.rank == 0:
        # The first calls open connections.
        told = {"microseconds": 1e6 * statistics.median(times[len(times) // 10 :])}
        print(json.dumps(told | vars(options)), flush=True)
    reducer.close()


if __name__ == "__main__":
    main()
