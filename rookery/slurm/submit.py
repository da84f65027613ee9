"""Handing a script to Slurm."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from rookery.errors import BadInput, RookeryError

PATIENCE_S = 60.0
"""How long sbatch may take; it tries again and again where Slurm does not answer."""


def submit(script: Path) -> str:
    """The number of the job that `sbatch` makes of the script; its refusal is BadInput."""
    command = ["sbatch", "--parsable", str(script)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S
        )
    except FileNotFoundError:
        raise BadInput(
            f"--submit: there is no sbatch here; submit {script} where Slurm is installed"
        ) from None
    except subprocess.TimeoutExpired:
        raise RookeryError(
            f"--submit: Slurm did not answer sbatch within {PATIENCE_S:.0f} s; {script} is written,"
            " see with squeue whether it was taken"
        ) from None
    if done.returncode:
        raise BadInput(f"--submit: sbatch refuses {script}: {reasons(done.stderr)}")
    # With several clusters: "NUMBER;CLUSTER".
    return done.stdout.strip().splitlines()[-1].partition(";")[0]


def reasons(errors: str) -> str:
    """What sbatch said, in a line."""
    lines = [re.sub(r"^sbatch: (error: |fatal: )?", "", line) for line in errors.splitlines()]
    return "; ".join(filter(None, map(str.strip, lines))) or "it does not say why"
