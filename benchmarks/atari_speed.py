"""Speed of Ape-X and R2D2 on Pong, acting and learning, with two actors of 16 or 40 games.

    python benchmarks/atari_speed.py apex-acting        # acting alone, 2 x 16 and 2 x 40 games
    python benchmarks/atari_speed.py apex-training      # acting while training, batch 32 and 64
    python benchmarks/atari_speed.py r2d2               # 40 + 80 rows, batch 16

Beside each figure stands that of rela, a C++ implementation of both papers, which was built and
measured once on a machine of the same kind (2 cores, no GPU, torch 2.13, Pong). Full-size networks
on 84x84 frames. Figures are means over the reports after the warm-up.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from rookery.runs.run import Run

COMMON = ["--no-preset", "--backend", "threads", "--actors", "2", "--json"]
COMMON += ["--checkpoint-steps", "1_000_000_000", "--algo.capacity", "100_000"]


class Work(NamedTuple):
    """A measurement, and what rela reached at it."""

    algorithm: str
    envs: int
    options: list[str]
    acted: float
    trained: float | None = None
    """Samples a second; sequences for R2D2."""
    unit: int = 1
    """Samples that count as one."""


def acting(envs: int, rela: float) -> Work:
    """Acting alone, priorities and insertion included."""
    options = ["--env-steps", "30_000", "--algo.warm_up", "99_000"]
    return Work("apex", envs, options, rela)


def training(batch: int, ratio: float, acted: float, trained: float) -> Work:
    """Acting while training."""
    options = ["--env-steps", "24_000", "--algo.warm_up", "3_000"]
    options += ["--algo.batch_size", str(batch), "--algo.samples_per_insert", str(ratio)]
    return Work("apex", 16, options, acted, trained)


def sequences(ratio: float) -> Work:
    """R2D2 at full size."""
    options = ["--env-steps", "24_000", "--algo.warm_up", "8_000", "--algo.batch_size", "16"]
    options += ["--algo.samples_per_insert", str(ratio)]
    return Work("r2d2", 16, options, acted=222, trained=1.9, unit=80)


def measure(work: Work) -> tuple[float, float]:
    """Steps acted and samples trained a second after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rookery", "train", work.algorithm, "PongNoFrameskip-v4"]
        command += [*COMMON, "--envs", str(work.envs), *work.options]
        command += ["--runs-dir", folder, "--name", "bench"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rows = Run.open(Path(folder) / "bench").progress()
    learning = [row for row in rows if row["trained_per_second"]] if work.trained else rows
    steady = learning[2:]
    first, last = steady[0], steady[-1]
    seconds = float(last["seconds"] or 0) - float(first["seconds"] or 0)
    acted = (float(last["env_steps"] or 0) - float(first["env_steps"] or 0)) / seconds
    times = [float(row["seconds"] or 0) for row in steady]
    spans = [after - before for before, after in itertools.pairwise(times)]
    rates = [float(row["trained_per_second"] or 0) for row in steady[1:]]
    trained = sum(r * s for r, s in zip(rates, spans, strict=True)) / seconds
    return acted, trained / work.unit


def main() -> None:
    """Measure what the command line names."""
    works = {
        "apex-acting": [acting(16, 720), acting(40, 840)],
        "apex-training": [training(32, 0.77, 460, 355), training(64, 0.67, 480, 320)],
        "r2d2": [sequences(1.0)],
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("work", choices=works)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for work in works[options.work]:
        for number in range(1, options.rounds + 1):
            acted, trained = measure(work)
            line = f"2 x {work.envs} games, round {number}: {acted:,.0f} acted/s"
            line += f" ({acted / work.acted:.2f} x {work.acted:g})"
            if work.trained:
                what = "sequences" if work.unit > 1 else "samples"
                line += (
                    f", {trained:,.1f} {what}/s ({trained / work.trained:.2f} x {work.trained:g})"
                )
            print(line)


if __name__ == "__main__":
    main()
