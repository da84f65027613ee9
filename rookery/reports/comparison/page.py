"""A comparison as one HTML file with interactive figures, which needs no network."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from rookery.errors import missing_extra
from rookery.reports.comparison.figure import AXIS_LABELS
from rookery.reports.comparison.groups import EnvironmentComparison, RunGroup
from rookery.reports.comparison.runs import Axis, setting_text
from rookery.reports.comparison.table import comparison_notes, table_cells
from rookery.runs.files import write_text

GROUP_COLOURS = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd"),
    *("#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"),
)
BAND_OPACITY = 0.2
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 75rem;
       padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: 0.2rem 0.8rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
"""


def require_plotly(what: str) -> None:
    """Raise BadInput if plotly is not installed."""
    if importlib.util.find_spec("plotly") is None:
        raise missing_extra(what, "plots")


def write_page(found: Sequence[EnvironmentComparison], axes: Sequence[Axis], page: Path) -> None:
    """Write the file `page`."""
    from plotly.offline import get_plotlyjs

    names = ", ".join(escape(each.environment) for each in found)
    write_text(
        page,
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Comparison: {names}</title>\n<style>{STYLE}</style>\n"
        f"<script>{get_plotlyjs()}</script>\n</head>\n<body>\n"
        + "\n".join(section(each, axes) for each in found)
        + "\n</body>\n</html>\n",
    )


def section(found: EnvironmentComparison, axes: Sequence[Axis]) -> str:
    """Return the heading, figure and tables of an environment as HTML."""
    figure = comparison_figure(found, axes)
    parts = [
        f"<h1>{escape(found.environment)}</h1>",
        figure.to_html(full_html=False, include_plotlyjs=False, config={"responsive": True}),
        html_table(table_cells(found)),
        *(f"<div>{escape(note)}</div>" for note in comparison_notes(found)),
    ]
    if differences := found.differences():
        header = ["setting", *(group.label for group in found.groups)]
        rows = [[name, *map(setting_text, values)] for name, values in differences.items()]
        parts += ["<h2>Settings in which groups differ</h2>", html_table([header, *rows])]
    return "\n".join(parts)


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table with a header row, every cell escaped."""
    lines = "\n".join(
        "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"
        for tag, row in zip(["th", *["td"] * (len(rows) - 1)], rows, strict=True)
    )
    return f'<div class="wide"><table>\n{lines}\n</table></div>'


def comparison_figure(found: EnvironmentComparison, axes: Sequence[Axis]) -> Any:
    """Return a plotly figure of the groups' curves, with a button for each axis."""
    from plotly.graph_objects import Figure

    traces: list[dict[str, Any]] = []
    shown_on: list[Axis] = []
    for axis in axes:
        bands = found.bands(axis)
        for number, group in enumerate(found.groups):
            colour = GROUP_COLOURS[number % len(GROUP_COLOURS)]
            own = group_traces(found, group, axis, colour, bands)
            traces += own
            shown_on += [axis] * len(own)
    for trace, axis in zip(traces, shown_on, strict=True):
        trace["visible"] = axis == axes[0]
    grid = {"gridcolor": "#8884", "zerolinecolor": "#8884"}
    figure = Figure(
        traces,
        {
            "xaxis": {"title": {"text": AXIS_LABELS[axes[0]]}, **grid},
            "yaxis": {"title": {"text": escape(found.metric.replace("_", " "))}, **grid},
            "legend": {"orientation": "h", "y": -0.2},
            "hovermode": "x unified",
            "height": 520,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": "#888"},
            "margin": {"t": 50, "r": 90},
        },
    )
    for name, value, dash in (
        ("goal", found.threshold, "dash"),
        ("human", found.human, "dashdot"),
        ("random", found.random, "dot"),
    ):
        if value is not None:
            text = f"{name} {value:,.4g}"
            line = {"dash": dash, "color": "#888", "width": 1}
            figure.add_hline(value, line=line, annotation_text=text, annotation_position="right")
    if len(axes) > 1:
        buttons = [
            {
                "label": AXIS_LABELS[axis],
                "method": "update",
                "args": [
                    {"visible": [shown == axis for shown in shown_on]},
                    {"xaxis.title.text": AXIS_LABELS[axis]},
                ],
            }
            for axis in axes
        ]
        menu = {"type": "buttons", "direction": "right", "x": 0, "y": 1.1, "xanchor": "left"}
        figure.update_layout(updatemenus=[{**menu, "yanchor": "bottom", "buttons": buttons}])
    return figure


def group_traces(
    found: EnvironmentComparison,
    group: RunGroup,
    axis: Axis,
    colour: str,
    bands: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return the lines of a group on one axis: each seed, the interval, the interquartile mean."""
    label = escape(group.label)
    common = {"legendgroup": label, "type": "scatter", "mode": "lines", "name": label}
    traces = []
    for run in group.runs:
        x, y = run.curve(found.metric, axis, found.smooth)
        thin = {"color": colour, "width": 1}
        seed = f"{label}, seed {escape(str(run.config.get('seed')))}"
        extra = {"opacity": 0.5, "showlegend": False, "hoverinfo": "skip"}
        traces.append({**common, **extra, "name": seed, "x": x, "y": y, "line": thin})
    if (band := bands.get(group.label)) is None:
        return traces
    if band.runs > 1:
        edge = {**common, "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
        fill = f"rgba{(*(int(colour[i : i + 2], 16) for i in (1, 3, 5)), BAND_OPACITY)}"
        traces.append({**edge, "x": band.x, "y": band.estimate.low})
        filled = {"fill": "tonexty", "fillcolor": fill}
        traces.append({**edge, **filled, "x": band.x, "y": band.estimate.high})
    line = {"color": colour, "width": 2.5}
    traces.append({**common, "x": band.x, "y": band.estimate.value, "line": line})
    return traces
