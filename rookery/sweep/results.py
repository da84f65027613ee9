"""Results of a sweep: tables, CSV, progress in the terminal, and the best trial as a preset."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import yaml

from rookery.config import from_values, preset_base, to_values
from rookery.fields import flag_name, nest
from rookery.runs.files import aligned, to_cell, to_text, write_text
from rookery.sweep.records import SweepFolder, TrialRecord, TrialResources
from rookery.sweep.space import spell

MOST_ROWS = 30
MAX_CONSOLE_ROWS = 16
PRESET = "best.yaml"
NOT_IN_PRESET = ("algorithm", "environment", "checkpoint_steps", "keep_checkpoints", "profile")
"""Settings that do not belong in a preset."""
PER_RUN = ("seed", "backend", "device", "act_device", "threads")
"""Settings of one run on one machine: the command gives them as flags instead."""
GROUPS = ("algo", "net", "env", "learner")


def header(folder: SweepFolder) -> list[str]:
    metric = folder.spec.metric.removeprefix("episode_").replace("_", " ")
    spread = ["(min..max)"] if folder.spec.seeds > 1 else []
    return ["trial", "status", "steps", metric, *spread, *folder.spec.space]


def trial_cells(folder: SweepFolder, record: TrialRecord) -> list[str]:
    score = "-" if record.score is None else f"{record.score:,.4g}"
    scores = record.seed_scores
    spread = f"({min(scores):,.4g}..{max(scores):,.4g})" if scores else ""
    values = [spell(record.values[name]) for name in folder.spec.space]
    cells = [f"{record.number}", record.status, f"{record.env_steps:,}", score]
    return [*cells, *([spread] if folder.spec.seeds > 1 else []), *values]


def ranked(folder: SweepFolder) -> list[TrialRecord]:
    """Return the trials, best first: finished ones, then those stopped early, then the others."""
    order = {"finished": 0, "stopped": 1}
    sign = -1 if folder.spec.mode == "max" else 1

    def key(record: TrialRecord) -> tuple[int, float, int]:
        score = 0.0 if record.score is None else sign * record.score
        return order.get(record.status, 2), score, record.number

    return sorted(folder.records, key=key)


def trials_table(folder: SweepFolder) -> str:
    """Return the table of trials, best first, followed by the reasons of failures."""
    records = ranked(folder)
    shown = records[:MOST_ROWS]
    left_out = len(records) - len(shown)
    more = [f"... and {left_out} more in results.csv"] if left_out else []
    failed = [f"trial {r.number} failed: {r.reason}" for r in records if r.status == "failed"]
    lines = [trial_cells(folder, record) for record in shown]
    return "\n".join([*aligned([header(folder), *lines]), *more, *failed])


def trials_csv(folder: SweepFolder) -> str:
    """Return CSV text with a row for each trial, numbers in full precision."""
    seeds = [f"score_seed_{seed}" for seed in folder.spec.run_seeds]
    rows = [
        {
            "trial": to_cell(record.number),
            "status": record.status,
            "env_steps": to_cell(record.env_steps),
            "score": to_cell(record.score),
            **dict(zip(seeds, map(to_cell, record.seed_scores), strict=False)),
            **{
                name: to_cell(value) if type(value) in (int, float) else spell(value)
                for name, value in record.values.items()
            },
            "reason": record.reason or "",
        }
        for record in folder.records
    ]
    names = ["trial", "status", "env_steps", "score", *seeds, *folder.spec.space, "reason"]
    return to_text(names, rows)


def headline(folder: SweepFolder, resources: TrialResources) -> str:
    """Return the line printed at the start: trials, steps, seeds and resources."""
    spec = folder.spec
    over = sum(record.is_over for record in folder.records)
    done = f", {over} of them over" if over else ""
    seeds = f"{spec.seeds} seed{'s' if spec.seeds > 1 else ''}"
    cpus = f"{resources.cpus:g} CPU{'s' if resources.cpus > 1 else ''}"
    return (
        f"{spec.algorithm} on {spec.environment}: {spec.samples} trials{done}, {spec.env_steps:,}"
        f" steps with {seeds} each; {resources.concurrent} at once on {cpus} each"
    )


class SweepConsole(ExitStack):
    """Prints the trials while they run: a live table on a terminal, a line per event elsewhere."""

    def __init__(self, folder: SweepFolder, stream: TextIO):
        super().__init__()
        self.folder, self.stream = folder, stream
        self.live: Any = None
        self.printed_status: dict[int, str] = {}
        if stream.isatty():
            from rich.console import Console as Terminal
            from rich.live import Live

            live = Live(console=Terminal(file=stream), refresh_per_second=2, transient=True)
            self.live = self.enter_context(live)

    def show(self, record: TrialRecord) -> None:
        """Refresh the table, or print a line if the status of `record` changed."""
        if self.live is not None:
            self.live.update(self.picture())
        elif self.printed_status.get(record.number) != record.status:
            self.printed_status[record.number] = record.status
            print(self.sentence(record), file=self.stream, flush=True)

    def sentence(self, record: TrialRecord) -> str:
        values = "  ".join(f"{name} {spell(value)}" for name, value in record.values.items())
        head = f"trial {record.number}/{self.folder.spec.samples}  {record.status}  {values}"
        if record.status == "failed":
            return f"{head}: {record.reason}"
        if record.score is None:
            return head
        return f"{head}  {self.folder.spec.metric} {record.score:,.4g}"

    def picture(self) -> Any:
        """Return a rich table of the running trials and the best of the others."""
        from rich.table import Table

        over = [record for record in ranked(self.folder) if record.is_over]
        running = [record for record in self.folder.records if not record.is_over]
        total = self.folder.spec.samples
        drawn = Table(title=f"{len(over)} of {total} trials over", title_justify="left", box=None)
        for at, name in enumerate(header(self.folder)):
            drawn.add_column(name, justify="right" if at else "left", no_wrap=True)
        for record in [*running, *over][:MAX_CONSOLE_ROWS]:
            drawn.add_row(*trial_cells(self.folder, record))
        return drawn


def settings_and_defaults(
    folder: SweepFolder, record: TrialRecord
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a trial, and the values that a preset overrides."""
    config = from_values(folder.spec.config, nest(record.values))
    base = preset_base(folder.spec.algorithm, folder.spec.environment)
    return to_values(config), to_values(base)


