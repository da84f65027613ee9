"""Fewer operations, the same results."""

import pytest
import torch
from torch import nn

from rookery.tracing import recorder
from rookery.tracing.recorder import Recorded


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """A kind is recorded when it comes for the second time."""
    monkeypatch.setattr(recorder, "PATIENCE", 1)


def recorded(function, *args):
    """`function` after enough calls to be run from its recording, and the recording."""
    run = Recorded(function)
    for _ in range(3):
        run(*args)
    assert run.refused is None
    (only,) = run.recordings.values()
    assert only.trusted
    return run, only


def operations(made):
    """The names of the operations that are run."""
    return [call.operation._schema.name.removeprefix("aten::") for call in made.work.calls]


def test_what_is_the_same_every_time_is_computed_once():
    def function(x):
        scale = torch.full((3,), 4.0).sqrt() / torch.ones_like(x).sum()
        return x * scale

    run, made = recorded(function, torch.randn(3))
    assert operations(made) == ["mul"]
    x = torch.randn(3)
    assert torch.equal(run(x), function(x))


def test_what_is_written_to_or_given_away_is_made_anew_every_time():
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


def test_a_product_that_is_added_to_something_is_added_while_it_is_made():
    total = torch.zeros(4, 5)

    def function(a, b):
        total.add_(a @ b)
        return a.sum()

    run, made = recorded(function, torch.randn(4, 3), torch.randn(3, 5))
    assert operations(made) == ["addmm_", "sum"]
    a, b = torch.randn(4, 3), torch.randn(3, 5)
    before = total.clone()
    run(a, b)
    torch.testing.assert_close(total, before + a @ b)


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
def test_but_not_where_that_would_be_something_else(function):
    ours, theirs = torch.zeros(4, 5), torch.zeros(4, 5)
    a, b = torch.randn(4, 3), torch.randn(3, 5)
    run, made = recorded(lambda a, b: function(ours, a, b), a, b)
    assert "mm" in operations(made)
    ours.zero_()
    torch.testing.assert_close(run(a, b), function(theirs, a, b))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("rows", "columns", "made_the_other_way"),
    [(16, 1024, True), (64, 2000, True), (15, 1024, False), (65, 1024, False), (32, 1023, False)],
)
def test_products_of_few_rows_and_many_columns_are_made_the_other_way_round(
    rows, columns, made_the_other_way
):
    def function(a, b):
        return (a @ b).view(-1)

    run, made = recorded(function, torch.randn(rows, 40), torch.randn(40, columns))
    assert ("clone" in operations(made)) == made_the_other_way
    a, b = torch.randn(rows, 40), torch.randn(40, columns)
    torch.testing.assert_close(run(a, b), function(a, b), atol=1e-4, rtol=1e-4)


def test_weights_that_are_exchanged_are_followed():
    def network(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(1100, 6), nn.ReLU(), nn.Linear(6, 3))

    modules = [network(0)]

    def function(x):
        return torch.autograd.grad(modules[0](x).square().sum(), x)[0]

    run = Recorded(function, lambda: modules)
    for seed in (0, 1, 2):
        modules[0] = network(seed)
        for _ in range(4):
            x = torch.randn(20, 1100, requires_grad=True)
            torch.testing.assert_close(run(x), function(x))
    (made,) = run.recordings.values()
    assert "clone" in operations(made)
