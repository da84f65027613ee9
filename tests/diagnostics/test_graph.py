"""Layer tables against hand-worked counts, parameters without gradient, and the drawn graph."""

from __future__ import annotations

import json
import re
import shutil
import sys

import pytest
import torch
from torch import nn

from rookery.algorithms.ppo import PPO
from rookery.backends.factory import make_serial
from rookery.cli.main import main
from rookery.config import resolve
from rookery.diagnostics import graph_picture
from rookery.diagnostics.graph import (
    FROZEN,
    UNUSED,
    first_batch,
    loss_graph,
    named_loss,
    small_config,
)
from rookery.diagnostics.graph_picture import dot_of, nodes_of
from rookery.diagnostics.layer_table import LayerRecorder, layer_table
from rookery.fields import nest
from rookery.learning.learner import Reducer

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
VARIANTS = {
    "vpg": ("vpg", {}),
    "vpg-mean": ("vpg", {"algo.baseline": "mean", "algo.episodes": 4}),
    "ppo": ("ppo", {}),
    "ppo-lstm": ("ppo", {"net.core": "lstm"}),
    "dqn": ("dqn", {}),
    "dqn-dueling": ("dqn", {"algo.dueling": True}),
    "dqn-noisy": ("dqn", {"algo.noisy": True}),
    "dqn-c51": ("dqn", {"algo.atoms": 51}),
    "apex": ("apex", {}),
    "r2d2": ("r2d2", {}),
}


def graph_of(algorithm, environment="CartPole-v1", steps=1, **settings):
    """Return the graph of the default settings with some changed, given as algo__gamma=0.9."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    made = resolve(algorithm, environment, nest(named), use_preset=False)
    return loss_graph(made.config, steps)


def kinds(graph):
    """Return how many nodes of each operation the backward graph has."""
    names = [type(node).__name__ for node in nodes_of(graph.total)]
    return {name: names.count(name) for name in names}


# ---------------------------------------------------------------- layers


def test_counts_of_a_dense_network_are_those_worked_out_by_hand():
    rows = graph_of("dqn").layers
    dense = [(r.input, r.output, r.parameters, r.flops) for r in rows if r.kind == "Linear"]
    assert dense == [
        ((1, 4), (1, 64), 4 * 64 + 64, 2 * 4 * 64),
        ((1, 64), (1, 64), 64 * 64 + 64, 2 * 64 * 64),
        ((1, 64), (1, 2), 64 * 2 + 2, 2 * 64 * 2),
    ]
    assert sum(row.parameters for row in rows) == 4610
    assert sum(row.flops for row in rows) == 8960
    assert [row.kind for row in rows] == ["FloatVector", *("Linear", "ReLU") * 2, "Linear"]


def test_counts_of_the_nature_network_are_those_worked_out_by_hand():
    rows = graph_of("dqn", "ALE/Pong-v5", env__frame_stack=4).layers
    counted = [(r.kind, r.output, r.parameters, r.flops) for r in rows if r.parameters]
    assert counted == [
        # Of 84 pixels (84 - 8) / 4 + 1 = 20 are left, then 9, then 7.
        ("Conv2d", (1, 32, 20, 20), 32 * 4 * 8 * 8 + 32, 2 * 20 * 20 * 32 * 4 * 8 * 8),
        ("Conv2d", (1, 64, 9, 9), 64 * 32 * 4 * 4 + 64, 2 * 9 * 9 * 64 * 32 * 4 * 4),
        ("Conv2d", (1, 64, 7, 7), 64 * 64 * 3 * 3 + 64, 2 * 7 * 7 * 64 * 64 * 3 * 3),
        ("Linear", (1, 512), 3136 * 512 + 512, 2 * 3136 * 512),
        ("Linear", (1, 6), 512 * 6 + 6, 2 * 512 * 6),
    ]


def test_flops_of_a_recurrent_core_are_counted():
    rows = graph_of("ppo", net__core="lstm", net__core_size=32, net__shared=True).layers
    (core,) = (row for row in rows if row.kind == "Lstm")
    # Four gates of the input and of the state before; one bias, since the second is fixed at 0.
    assert core.flops == 2 * 4 * 32 * (64 + 32)
    assert core.parameters == 4 * 32 * (64 + 32 + 1)


def test_noise_adds_parameters_but_no_flops():
    plain, noisy = graph_of("dqn"), graph_of("dqn", algo__noisy=True)
    flops = [sum(row.flops for row in graph.layers) for graph in (plain, noisy)]
    assert flops[0] == flops[1]
    assert sum(row.parameters for row in noisy.layers) == 2 * 4610


class Scaled(nn.Module):
    """A layer that is used without being called, one that is called, and one that is not used."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 5, bias=False)
        self.second = nn.Linear(5, 2)
        self.third = nn.Linear(2, 2)

    def forward(self, x):
        return self.second(nn.functional.linear(x, self.first.weight * 0.5))


