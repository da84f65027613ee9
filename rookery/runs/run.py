"""A run's folder: what was asked, what happened, what came of it."""

from __future__ import annotations

import datetime
import os
import re
import shutil
from pathlib import Path
from typing import Any, Self

from rookery.errors import BadInput, nearest, require
from rookery.runs.files import new_folder, read_json, write_json, writing
from rookery.runs.table import Row, read_rows


class Run:
    """A folder with config.json, progress.csv, result.json, log.txt and checkpoints/."""

    def __init__(self, path: Path, config: dict[str, Any]):
        self.path = path
        self.config = config

    @classmethod
    def create(cls, runs_dir: str | Path, name: str | None, config: dict[str, Any]) -> Self:
        """A new folder in `runs_dir`, called `name` or by `default_name`."""
        path = Path(runs_dir) / (default_name(config) if name is None else checked_name(name))
        new_folder(path, "run")
        try:
            return cls(path, config)._fill()
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise

    def _fill(self) -> Self:
        with writing(self.path):
            self.checkpoints.mkdir()
            self.log_path.touch()
        write_json(self.path / "config.json", self.config)
        return self

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """The run in the folder `path`, or BadInput if it is none."""
        path = Path(path)
        if not path.is_dir():
            others = path.parent.glob("*/config.json") if path.parent.is_dir() else ()
            hint = nearest(str(path), (str(other.parent) for other in others))
            raise BadInput(f"{path}: no such run folder.{hint}")
        file = path / "config.json"
        require(file.is_file(), f"{path}: not a run's folder, it has no config.json")
        config = read_json(file)
        require(isinstance(config, dict), f"{file}: holds no settings")
        return cls(path, config)

    def rewrite_config(self, config: dict[str, Any]) -> None:
        """Change what is asked of the run, as when it goes on for longer."""
        self.config = config
        write_json(self.path / "config.json", config)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def log_path(self) -> Path:
        """The text log."""
        return self.path / "log.txt"

    @property
    def stop_path(self) -> Path:
        """A file that, once it is there, asks the run to save and stop."""
        return self.path / "stop"

    @property
    def status_path(self) -> Path:
        """The newest table of who does what, on a cluster."""
        return self.path / "status.txt"

    @property
    def progress_path(self) -> Path:
        """The reports, a row each."""
        return self.path / "progress.csv"

    @property
    def result_path(self) -> Path:
        """How the run ended."""
        return self.path / "result.json"

    @property
    def result(self) -> dict[str, Any] | None:
        """How the run ended; None while it has not."""
        return dict(read_json(self.result_path)) if self.result_path.exists() else None

    def write_result(self, result: dict[str, Any]) -> None:
        """Say how the run ended."""
        write_json(self.result_path, result)

    def note_failure(self, message: str, details: str) -> None:
        """Say in the log and as the result that the run failed, and why."""
        self.log(f"{message}\n{details}")
        self.write_result({"status": "failed", "error": message})

    def remove(self) -> None:
        """Take back a run that could not begin."""
        shutil.rmtree(self.path, ignore_errors=True)

    def progress(self) -> list[Row]:
        """The reports so far, oldest first; None where a report lacks a column."""
        return read_rows(self.progress_path)

    def log(self, line: str) -> None:
        """Append `line` with the time; its further lines, as of a traceback, are indented."""
        stamp = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        text = line.rstrip().replace("\n", "\n    ")
        with writing(self.log_path), self.log_path.open("a", encoding="utf-8") as file:
            file.write(f"{stamp} {text}\n")


def default_name(config: dict[str, Any]) -> str:
    """ALGO_ENV_TIME_HEX; the four hex digits keep runs of the same second apart."""
    names = [file_safe(str(config.get(key, ""))) for key in ("algorithm", "environment")]
    time = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    return "_".join([*filter(None, names), time, os.urandom(2).hex()])


def file_safe(name: str) -> str:
    """`name` with a dash for whatever a file name had better not hold: ALE/Pong-v5, ALE-Pong-v5."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.")


def checked_name(name: str) -> str:
    """`name`, if it can name a folder inside the runs' folder."""
    usable = name not in ("", ".", "..") and not re.search(r"[/\\\0]", name)
    require(usable, f'name: "{name}" cannot name a folder. Use letters, digits, ".", "_" and "-"')
    return name
