"""Progress of a sweep: a live table on a terminal, one line per event elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, TextIO

from rookery.sweep.records import SweepFolder, TrialRecord, TrialResources
from rookery.sweep.space import spell
from rookery.sweep.tables import header, ranked, trial_cells

MAX_CONSOLE_ROWS = 16


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


class SweepConsole:
    """Prints the trials while they run."""

    def __init__(self, folder: SweepFolder, stream: TextIO):
        self.folder, self.stream = folder, stream
        self.live: Any = None
        self.printed_status: dict[int, str] = {}

    def __enter__(self) -> Self:
        if self.stream.isatty():
            from rich.console import Console as Terminal
            from rich.live import Live

            terminal = Terminal(file=self.stream)
            self.live = Live(console=terminal, refresh_per_second=2, transient=True)
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, record: TrialRecord) -> None:
        """Refresh the table, or print a line if the status of `record` changed."""
        if self.live is not None:
            self.live.update(self.picture())
        elif self.printed_status.get(record.number) != record.status:
            self.printed_status[record.number] = record.status
            print(self.sentence(record), file=self.stream, flush=True)

    def sentence(self, record: TrialRecord) -> str:
        """Return a trial as one line."""
        values = "  ".join(f"{name} {spell(value)}" for name, value in record.values.items())
        head = f"trial {record.number}/{self.folder.spec.samples}  {record.status}"
        if record.status == "failed":
            return f"{head}  {values}: {record.reason}"
        if record.score is None:
            return f"{head}  {values}"
        return f"{head}  {values}  {self.folder.spec.metric} {record.score:,.4g}"

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
