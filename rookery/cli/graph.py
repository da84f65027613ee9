"""rookery graph ALGO ENV"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rookery.cli.train import leading_names, parse_settings
from rookery.config import Resolved, default_config, resolve
from rookery.diagnostics.graph import LossGraph, loss_graph
from rookery.diagnostics.graph_picture import require_graphviz, svg_of
from rookery.diagnostics.layer_table import table_text
from rookery.errors import RookeryError, require
from rookery.fields import from_dict, help_text, nest
from rookery.runs.files import to_json, write_text

USAGE = """rookery graph ALGO ENV [options] [settings of train]

Print the layers of the network, and draw the backward graph of one loss.
"""
MOST_STEPS = 16


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """Options of the command, beside the settings of a run."""

    steps: int = 1
    """Time steps that a recurrent network is unrolled over; other networks: micro batches whose
    losses are added up."""
    out: str = "graph.svg"
    """SVG file for the picture of the graph."""
    preset: str | None = None
    """Tuned settings by name, or a YAML file of them, as in train."""
    no_preset: bool = False
    """Start from the defaults even where a preset applies by itself."""
    json: bool = False
    """Print one JSON object on standard output."""

    def __post_init__(self) -> None:
        require(
            1 <= self.steps <= MOST_STEPS, f"--steps must lie in 1..{MOST_STEPS}, got {self.steps}"
        )
        require(self.out.endswith(".svg"), f'--out must end with .svg, got "{self.out}"')


def main(args: Sequence[str]) -> int:
    """Print the table and draw the graph; the table is printed even where nothing can be drawn."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(GraphOptions))
        print("\n'rookery train ALGO --help' lists the settings.")
        return 0
    made, options = parse(args)
    require(
        Path(options.out).parent.is_dir(),
        f'--out: the folder of "{options.out}" does not exist; create it first',
    )
    graph = loss_graph(made.config, options.steps)
    problem, picture = None, None
    try:
        require_graphviz()
        picture = Path(options.out)
        write_text(picture, svg_of(graph))
    except RookeryError as error:
        problem, picture = error, None
    print_graph(made, graph, picture, options.json)
    if problem is not None:
        raise problem
    return 0


def parse(args: Sequence[str]) -> tuple[Resolved, GraphOptions]:
    """Return the settings of the run and the options of the command."""
    names = leading_names(args)
    require(len(names) == 2, "graph: expected an algorithm and an environment")
    given, own = parse_settings(args[2:], default_config(*names), GraphOptions)
    options = from_dict(GraphOptions, own)
    algorithm, environment = names
    use_preset = not options.no_preset
    return resolve(algorithm, environment, nest(given), options.preset, use_preset), options


def print_graph(made: Resolved, graph: LossGraph, picture: Path | None, json: bool) -> None:
    """Print the layers, the parameters without gradient and the path of the picture."""
    config, presets = made
    if json:
        run = {"algorithm": config.algorithm, "environment": config.environment, "presets": presets}
        print(to_json(run | graph.to_dict() | {"picture": picture}))
        return
    print(table_text(graph.layers))
    print(f"\npresets: {', '.join(presets) or 'none'}")
    print(f"parameters without gradient: {len(graph.without_gradient) or 'none'}")
    for name, reason in graph.without_gradient.items():
        print(f"  {name}: {reason}")
    if picture is not None:
        print(picture)
