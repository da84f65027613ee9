"""A sweep for the eye: a table that changes on a terminal, lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, TextIO

from rookery.sweep.records import Folder, Places, Record
from rookery.sweep.space import spell
from rookery.sweep.tables import header, line, ranked

MOST_ROWS = 16


def opening(folder: Folder, places: Places) -> str:
    """What begins, in a line."""
    spec = folder.spec
    over = sum(record.over for record in folder.records)
    done = f", {over} of them over" if over else ""
    return (
        f"{spec.algorithm} on {spec.environment}: {spec.samples} trials{done}, {spec.env_steps:,}"
        f" steps with {spec.seeds} seed{'s' if spec.seeds > 1 else ''} each;"
        f" {places.concurrent} at once on {places.cpus:g} CPU{'s' if places.cpus > 1 else ''} each"
    )


class Console:
    """Shows the trials while they run."""

    def __init__(self, folder: Folder, stream: TextIO):
        self.folder, self.stream = folder, stream
        self.live: Any = None
        self.told: dict[int, str] = {}

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

    def show(self, record: Record) -> None:
        """Show what is new of a trial; in lines, its start and its end."""
        if self.live is not None:
            self.live.update(self.picture())
        elif self.told.get(record.number) != record.status:
            self.told[record.number] = record.status
            print(self.sentence(record), file=self.stream, flush=True)

    def sentence(self, record: Record) -> str:
        """A trial in a line."""
        values = "  ".join(f"{name} {spell(value)}" for name, value in record.values.items())
        head = f"trial {record.number}/{self.folder.spec.samples}  {record.status}"
        if record.status == "failed":
            return f"{head}  {values}: {record.reason}"
        if record.score is None:
            return f"{head}  {values}"
        return f"{head}  {values}  {self.folder.spec.metric} {record.score:,.4g}"

    def picture(self) -> Any:
        """The trials under way and the best of the others."""
        from rich.table import Table

        over = [record for record in ranked(self.folder) if record.over]
        running = [record for record in self.folder.records if not record.over]
        total = self.folder.spec.samples
        drawn = Table(title=f"{len(over)} of {total} trials over", title_justify="left", box=None)
        for at, name in enumerate(header(self.folder)):
            drawn.add_column(name, justify="right" if at else "left", no_wrap=True)
        for record in [*running, *over][:MOST_ROWS]:
            drawn.add_row(*line(self.folder, record))
        return drawn
