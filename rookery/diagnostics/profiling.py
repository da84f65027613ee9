"""The torch profiler over a short part of a run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from rookery.runs.files import writing

ROUNDS = 50
SECONDS = 3.0
"""A profile ends after so many rounds or so long, whichever comes first."""
OPERATIONS = 40


class Profile:
    """Records rounds of a run once it is warm, and writes them down when there are enough.

    `folder` gets trace.json, which Chrome (chrome://tracing) and Perfetto show, and operations.txt,
    the operations that took longest. None: nothing is recorded.
    """

    def __init__(self, folder: Path | None):
        self.folder = folder
        self.profiler: torch.profiler.profile | None = None
        self.rounds = 0
        self.started = 0.0

    def round(self, warm: bool) -> None:
        """Note that a round of the run ends; the first warm one starts the recording."""
        if self.profiler is not None:
            self.rounds += 1
            if self.rounds >= ROUNDS or time.monotonic() - self.started >= SECONDS:
                self.close()
        elif warm and self.folder is not None and not self.rounds:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self.profiler = torch.profiler.profile(
                activities=activities,
                # Actors in threads belong to the run.
                experimental_config=torch._C._profiler._ExperimentalConfig(
                    profile_all_threads=True
                ),
            )
            # Otherwise it reports its own start and end on standard error.
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")
            self.started = time.monotonic()
            self.profiler.start()

    def close(self) -> None:
        """Write what was recorded, if anything is being recorded."""
        if self.profiler is None:
            return
        assert self.folder is not None
        profiler, self.profiler = self.profiler, None
        profiler.stop()
        seconds = time.monotonic() - self.started
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(self.folder / "trace.json"))
            table = profiler.key_averages().table("self_cpu_time_total", row_limit=OPERATIONS)
            head = f"{self.rounds} rounds of the run in {seconds:.2f} s\n"
            (self.folder / "operations.txt").write_text(head + table + "\n")
