"""A traced function gives the results and side effects of the plain one."""

import subprocess
import sys
import threading
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rookery.networks.flat import FlatParameters
from rookery.tracing import TracedFunction, program, trace
from rookery.tracing import function as traced_function
from rookery.tracing.function import CALLS_BEFORE_RECORDING, MAX_BYTES, MAX_KEYS


@pytest.fixture(autouse=True)
def record_second_call(monkeypatch):
    """A function is recorded when it is called for the second time with a key."""
    monkeypatch.setattr(traced_function, "CALLS_BEFORE_RECORDING", 1)


@pytest.fixture(autouse=True, params=["NumPy", "PyTorch"])
def engine(request, monkeypatch):
    """The library that runs the traces."""
    if request.param == "PyTorch":
        monkeypatch.setattr(program, "SET_ASIDE", 0)
    return request.param


def operations(recorded):
    """The names of the operations in the only trace."""
    (found,) = recorded.traces.values()
    return [call.operation._schema.name for call in found.program.calls]


class Eager:
    """A function that counts how often it is really called."""

    def __init__(self, function):
        self.function = function
        self.calls = 0

    def __call__(self, *args):
        self.calls += 1
        return self.function(*args)


def a_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def gradient_adder(network):
    """A loss and its gradient, added to what is there."""
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def add(batch):
        out = network(batch["x"])
        loss = (out - batch["y"]).square().mean()
        loss.backward()
        return {"loss": loss.detach(), "out": (out.detach(), None)}

    return add


def a_batch(rows=5):
    return {"x": torch.randn(rows, 3), "y": torch.randn(rows, 2)}


def test_traced_calls_differ_from_computed_ones_in_rounding_only():
    """The second call is recorded; the recording's uses 1, 2 and 4 are computed too."""
    ours, theirs = a_network(), a_network()
    eager = Eager(gradient_adder(ours))
    recorded, plain = TracedFunction(eager, lambda: [ours]), gradient_adder(theirs)
    for calls in (1, 2, 3, 4, 4, 5, 5, 5, 5, 6, 6):
        batch = a_batch()
        result, expected = recorded(batch), plain(batch)
        assert eager.calls == calls
        assert list(result) == ["loss", "out"]
        assert result["out"][1] is None
        assert_close(result["loss"], expected["loss"])
        assert_close(result["out"][0], expected["out"][0])
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert_close(a.grad, b.grad)
        with torch.no_grad():
            for parameter in (*ours.parameters(), *theirs.parameters()):
                parameter.sub_(0.1 * parameter.grad)
    assert recorded.refused is None


def test_convolutions_are_recorded_forwards_and_backwards():
    def images():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 3, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))

    ours, theirs = images(), images()
    eager = Eager(gradient_adder(ours))
    recorded, plain = TracedFunction(eager, lambda: [ours]), gradient_adder(theirs)
    for _ in range(7):
        batch = {"x": torch.randn(5, 2, 6, 6), "y": torch.randn(5, 2)}
        assert_close(recorded(batch)["loss"], plain(batch)["loss"])
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert_close(a.grad, b.grad)
    assert recorded.refused is None
    assert eager.calls == 5


def test_views_of_what_stays_are_not_taken_every_time():
    weight = torch.arange(6.0).view(2, 3)
    recorded = TracedFunction(lambda x: x @ weight.t() + weight[0].sum())
    x = torch.randn(4, 3)
    for _ in range(5):
        assert_close(recorded(x), x @ weight.t() + weight[0].sum())
        weight += 1
    (only,) = recorded.traces.values()
    lines = program.Binding(only.program, only.captured).lines
    assert len([line for line in lines if not line.startswith(("copyto", "del"))]) == 3