def test_layers_are_found_however_their_weights_are_used():
    network = Scaled()
    rows = layer_table(network, lambda: network(torch.zeros(7, 3)))
    assert [(r.name, r.input, r.output, r.flops) for r in rows] == [
        ("first", (7, 3), (7, 5), 2 * 7 * 3 * 5),
        ("second", (7, 5), (7, 2), 2 * 7 * 5 * 2),
        ("third", None, None, 0),
    ]
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in network.modules()
    )


def test_product_outside_of_a_layer_counts_for_the_module_that_computes_it():
    class Product(nn.Module):
        def forward(self, x):
            return x @ x.t()

    network = nn.Sequential(nn.Linear(3, 3), Product())
    recorder = LayerRecorder(network)
    recorder.record(lambda: network(torch.zeros(2, 3)))
    assert recorder.used["1"].flops == 2 * 2 * 2 * 3


# ---------------------------------------------------------------- the loss


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_every_parameter_gets_a_gradient(variant, steps):
    """Of every algorithm on vectors and on a Dict observation."""
    algorithm, settings = VARIANTS[variant]
    for environment in ("CartPole-v1", "rookery/Synthetic-v1"):
        named = {name.replace(".", "__"): value for name, value in settings.items()}
        graph = graph_of(algorithm, environment, steps, **named)
        assert graph.without_gradient == {}
        assert sum(row.parameters for row in graph.layers) == graph.to_dict()["parameters"]


@pytest.mark.parametrize("variant", ["vpg", "ppo-lstm", "dqn-c51", "apex", "r2d2"])
def test_every_parameter_gets_a_gradient_on_atari(variant):
    algorithm, settings = VARIANTS[variant]
    named = {name.replace(".", "__"): value for name, value in settings.items()}
    graph = graph_of(algorithm, "ALE/Pong-v5", net__image_features=16, **named)
    assert graph.without_gradient == {}


@pytest.fixture
def planted(monkeypatch):
    """PPO whose first layer is frozen, and with a layer that no loss uses."""
    make = PPO.__init__

    def init(self, *args):
        make(self, *args)
        self.network.policy_trunk.dense[0].requires_grad_(False)
        self.network.spare = nn.Linear(3, 2)

    monkeypatch.setattr(PPO, "__init__", init)


@pytest.mark.usefixtures("planted")
def test_frozen_and_unused_layers_are_found():
    graph = graph_of("ppo")
    assert graph.without_gradient == {
        "policy_trunk.dense.0.weight": FROZEN,
        "policy_trunk.dense.0.bias": FROZEN,
        "spare.weight": UNUSED,
        "spare.bias": UNUSED,
    }
    assert graph.layers[-1].name == "spare"
    assert graph.layers[-1].output is None


def test_detached_layers_are_found(monkeypatch):
    value = PPO.evaluate

    def detached(self, batch):
        params, values = value(self, batch)
        return params.detach(), values

    monkeypatch.setattr(PPO, "evaluate", detached)
    found = graph_of("ppo").without_gradient
    assert set(found.values()) == {UNUSED}
    assert {name.partition(".")[0] for name in found} == {"policy_trunk", "head"}
    assert len(found) == 6


def test_loss_without_any_gradient_is_drawn_and_reported(monkeypatch):
    loss = PPO.loss

    def constant(self, batch, statistics):
        made = loss(self, batch, statistics)
        return made._replace(total=made.total.detach())

    monkeypatch.setattr(PPO, "loss", constant)
    graph = graph_of("ppo")
    assert list(graph.without_gradient) == list(graph.parameters)
    assert dot_of(graph).source.count(UNUSED) == 12


def test_nodes_are_named_by_the_variables_of_the_loss():
    graph = graph_of("ppo")
    in_graph = set(nodes_of(graph.total))
    named = {name for node, name in graph.names.items() if node in in_graph}
    assert {"params", "value", "log_prob", "ratio", "gain", "error", "total"} <= named
    assert "value_error: error" in named
    assert "entropy" not in named  # its weight is 0
    assert graph.names[graph.total.grad_fn] == "total"


