"""Matplotlib figures: its presence, files, and labels of logarithmic axes."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rookery.errors import missing_extra
from rookery.runs.files import writing


def require_matplotlib(what: str) -> None:
    """Raise BadInput if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_extra(what, "plots")


def save_figure(figure: Any, picture: Path) -> Path:
    """Write a figure to the file `picture` and return that."""
    with writing(picture):
        figure.savefig(picture, dpi=130)
    return picture


def label_in_full(axis: Any, subs: Sequence[int], spec: str) -> None:
    """Label a logarithmic axis with plain numbers, at the multiples `subs` of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if subs:
        axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format(value, spec)))
    axis.set_minor_formatter(NullFormatter())