COPIES = {
    "type": lambda w: w.double(),
    "reshape": lambda w: w.t().reshape(-1),
    "contiguous": lambda w: w.t().contiguous(),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_what_stays_are_made_every_time(name):
    """They are views at other times, and to torch the same operations."""
    weight = torch.ones(2, 3)
    recorded = TracedFunction(lambda x: COPIES[name](weight).sum() * x)
    with torch.inference_mode():
        for _ in range(5):
            recorded(torch.ones(()))
        assert recorded.refused is None
        assert recorded.traces
        weight.mul_(5)
        assert recorded(torch.ones(())).item() == 30


def test_a_recording_that_cannot_be_run_is_not_used(monkeypatch):
    def fails(*inputs):
        raise RuntimeError("not this time")

    monkeypatch.setattr(program.Program, "bind", lambda self, captured: fails)
    recorded = TracedFunction(lambda x: x + 1)
    for number in range(5):
        assert recorded(torch.tensor(number)).item() == number + 1
    assert "other results" in recorded.refused


def test_results_have_no_history_and_memory_of_their_own():
    network = a_network()
    recorded = TracedFunction(gradient_adder(network), lambda: [network])
    results = [recorded(a_batch()) for _ in range(6)]
    assert not results[-1]["loss"].requires_grad
    assert results[-1]["out"][0].data_ptr() != results[-2]["out"][0].data_ptr()


def test_every_shape_has_its_recording():
    network = a_network()
    eager = Eager(gradient_adder(network))
    recorded = TracedFunction(eager, lambda: [network])
    for _ in range(5):
        for rows in (4, 7):
            assert recorded(a_batch(rows))["out"][0].shape == (rows, 2)
    assert eager.calls == 8


def test_strides_and_types_are_told_apart():
    recorded = TracedFunction(lambda x: x.t().contiguous().view(-1) * 2)
    wide, tall = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(3, 2).t()
    for _ in range(5):
        for x in (wide, tall, wide.long()):
            assert torch.equal(recorded(x), x.t().contiguous().view(-1) * 2)
            assert recorded(x).dtype == x.dtype


def test_an_exchanged_module_is_followed():
    modules = [a_network()]
    recorded = TracedFunction(lambda x: modules[0](x).detach(), lambda: modules)
    x = torch.randn(4, 3)
    for _ in range(5):
        recorded(x)
    assert recorded.refused is None
    before = recorded(x)
    modules[0] = a_network()
    with torch.no_grad():
        modules[0][0].weight.mul_(2)
    assert_close(recorded(x), modules[0](x).detach())
    assert not torch.allclose(recorded(x), before)


def test_parameters_that_move_are_followed():
    """A learner gathers them into one tensor."""
    network = a_network()
    recorded = TracedFunction(lambda x: network(x).detach(), lambda: [network])
    x = torch.randn(4, 3)
    for _ in range(5):
        recorded(x)
    flat = FlatParameters(network, torch.device("cpu"))
    with torch.no_grad():
        flat.values.mul_(2)
    assert_close(recorded(x), network(x).detach())
    assert recorded.refused is None


def test_a_short_run_is_not_recorded(monkeypatch):
    monkeypatch.setattr(traced_function, "CALLS_BEFORE_RECORDING", CALLS_BEFORE_RECORDING)
    eager = Eager(lambda x: x + 1)
    recorded = TracedFunction(eager)
    for _ in range(CALLS_BEFORE_RECORDING):
        recorded(torch.ones(3))
    assert not recorded.traces
    for _ in range(10):
        assert recorded(torch.ones(3)).tolist() == [2, 2, 2]
    assert eager.calls == CALLS_BEFORE_RECORDING + 5


def test_a_module_may_be_exchanged_before_the_recording_is_compared():
    modules = [a_network()]
    recorded = TracedFunction(lambda x: modules[0](x).detach(), lambda: modules)
    x = torch.randn(4, 3)
    for _ in range(5):
        modules[0] = a_network()
        with torch.no_grad():
            modules[0][0].weight.normal_()
        assert_close(recorded(x), modules[0](x).detach())
    assert recorded.refused is None


def test_writing_into_inputs_is_done_again():
    total = torch.zeros(3)

    def add(x):
        total.add_(x)
        x.mul_(2)
        return total[:2].clone()

    recorded = TracedFunction(add)
    expected = torch.zeros(3)
    for number in range(6):
        x = torch.full((3,), float(number))
        expected += x
        assert torch.equal(recorded(x), expected[:2])
        assert x.tolist() == [2.0 * number] * 3
    assert recorded.refused is None
    assert total.tolist() == [15.0] * 3


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x * float(x.sum()), "reads a value"),
        (lambda x: x[x > 0], "shape depends on values"),
        (lambda x: x + torch.randn(4), "is random"),
        (lambda x: nn.functional.dropout(x, 0.5), "is random"),
    ],
)
def test_what_may_go_another_way_is_not_recorded(function, reason):
    eager = Eager(function)
    recorded = TracedFunction(eager)
    for _ in range(6):
        recorded(torch.randn(4))
    assert eager.calls == 6
    assert reason in recorded.refused


