"""The folder of a run."""

from __future__ import annotations

import datetime
import os
import re
import shutil
from pathlib import Path
from typing import Any, Self

from rookery.errors import BadInput, nearest, require
from rookery.runs.files import Row, new_folder, read_json, read_rows, write_json, writing


class Run:
    """A folder with config.json, progress.csv, result.json, log.txt and checkpoints/."""

    def __init__(self, path: Path, config: dict[str, Any]):
        self.path = path
        self.config = config
        self.name = path.name
        self.checkpoints = path / "checkpoints"
        self.log_path = path / "log.txt"
        self.progress_path = path / "progress.csv"
        """A row for each report."""
        self.events_path = path / "events.jsonl"
        """Alarms, evaluations and checkpoints, a JSON object a line."""
        self.result_path = path / "result.json"
        """Status and totals of a run that ended."""
        self.status_path = path / "status.txt"
        """Status table of the workers on a cluster, rewritten at each report."""
        self.stop_path = path / "stop"
        """File whose existence asks the run to save a checkpoint and stop."""

    @classmethod
    def create(cls, runs_dir: str | Path, name: str | None, config: dict[str, Any]) -> Self:
        """Create a folder in `runs_dir` with the given name, or one from `default_name`."""
        path = Path(runs_dir) / (default_name(config) if name is None else checked_name(name))
        new_folder(path, "run")
        run = cls(path, config)
        try:
            with writing(path):
                run.checkpoints.mkdir()
                run.log_path.touch()
            write_json(path / "config.json", config)
        except BaseException:
            run.remove()
            raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Return the run in the folder `path`; raise BadInput if there is none."""
        path = Path(path)
        if not path.is_dir():
            others = path.parent.glob("*/config.json") if path.parent.is_dir() else ()
            hint = nearest(str(path), (str(other.parent) for other in others))
            raise BadInput(f"{path}: no such run folder.{hint}")
        file = path / "config.json"
        require(file.is_file(), f"{path}: not a run folder: it has no config.json")
        config = read_json(file)
        require(isinstance(config, dict), f"{file}: must be a JSON object of settings")
        return cls(path, config)

    @property
    def result(self) -> dict[str, Any] | None:
        """Content of result.json; None while the run has not ended."""
        return dict(read_json(self.result_path)) if self.result_path.exists() else None

    def write_result(self, result: dict[str, Any]) -> None:
        write_json(self.result_path, result)

    def write_failure(self, message: str, details: str) -> None:
        """Write to the log and to result.json that the run failed, and why."""
        self.log(f"{message}\n{details}")
        self.write_result({"status": "failed", "error": message})

    def remove(self) -> None:
        """Delete the folder of a run that could not start."""
        shutil.rmtree(self.path, ignore_errors=True)

    def progress(self) -> list[Row]:
        """Return the reports so far, oldest first; None for empty cells."""
        return read_rows(self.progress_path)

    def log(self, line: str) -> None:
        """Append `line` with the time; further lines, as of a traceback, are indented."""
        stamp = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        text = line.rstrip().replace("\n", "\n    ")
        with writing(self.log_path), self.log_path.open("a", encoding="utf-8") as file:
            file.write(f"{stamp} {text}\n")


def default_name(config: dict[str, Any]) -> str:
    """Return ALGO_ENV_TIME_HEX; the four random hex digits separate runs of the same second."""
    names = [file_safe(str(config.get(key, ""))) for key in ("algorithm", "environment")]
    time = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    return "_".join([*filter(None, names), time, os.urandom(2).hex()])


def file_safe(name: str) -> str:
    """Return `name` with dashes for characters unsuited to file names: ALE-Pong-v5."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.")


def checked_name(name: str) -> str:
    """Return `name`; raise BadInput if it is not a valid name of one folder."""
    usable = name not in ("", ".", "..") and not re.search(r"[/\\\0]", name)
    require(
        usable, f'name: "{name}" is not a valid folder name. Use letters, digits, ".", "_" and "-"'
    )
    return name
