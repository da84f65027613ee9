"""Requests to a running run, left as files in its folder by other processes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal, get_args

Request = Literal["watch_on", "watch_off", "video", "checkpoint", "stop"]
"""Show the play, or no longer; record the next episode; save a checkpoint; save one and end."""

FOLDER = "control"


def send_request(run: Path, request: Request) -> None:
    """Ask the process that trains `run` for something; asking twice before it answers is once."""
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / request).touch()


def take_requests(run: Path) -> list[Request]:
    """Remove and return the requests that wait in `run`, oldest first."""
    waiting: list[tuple[int, Request]] = []
    for request in get_args(Request):
        file = run / FOLDER / request
        with contextlib.suppress(OSError):
            waiting.append((file.lstat().st_mtime_ns, request))
            file.unlink()
    return [request for _, request in sorted(waiting)]
