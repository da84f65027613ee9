"""Rewritten calls give the same results."""

import pytest
import torch
from torch import nn

from rookery.tracing import TracedFunction
from rookery.tracing import function as traced_function


@pytest.fixture(autouse=True)
def record_second_call(monkeypatch):
    """A function is recorded when it is called for the second time with a key."""
    monkeypatch.setattr(traced_function, "CALLS_BEFORE_RECORDING", 1)


def recorded(function, *args):
    """`function` after enough calls to be run from its recording, and the recording."""
    run = TracedFunction(function)
    for _ in range(3):
        run(*args)
    assert run.refused is None
    (only,) = run.traces.values()
    assert only.trusted
    return run, only


def operations(made):
    """The names of the operations that are run."""
    return [call.operation._schema.name.removeprefix("aten::") for call in made.program.calls]


def test_constants_are_computed_once():
    def function(x):
        scale = torch.full((3,), 4.0).sqrt() / torch.ones_like(x).sum()
        return x * scale

    run, made = recorded(function, torch.randn(3))
    assert operations(made) == ["mul"]
    x = torch.randn(3)
    assert torch.equal(run(x), function(x))


def test_constants_that_are_written_to_or_returned_are_not_shared():
    def function(x):
        sums, given = torch.zeros(3), torch.ones(2)
        half = sums[:2]
        half.add_(x)
        return sums, given, torch.zeros(3)[1:]

    run, _ = recorded(function, torch.randn(2))
    x = torch.randn(2)
    for _ in range(3):
        results = run(x)
        for ours, theirs in zip(results, function(x), strict=True):
            assert torch.equal(ours, theirs)
        with torch.inference_mode():
            for result in results:
                result.add_(1)


def only_added(total, a, b):
    total.add_(a @ b)
    return a.sum()


def used_again(total, a, b):
    product = a @ b
    total.add_(product)
    return product * 2


def given_away(total, a, b):
    product = a @ b
    total.add_(product)
    return product


def added_in_part(total, a, b):
    total.add_(a @ b, alpha=2)
    return a.sum()


def spread(total, a, b):
    total.add_(a[:1] @ b)
    return a.sum()


def factor_changed(total, a, b):
    c = a * 1
    product = c @ b
    c.zero_()
    total.add_(product)
    return c


def viewed_factor_changed(total, a, b):
    c = a * 1
    product = c @ b
    c[0].zero_()
    total.add_(product)
    return c


def added_to_a_factor(total, a, b):
    c = b[:, :3] * 1
    c.add_(c @ c)
    return c


def added_to_another_type(total, a, b):
    c = torch.zeros_like(total, dtype=torch.float64)
    c.add_(a @ b)
    return c


@pytest.mark.parametrize(
    "function",
    [
        only_added,
        used_again,
        given_away,
        added_in_part,
        spread,
        factor_changed,
        viewed_factor_changed,
        added_to_a_factor,
        added_to_another_type,
    ],
    ids=lambda function: function.__name__,
)
def test_products_that_are_added_give_the_results_of_the_function(function):
    ours, theirs = torch.zeros(4, 5), torch.zeros(4, 5)
    a, b = torch.randn(4, 3), torch.randn(3, 5)
    run, _ = recorded(lambda a, b: function(ours, a, b), a, b)
    ours.zero_()
    torch.testing.assert_close(run(a, b), function(theirs, a, b))
    torch.testing.assert_close(ours, theirs)


def test_weights_that_are_exchanged_are_followed():
    def network(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(1100, 6), nn.ReLU(), nn.Linear(6, 3))

    modules = [network(0)]

    def function(x):
        return torch.autograd.grad(modules[0](x).square().sum(), x)[0]

    run = TracedFunction(function, lambda: modules)
    for seed in (0, 1, 2):
        modules[0] = network(seed)
        for _ in range(4):
            x = torch.randn(20, 1100, requires_grad=True)
            torch.testing.assert_close(run(x), function(x))
    assert run.refused is None
    assert len(run.traces) == 1