def test_steps_unroll_a_recurrent_core():
    counts = [kinds(graph_of("ppo", steps=n, net__core="lstm")) for n in (1, 2, 4)]
    # Policy and value have a core each, and every step of one has five activations.
    assert [count["SigmoidBackward0"] for count in counts] == [2 * 3 * n for n in (1, 2, 4)]


def test_steps_accumulate_losses_of_a_network_without_memory():
    one, three = kinds(graph_of("vpg", steps=1)), kinds(graph_of("vpg", steps=3))
    assert three["LogSoftmaxBackward0"] == 3 * one["LogSoftmaxBackward0"]
    assert three["AccumulateGrad"] == one["AccumulateGrad"]


@pytest.mark.parametrize("algorithm", ["vpg", "ppo", "dqn"])
def test_accumulated_loss_is_that_of_the_whole_batch(algorithm):
    config = small_config(resolve(algorithm, "CartPole-v1", {}, use_preset=False).config, 3)
    backend = make_serial(config, Reducer(), torch.device("cpu"), 0, None)
    batch, learner = first_batch(backend), backend.learner
    parts = list(learner.parts(batch))
    assert len(parts) == 3
    whole, _ = named_loss(learner.algorithm, batch, [batch], "fp32")
    total, _ = named_loss(learner.algorithm, batch, parts, "fp32")
    weights = list(learner.algorithm.network.parameters())
    for one, other in zip(*(torch.autograd.grad(x, weights) for x in (whole, total)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(whole, total)


# ---------------------------------------------------------------- the picture


@pytest.mark.usefixtures("planted")
def test_picture_marks_parameters_and_has_a_legend():
    source = dot_of(graph_of("ppo")).source
    (frozen,) = re.findall(r'label="policy_trunk\.dense\.0\.weight[^]]*]', source)
    assert f"fillcolor={graph_picture.NO_GRADIENT}" in frozen
    assert FROZEN in frozen
    (trained,) = re.findall(r'label="policy_trunk\.dense\.2\.weight[^]]*]', source)
    assert f"fillcolor={graph_picture.PARAMETER}" in trained
    assert all(text in source for text in graph_picture.LEGEND.values())


@needs_dot
def test_command_prints_table_and_draws(tmp_path, capsys):
    picture = tmp_path / "loss.svg"
    assert main(["graph", "ppo", "CartPole-v1", "--net.hidden", "8", "--out", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["layer", "kind", "input", "output", "parameters", "FLOPs"]
    assert lines[-3:] == [
        "presets: CartPole-v1",
        "parameters without gradient: none",
        str(picture),
    ]
    assert "policy_trunk.dense.0.weight" in picture.read_text()


@needs_dot
@pytest.mark.usefixtures("planted")
def test_command_prints_one_json_object(tmp_path, capsys):
    picture = tmp_path / "loss.svg"
    assert main(["graph", "ppo", "CartPole-v1", "--json", "--out", str(picture)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["without_gradient"]["spare.bias"] == UNUSED
    assert printed["picture"] == str(picture)
    assert printed["presets"] == ["CartPole-v1"]
    assert printed["layers"][1]["input"] == [1, 4]


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("torchviz", "pip install 'rookery[graph]'"),
        ("graphviz", "pip install 'rookery[graph]'"),
        ("dot", "apt-get install graphviz"),
    ],
)
def test_table_is_printed_where_nothing_can_be_drawn(missing, words, monkeypatch, capsys, tmp_path):
    if missing == "dot":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.delitem(sys.modules, "torchviz.dot", raising=False)
        monkeypatch.delitem(sys.modules, "torchviz", raising=False)
        monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.chdir(tmp_path)
    assert main(["graph", "dqn", "CartPole-v1"]) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith("layer")
    assert words in printed.err
    assert printed.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["ppo"], "expected an algorithm and an environment"),
        (["ppo", "CartPole-v1", "--steps", "0"], "--steps must lie in 1..16, got 0"),
        (["ppo", "CartPole-v1", "--out", "a.png"], '--out must end with .svg, got "a.png"'),
        (["ppo", "CartPole-v1", "--out", "no/such.svg"], 'folder of "no/such.svg" does not exist'),
        (["ppo", "CartPole-v1", "--net.hiden", "8"], "net.hidden"),
        (["ppo", "CartPole-v1", "--runs-dir", "x"], "runs"),
    ],
)
def test_bad_input_is_one_line(args, words, capsys):
    assert main(["graph", *args]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
