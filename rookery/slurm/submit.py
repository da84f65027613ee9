"""Submit a batch script with sbatch."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from rookery.errors import BadInput, RookeryError

TIMEOUT_S = 60.0
"""Seconds that sbatch may take; it retries while Slurm does not answer."""


def submit(script: Path) -> str:
    """Submit the script and return the job's id; BadInput if sbatch rejects it."""
    command = ["sbatch", "--parsable", str(script)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except FileNotFoundError:
        raise BadInput(
            f"--submit: sbatch not found; submit {script} where Slurm is installed"
        ) from None
    except subprocess.TimeoutExpired:
        raise RookeryError(
            f"--submit: Slurm did not answer sbatch within {TIMEOUT_S:.0f} s; {script} is written,"
            " use squeue to see whether it was submitted"
        ) from None
    if done.returncode:
        raise BadInput(f"--submit: sbatch rejected {script}: {error_line(done.stderr)}")
    # With several clusters: "NUMBER;CLUSTER".
    return done.stdout.strip().splitlines()[-1].partition(";")[0]


def error_line(errors: str) -> str:
    """Return the errors of sbatch in one line."""
    lines = [re.sub(r"^sbatch: (error: |fatal: )?", "", line) for line in errors.splitlines()]
    return "; ".join(filter(None, map(str.strip, lines))) or "no reason given"
