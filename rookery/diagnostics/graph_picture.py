"""The backward graph of a loss drawn to SVG with torchviz and Graphviz."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torch import Tensor
from torch.autograd.graph import Node

from rookery.diagnostics.graph import LossGraph
from rookery.errors import missing_extra, require

if TYPE_CHECKING:
    from graphviz import Digraph

PARAMETER, NO_GRADIENT, VARIABLE = "lightblue", "salmon", "khaki"
OPERATION, LOSS = "lightgrey", "darkolivegreen1"
LEGEND = {
    PARAMETER: "parameter with gradient",
    NO_GRADIENT: "parameter without gradient",
    VARIABLE: "variable of the algorithm, and its operation",
    OPERATION: "other operation",
    LOSS: "loss",
}
PER_COLUMN = 8
"""Parameters without gradient in a column."""


def require_graphviz() -> None:
    """Raise BadInput if torchviz or the program `dot` is not installed."""
    what = "the picture of the graph"
    try:
        import torchviz  # noqa: F401
    except ImportError:
        raise missing_extra(what, "graph") from None
    require(
        shutil.which("dot"),
        f"{what} needs the program dot of Graphviz, which is not on the PATH: apt-get install"
        " graphviz (Debian, Ubuntu) or brew install graphviz (macOS)",
    )


def svg_of(graph: LossGraph) -> str:
    """Return the graph as SVG."""
    return dot_of(graph).pipe(format="svg", encoding="utf-8")


def dot_of(graph: LossGraph) -> Digraph:
    """Return the graph in Graphviz's language."""
    from torchviz import make_dot

    trained = {name: p for name, p in graph.parameters.items() if p.requires_grad}
    dot = make_dot(graph.total, params=trained)
    # torchviz limits the size of the picture, which makes the text of large graphs small.
    del dot.graph_attr["size"]
    dot.graph_attr.update(ranksep="0.25", nodesep="0.15", fontname="sans-serif")
    # Without a limit the layout of a core that is unrolled over 16 steps takes minutes.
    dot.graph_attr.update(nslimit="2", nslimit1="2")
    dot.node_attr.update(fontname="sans-serif", margin="0.1,0.04")
    dot.node(str(id(graph.total)), "loss", fillcolor=LOSS)
    for node in nodes_of(graph.total):
        dot.node(str(id(node)), **look(node, graph.names))
    if graph.without_gradient:
        dot.subgraph(gradientless(graph))
    dot.node("legend", legend(), shape="plain", fillcolor="white")
    return dot


def nodes_of(total: Tensor) -> Iterator[Node]:
    """Yield every node of the backward graph once."""
    waiting = [] if total.grad_fn is None else [total.grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        new = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= new
        waiting += new


def look(node: Node, names: Mapping[Node, str]) -> dict[str, str]:
    """Return label and colour of a node: its operation, below the variable that holds its
    result."""
    kind = type(node).__name__
    if kind == "AccumulateGrad":
        return {"label": "", "shape": "point", "height": "0.06"}
    operation = re.sub(r"Backward\d*$", "", kind)
    if node in names:
        return {"label": f"{names[node]}\n{operation}", "fillcolor": VARIABLE}
    return {"label": operation, "fillcolor": OPERATION}


def gradientless(graph: LossGraph) -> Digraph:
    """Return the parameters without gradient as a cluster, in columns."""
    from graphviz import Digraph

    cluster = Digraph("cluster_without_gradient")
    cluster.attr(label="parameters without gradient", style="dashed", fontsize="12")
    before = ""
    for number, (name, reason) in enumerate(graph.without_gradient.items()):
        shape = ", ".join(map(str, graph.parameters[name].shape))
        column, row = divmod(number, PER_COLUMN)
        label = f"{name}\n({shape})\n{reason}"
        cluster.node(name, label, fillcolor=NO_GRADIENT, group=f"column {column}")
        if row:
            cluster.edge(before, name, style="invis")
        before = name
    return cluster


def legend() -> str:
    """Return the colours and their meanings as an HTML-like label."""
    rows = (
        f'<tr><td bgcolor="{colour}" width="24"></td><td align="left">{text}</td></tr>'
        for colour, text in LEGEND.items()
    )
    return f'<<table border="0" cellborder="0" cellspacing="2">{"".join(rows)}</table>>'
