"""The torch profiler over a short part of a run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from rookery.runs.files import writing

ROUNDS = 50
SECONDS = 3.0
"""A profile ends after ROUNDS or SECONDS, whichever comes first."""
OPERATIONS = 40
"""Rows of operations.txt."""


class Profile:
    """Records some rounds of a run after its warm-up with the torch profiler.

    `folder` gets trace.json, for Chrome (chrome://tracing) and Perfetto, and operations.txt, the
    operations that took longest.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.profiler: torch.profiler.profile | None = None
        self.rounds = 0
        self.started = 0.0

    def round(self, warm: bool) -> None:
        """Count the end of a round; the first one with `warm` starts the recording."""
        if self.profiler is not None:
            self.rounds += 1
            if self.rounds >= ROUNDS or time.monotonic() - self.started >= SECONDS:
                self.close()
        elif warm and not self.rounds:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self.profiler = torch.profiler.profile(
                activities=activities,
                # Include actors that run in threads; torch.profiler has no other option for this.
                experimental_config=torch.profiler._ExperimentalConfig(profile_all_threads=True),
            )
            # Without this, Kineto logs its start and end to standard error.
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")
            self.started = time.monotonic()
            self.profiler.start()

    def close(self) -> None:
        """End the recording, if there is one, and write it."""
        if self.profiler is None:
            return
        profiler, self.profiler = self.profiler, None
        profiler.stop()
        seconds = time.monotonic() - self.started
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(self.folder / "trace.json"))
            table = profiler.key_averages().table("self_cpu_time_total", row_limit=OPERATIONS)
            head = f"{self.rounds} rounds of the run in {seconds:.2f} s\n"
            (self.folder / "operations.txt").write_text(head + table + "\n")