def test_random_numbers_are_drawn_as_without_a_recording():
    recorded = TracedFunction(lambda x: x + torch.randn(4))
    torch.manual_seed(3)
    ours = [recorded(torch.zeros(4)) for _ in range(5)]
    torch.manual_seed(3)
    assert all(torch.equal(x, torch.randn(4)) for x in ours)


def test_a_function_that_changes_with_every_call_is_not_traced():
    factors = iter(range(1, 10))
    recorded = TracedFunction(lambda x: x * next(factors))
    assert [float(recorded(torch.ones(()))) for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    assert "mul.Tensor('x0', 2), now x1 = aten.mul.Tensor('x0', 3)" in recorded.refused


def test_operations_without_results_are_repeated():
    values, mean, square, step = torch.ones(3), torch.zeros(3), torch.zeros(3), torch.zeros(())

    def adam():
        torch._fused_adam_(
            [values], [torch.ones(3)], [mean], [square], [], [step],
            lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8,
            amsgrad=False, maximize=False,
        )  # fmt: skip

    recorded = TracedFunction(eager := Eager(adam))
    for _ in range(6):
        step += 1
        recorded()
    assert recorded.refused is None
    assert eager.calls == 5
    assert values.tolist() == pytest.approx([0.4] * 3)


def test_inputs_that_share_memory_are_not_recorded():
    recorded = TracedFunction(lambda a, b: a + b)
    x = torch.ones(2)
    for _ in range(3):
        assert recorded(x, x).tolist() == [2, 2]
    assert "share" in recorded.refused
    assert recorded(x, torch.zeros(2)).tolist() == [1, 1]


def test_inputs_of_ever_new_shapes_are_left_alone():
    eager = Eager(lambda x: x + 1)
    recorded = TracedFunction(eager)
    for rows in range(1, MAX_KEYS + 3):
        assert len(recorded(torch.ones(rows))) == rows
    assert "too many" in recorded.refused
    assert not recorded.traces


def test_large_inputs_are_left_alone():
    recorded = TracedFunction(lambda x: x[0] + 1)
    assert recorded(torch.zeros(MAX_BYTES + 1, dtype=torch.uint8)) == 1
    assert "large" in recorded.refused


def test_true_stands_for_a_number():
    recorded = TracedFunction(lambda x: (x * True, x.sum(0, keepdim=True)))
    for _ in range(5):
        same, total = recorded(torch.ones(3))
        assert same.tolist() == [1, 1, 1]
        assert total.tolist() == [3]
    assert recorded.refused is None


def test_other_threads_are_not_recorded():
    """An actor computes while the learner is being recorded."""
    weight = torch.ones(3)

    def actor():
        weight.mul(7).add(1)

    def learn(x):
        thread = threading.Thread(target=actor)
        thread.start()
        thread.join()
        return weight * x

    recorded = TracedFunction(learn)
    x = torch.full((3,), 2.0)
    assert [recorded(x).tolist() for _ in range(5)] == [[2, 2, 2]] * 5
    assert len(operations(recorded)) == 1


def test_recording_does_not_load_torchs_compiler():
    """Its 800 modules would take longer than recording ever saves in a short run."""
    code = """
import sys, torch
from rookery.tracing import TracedFunction
recorded = TracedFunction(lambda x: (x + 1).float() * 2)
for _ in range(14):
    recorded(torch.ones(3))
assert recorded.traces
assert recorded.refused is None
print(sorted(name for name in sys.modules if name.startswith(("torch._dynamo", "sympy"))))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_what_shares_memory_does_so_in_the_comparison_too():
    """A buffer is emptied as a whole and filled by its parts."""
    buffer = torch.zeros(4)
    first, last = buffer[:2], buffer[2:]

    def fill(x):
        buffer.zero_()
        first.add_(x)
        last.add_(first * 2)
        return buffer.sum()

    recorded = TracedFunction(fill)
    for number in range(1, 7):
        assert float(recorded(torch.full((2,), float(number)))) == 6 * number
    assert recorded.refused is None


class Told(list):
    """The statuses that a traced function reported."""

    def __call__(self, status, is_warning):
        self.append((status, is_warning))


@pytest.mark.parametrize(
    ("function", "first", "then"),
    [
        (lambda x, k: x * k, 2, 3),
        (lambda x, k: x * k, 1, True),
        (lambda x, k: x * k, 1, 1.0),
        (lambda x, bias: x if bias is None else x + 1, None, 0),
        (lambda x, way: getattr(x, way)(), "sum", "prod"),
        (lambda x, tree: x + len(tree), (1, 2), (1, (2,), 3)),
        (lambda x, tree: x + isinstance(tree, list), (), []),
    ],
)
def test_arguments_that_are_no_tensors_are_told_apart(function, first, then):
    eager = Eager(function)
    recorded = TracedFunction(eager)
    x = torch.tensor([2, 5])
    for _ in range(20):
        assert torch.equal(recorded(x, first), function(x, first))
    for _ in range(20):
        assert torch.equal(recorded(x, then), function(x, then))
        assert recorded(x, then).dtype == function(x, then).dtype
    assert recorded.refused is None
    assert eager.calls < 20


def test_a_tensor_is_told_from_none_and_from_one_in_another_place():
    recorded = TracedFunction(lambda tree: sum(k * x for k, x in tree.items() if x is not None))
    trees = [{1: torch.ones(2), 3: None}, {1: None, 3: torch.ones(2)}, {5: torch.ones(2), 3: None}]
    for _ in range(9):
        assert [recorded(tree).tolist() for tree in trees] == [[1, 1], [3, 3], [5, 5]]
    assert len(recorded.traces) == 3


@pytest.mark.parametrize(("odd", "reason"), [({3}, "unhashable"), (Eager(None), "is a Eager")])
def test_an_argument_that_may_change_unseen_is_refused(odd, reason):
    recorded = TracedFunction(lambda x, other: x + 1)
    for _ in range(5):
        assert recorded(torch.ones(1), odd).item() == 2
    assert reason in recorded.refused


@dataclass(frozen=True)
class Config:
    k: float = 2.0


class Owner:
    """An algorithm, as far as recordings know."""

    def __init__(self):
        self.k = 2
        self.config = Config()
        self.factor = torch.tensor(2.0)
        self.module = a_network()

    def by_number(self, x):
        return x * self.k

    def by_config(self, x):
        return x * self.config.k

    def by_tensor(self, x):
        return x * self.factor

    def set(self, k):
        self.k, self.config, self.factor = k, replace(self.config, k=k), torch.tensor(k)


@pytest.mark.parametrize("reads", ["by_number", "by_config", "by_tensor"])
def test_an_attribute_that_is_set_to_another_value_counts_at_once(reads):
    owner = Owner()
    recorded = TracedFunction(getattr(owner, reads), owner=owner)
    for _ in range(20):
        assert recorded(torch.ones(())).item() == 2
    for k in (3.0, 4.0):
        owner.set(k)
        for _ in range(9):
            assert recorded(torch.ones(())).item() == k
    assert recorded.refused is None
    assert all(recording.trusted for recording in recorded.traces.values())


def test_values_that_were_seen_before_need_no_new_recording():
    owner = Owner()
    eager = Eager(owner.by_number)
    recorded = TracedFunction(eager, owner=owner)
    for number in range(200):
        owner.k = float(number % 2)  # a new object every time
        owner.config = Config(0.5)
        owner.module = a_network()
        assert recorded(torch.ones(())).item() == number % 2
    assert len(recorded.traces) == 2
    assert eager.calls < 20


def test_values_that_change_with_every_call_end_in_a_refusal():
    owner = Owner()
    recorded = TracedFunction(owner.by_number, owner=owner, report=(told := Told()))
    for k in range(100):
        owner.k = k
        assert recorded(torch.ones(())).item() == k
    reason = "not traced: it depends on Python values that change: k"
    assert told == [(reason, False)]
    assert not recorded.kept


def test_a_schedule_of_many_steps_ends_in_a_refusal_with_a_warning():
    owner = Owner()
    recorded = TracedFunction(owner.by_number, owner=owner, report=(told := Told()))
    for number in range(100):
        owner.k = number // 5
        assert recorded(torch.ones(())).item() == number // 5
    assert told[-1] == (
        "no longer traced: it depends on Python values that change: k",
        True,
    )


def test_what_changes_unseen_is_found_when_the_recording_is_compared_again():
    """Uses 1, 2, 4, 8, 16 and 32 of the recording are the calls 3, 4, 6, 10, 18 and 34."""
    factor = [2.0]
    total = torch.zeros(())

    def function(x):
        total.add_(x * factor[0])
        return x * factor[0]

    recorded = TracedFunction(function, report=(told := Told()))
    for _ in range(20):
        assert recorded(torch.ones(())).item() == 2
    factor[0] = 3.0
    assert [recorded(torch.ones(())).item() for _ in range(20)] == [2.0] * 13 + [3.0] * 7
    assert total.item() == 33 * 2 + 7 * 3
    assert told[-1][1]
    assert told[-1][0].startswith("no longer traced: a Python value")
    assert len(told) == 2


@pytest.mark.parametrize("change", [lambda x: x * (1 + 1e-7), lambda x: x + 0])
def test_a_change_that_hardly_shows_in_results_is_found(change):
    way = [lambda x: x]
    recorded = TracedFunction(lambda x: way[0](x) * 2)
    for _ in range(4):
        recorded(torch.ones(3))
    assert recorded.refused is None
    way[0] = change
    for _ in range(3):
        recorded(torch.ones(3))
    assert "Python value" in recorded.refused


def test_a_tensor_that_is_exchanged_unseen_is_found():
    held = [torch.ones(3)]
    recorded = TracedFunction(lambda x: x * held[0])
    for _ in range(5):
        recorded(torch.ones(3))
    held[0] = torch.full((3,), 7.0)
    assert [recorded(torch.ones(3))[0].item() for _ in range(2)] == [7, 7]
    assert "other tensors" in recorded.refused


def test_constants_made_anew_are_the_same_constants():
    recorded = TracedFunction(lambda x: x * torch.tensor([1.0, 2.0]) + torch.full((2,), 3.0))
    for _ in range(20):
        assert recorded(torch.ones(2)).tolist() == [4, 5]
    assert recorded.refused is None


def test_one_difference_in_rounding_is_forgiven_and_two_in_a_row_are_not(monkeypatch):
    eager = Eager(lambda x: x + 1)
    recorded = TracedFunction(eager)
    for _ in range(4):
        recorded(torch.ones(3))
    monkeypatch.setattr(trace, "is_close", lambda *given: False)
    recorded(torch.ones(3))
    recorded(torch.ones(3))  # use 4 is compared
    monkeypatch.undo()
    assert recorded(torch.ones(3)).tolist() == [2, 2, 2]
    assert eager.calls == 6
    assert recorded.refused is None
    monkeypatch.setattr(trace, "is_close", lambda *given: False)
    for _ in range(5):
        assert recorded(torch.ones(3)).tolist() == [2, 2, 2]
    assert "other results" in recorded.refused


def test_rounding_that_is_all_there_is_to_a_result_is_no_difference(engine):
    """As of the loss of an agent that has learned: a mean of what is nearly 0."""
    weight = torch.randn(64, 64)
    target = torch.zeros(32, 64)

    def error(x):
        return (x @ weight - target).mean(), (x @ weight).argmax(-1)

    recorded = TracedFunction(error)
    x = torch.randn(32, 64)
    for call in range(70):
        if call == 5:
            target.copy_(x.double() @ weight.double())
        if call == 20:
            weight[:, 1:] = weight[:, :1]  # of equal numbers rounding makes one the greatest
        recorded(x)
    assert recorded.refused is None


def test_python_values_among_the_results_are_compared():
    name = ["first"]
    recorded = TracedFunction(lambda x: (x + 1, name[0]))
    for _ in range(5):
        assert recorded(torch.ones(1))[1] == "first"
    name[0] = "second"
    assert [recorded(torch.ones(1))[1] for _ in range(4)] == ["second"] * 4
    assert "other results" in recorded.refused


def test_modules_that_another_thread_exchanges_are_no_difference():
    """As it is recorded (call 1), and at uses 1 (call 4) and 4 (call 7) of the recording."""
    modules, now = [a_network()], [0]
    others = {call: a_network() for call in (1, 4, 7)}
    for number, network in enumerate(others.values()):
        network[0].weight.data.mul_(number + 2)

    def function(x):
        modules[0] = others.get(now[0], modules[0])
        return modules[0](x).detach()

    eager = Eager(function)
    recorded = TracedFunction(eager, lambda: list(modules))
    x = torch.randn(4, 3)
    for call in range(10):
        now[0] = call
        assert_close(recorded(x), modules[0](x).detach())
    assert recorded.refused is None
    assert eager.calls == 8  # not at use 3 (call 6) and use 6 (call 9)


class Averaging(nn.Module):
    """A module that replaces its buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.mean = 0.999 * self.mean + 0.001 * x
        return x - self.mean


class Counting(nn.Module):
    """A module that counts its calls."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x if self.calls < 10 else 2 * x


@pytest.mark.parametrize("make", [Averaging, Counting])
def test_a_module_that_sets_its_attributes_is_not_traced(make):
    ours, theirs = make(), make()
    recorded = TracedFunction(ours, lambda: [ours])
    for _ in range(20):
        x = torch.randn(3)
        assert torch.equal(recorded(x), theirs(x))
    assert "sets attributes" in recorded.refused


def test_an_owner_that_counts_calls_is_not_traced():
    class Counts:
        calls = 0

        def __call__(self, x):
            self.calls += 1
            return x * (self.calls < 30)

    owner = Counts()
    recorded = TracedFunction(owner, owner=owner)
    assert [recorded(torch.ones(())).item() for _ in range(40)] == [1] * 29 + [0] * 11
    assert recorded.refused == "it depends on Python values that change: calls"


def test_the_status_says_what_runs_the_recordings(engine):
    recorded = TracedFunction(lambda x: x + 1)
    recorded(torch.ones(3))
    recorded(torch.ones(3))
    assert recorded.status is None
    recorded(torch.ones(3))
    assert recorded.status.startswith(f"traced, run by {engine}")