def write_best(folder: SweepFolder, record: TrialRecord) -> Path:
    """Write the settings of a trial to best.yaml, in the format of the built-in presets: those that
    were searched or differ from the values that a preset overrides."""
    spec = folder.spec
    config, defaults = settings_and_defaults(folder, record)
    kept = {k: v for k, v in config.items() if k not in (*NOT_IN_PRESET, *PER_RUN)}
    preset = differing(kept, defaults, nest(record.values))
    over = ", ".join(map(str, spec.run_seeds))
    head = (
        f"# {spec.algorithm} on {spec.environment}: trial {record.number} of"
        f" {len(folder.records)}, {spec.metric} {record.score:.6g} at"
        f" {record.env_steps:,} steps over seeds {over}\n"
    )
    text = yaml.safe_dump({spec.environment: preset}, sort_keys=False)
    write_text(folder.path / PRESET, head + text)
    return folder.path / PRESET


def differing(
    values: dict[str, Any], defaults: dict[str, Any], searched: dict[str, Any]
) -> dict[str, Any]:
    """Return the values that were searched or differ from the default, nested like the config."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in GROUPS:
            group = differing(value, defaults[name], searched.get(name, {}))
            found |= {name: group} if group else {}
        elif value != defaults.get(name) or name in searched:
            found[name] = value
    return found


def train_command(folder: SweepFolder, record: TrialRecord, shown: Path) -> str:
    """Return the shell command that repeats the first run of a trial from the preset `shown`."""
    spec = folder.spec
    config, defaults = settings_and_defaults(folder, record)
    words = ["rookery", "train", spec.algorithm, spec.environment, "--preset", str(shown)]
    for name in PER_RUN:
        if name in ("seed", "backend") or config[name] != defaults[name]:
            words += [flag_name(name), str(config[name])]
    return shlex.join(words)
