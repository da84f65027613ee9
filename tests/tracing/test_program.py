"""Generated programs give the results of the recorded PyTorch operations."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from rookery.tracing import numpy_operations, program
from rookery.tracing.numpy_operations import TRANSLATIONS
from rookery.tracing.program import OUT_VARIANTS, SET_ASIDE, Binding, Program
from rookery.tracing.recorder import Recorder, collect, replace_leaves
from rookery.tracing.trace import fold_constants

aten = torch.ops.aten
NAN, INFINITY = float("nan"), float("inf")


def numbers(*shape, dtype=torch.float32, seed=0):
    """Random numbers of both signs."""
    draw = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(shape, generator=draw, dtype=torch.float64)).to(dtype)


A, B = numbers(6, 5), numbers(6, 5, seed=1)
A[0, 0], B[0, 0] = 0.0, 0.0
ROW, COLUMN, SINGLE = numbers(5, seed=2), numbers(6, 1, seed=3), numbers(seed=4)
DOUBLE = numbers(seed=5, dtype=torch.float64)
WHICH = torch.tensor([[4], [0], [2], [2], [1], [3]])
WHOLE, YES = torch.arange(30).view(6, 5) - 9, A > B
BYTES = torch.arange(30, dtype=torch.uint8).view(6, 5) * 8
EXTREME = torch.tensor([NAN, INFINITY, -INFINITY, 0.0, 1e30, -1e30])

OPERATIONS = {
    **{
        f"{name} {kind}": (call, inputs)
        for name, call in {
            "add": lambda x, y: x + y,
            "sub": lambda x, y: x - y,
            "mul": lambda x, y: x * y,
            "div": lambda x, y: x / y,
            "lt": lambda x, y: x < y,
            "le": lambda x, y: x <= y,
            "gt": lambda x, y: x > y,
            "ge": lambda x, y: x >= y,
            "eq": lambda x, y: x == y,
            "ne": lambda x, y: x != y,
        }.items()
        for kind, inputs in {
            "alike": (A, B),
            "with a row": (A, ROW),
            "with a column": (A, COLUMN),
            "with one number": (A, SINGLE),
            "with one of another type": (ROW, DOUBLE),
            "of single numbers": (SINGLE, DOUBLE),
            "of whole numbers": (WHOLE, WHOLE.flip(0)),
            "with whole numbers": (A, WHOLE),
            "transposed": (A.t(), B.t()),
            "of extremes": (EXTREME, EXTREME.flip(0)),
        }.items()
        if inputs[0].dtype == inputs[1].dtype or name in ("add", "sub", "mul", "div")
        if (name, kind) != ("div", "of whole numbers")
    },
    "with yes and no": (lambda x, y: (x * y, x + y), (A, YES)),
    "scalars": (lambda x: (((x + 2) * 0.3 - 1) / 7, x < 0.5, x <= 0, x > 1, x >= 1, x == 0), (A,)),
    "scalars and whole numbers": (lambda x: (x * 2, x + 3, x > 2, x != 4), (WHOLE,)),
    "scalar overloads": (
        lambda x: (
            aten.add.Scalar(x, 2), aten.sub.Scalar(x, 2), aten.mul.Scalar(x, 2),
            aten.div.Scalar(x, 2), aten.ne.Scalar(x, 0),
            aten.add_.Scalar(x.clone(), 2), aten.sub_.Scalar(x.clone(), 2),
            aten.mul_.Scalar(x.clone(), 2), aten.div_.Scalar(x.clone(), 2),
        ),
        (A,),
    ),
    "in place": (lambda x, y: x.clone().add_(y).mul_(y).sub_(1).div_(3).neg_().abs_(), (A, B)),
    "functions in place": (
        lambda x: x.clone().abs_().add_(1).log_().sqrt_().exp_().tanh_().sigmoid_(), (A,)
    ),
    "functions": (
        lambda x: (x.neg(), x.abs(), x.exp(), x.tanh(), x.sigmoid(), x.square(), x.sign(), x.sgn()),
        (A,),
    ),
    "functions of extremes": (
        lambda x: (x.neg(), x.abs(), x.exp(), x.tanh(), x.sigmoid(), x.relu(), x.log(), x.sqrt()),
        (EXTREME,),
    ),
    "larger and smaller": (lambda x, y: (x.maximum(y), x.minimum(y)), (A, B)),
    "not": (lambda x: x.logical_not(), (YES,)),
    "relu": (lambda x: (x.relu(), x.clone().relu_()), (A,)),
    "clamp": (
        lambda x: (x.clamp(-1, 1), x.clamp(min=0.5), x.clamp(max=0.5), x.clone().clamp_(-1, 1)),
        (A,),
    ),
    "clamped on one side": (
        lambda x: (
            aten.clamp_min(x, 0.5), aten.clamp_max(x, 0.5),
            aten.clamp_min_(x.clone(), 0.5), aten.clamp_max_(x.clone(), 0.5),
        ),
        (A,),
    ),
    "clamped extremes": (lambda x: x.clamp(-2, 2), (EXTREME,)),
    "where": (lambda c, x, y: (torch.where(c, x, y), torch.where(c, x, y[0, 0])), (YES, A, B)),
    "addcmul": (
        lambda x, y: (x.addcmul(x, y), x.addcmul(y, y, value=-1), x.addcmul(x, y, value=0.3)),
        (A, B),
    ),
    "products": (lambda x, y: (x @ y.t(), x.t() @ y), (A, B)),
    "a large product": (lambda x: x @ x, (numbers(100, 100),)),
    "layers": (
        lambda x, w, b: (F.linear(x, w, b), F.linear(x, w), torch.addmm(b, x, w.t())),
        (A, numbers(3, 5), numbers(3)),
    ),
    "dot": (lambda x, y: x.dot(y), (ROW, ROW.flip(0))),
    "sums": (
        lambda x: (
            x.sum(), x.sum(0), x.sum(1), x.sum(-1, keepdim=True), x.sum(0, keepdim=True),
            x.sum((0, 1)), x.t().sum(0), x.sum(dtype=torch.float64), x.sum(0, dtype=torch.float64),
        ),
        (A,),
    ),
    "sums of yes and no": (lambda x: (x.sum(), x.sum(0), x.sum(1)), (YES,)),
    "means": (lambda x: (x.mean(), x.mean(0), x.mean(-1, keepdim=True)), (A,)),
    "largest": (lambda x: (x.amax(), x.amax(-1), x.amax(0, keepdim=True), x.argmax(-1)), (A,)),
    "the first of the largest": (lambda x: x.argmax(-1), (torch.zeros(3, 4),)),
    "stack": (lambda x, y: (torch.stack([x, y]), torch.stack([x, y], -1)), (A, B)),
    "cat": (lambda x, y: (torch.cat([x, y]), torch.cat([x, y], -1)), (A, B)),
    "emptied and copied": (lambda x, y: (x.clone().zero_(), x.clone().copy_(y)), (A, B)),
    "types": (lambda x: (x.double(), x.long(), x.bool(), x.to(torch.int16)), (A,)),
    "gather": (lambda x, i: x.gather(1, i), (A, WHICH)),
    "several of a row": (lambda x, i: x.gather(-1, i), (A, torch.cat([WHICH, WHICH.flip(0)], 1))),
    "scatter": (lambda x, i, y: x.scatter_add(1, i, y), (A, WHICH, COLUMN)),
    "softmax": (lambda x: (x.log_softmax(-1), x.log_softmax(0)), (A,)),
    "softmax of great numbers": (lambda x: (100 * x).log_softmax(-1), (A,)),
    "squared error": (lambda x, y: F.mse_loss(x, y, reduction="none"), (A, B)),
    "huber": (
        lambda x, y: (
            F.huber_loss(x, y, reduction="none"), F.huber_loss(x, y, reduction="none", delta=0.3)
        ),
        (A, B),
    ),
    "views": (lambda x: x.t()[1:3].unsqueeze(0).expand(2, 2, 6).select(0, 1) + 1, (A,)),
}  # fmt: skip

GRADIENTS = {
    "tanh": lambda x: x.tanh().sum(),
    "relu": lambda x: (x.relu() * B).sum(),
    "log_softmax": lambda x: (x.log_softmax(-1) * B).sum(),
    "gather": lambda x: (x.gather(1, WHICH) * COLUMN).sum(),
    "mse": lambda x: (F.mse_loss(x, B, reduction="none") * A).sum(),
    "huber": lambda x: (F.huber_loss(x, B, reduction="none", delta=0.7) * A).sum(),
    "clipped": lambda x: torch.where(x < 1, x * B, B).sum(),
    "a network": lambda x: F.linear(F.linear(x, B).tanh(), B.t()).square().mean(),
}


IN_INFERENCE = ("layers", "types")


def program_of(function, inputs):
    """The program of a function, the tensors that it captured, and the function's result."""
    own = [x.clone() for x in inputs]
    with Recorder(own) as recorder:
        result = function(*own)
    assert recorder.refused is None
    slots = replace_leaves(result, torch.Tensor, recorder.slot_of)
    calls, constants = fold_constants(recorder.calls, recorder.tensors)
    captured = [*recorder.captured, *constants]
    made = Program(recorder.inputs, captured, calls, slots, recorder.tensors)
    return made, [recorder.tensors[slot].detach() for slot in captured], result


def tensors_of(tree):
    return collect(tree, torch.Tensor)


def check(function, inputs, others):
    """Compare the program with the function on both kinds of inputs; return the program."""
    made, captured, expected = program_of(function, inputs)
    run = made.bind(captured)
    assert_close(
        tensors_of(run(*[x.clone() for x in inputs])), tensors_of(expected), equal_nan=True
    )
    theirs = function(*[x.clone() for x in others])
    ours = run(*[x.clone() for x in others])
    assert_close(tensors_of(ours), tensors_of(theirs), equal_nan=True)
    return made


def gradient_of(name):
    def gradient(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(GRADIENTS[name](x), x)[0]

    return gradient


@pytest.fixture(params=["NumPy", "out variants", "PyTorch"])
def engine(request, monkeypatch):
    """The functions that run the operations."""
    if request.param == "out variants":
        always = {op: (function, name, 0) for op, (function, name, _) in OUT_VARIANTS.items()}
        monkeypatch.setattr(program, "OUT_VARIANTS", always)
    if request.param == "PyTorch":
        monkeypatch.setattr(program, "SET_ASIDE", 0)
    return request.param


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_the_results_of_pytorch(name, engine):
    function, inputs = OPERATIONS[name]
    others = [x.flip(0) if x.ndim and x.dtype != torch.int64 else x for x in inputs]
    made = check(function, inputs, others)
    assert made.engines <= {"PyTorch" if engine == "PyTorch" else "NumPy"}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_pytorch(name, engine):
    made = check(gradient_of(name), [A], [A * 0.7 + 0.2])
    assert made.engines == {"PyTorch" if engine == "PyTorch" else "NumPy"}


def test_every_translation_is_tested():
    tested = set()
    for function, inputs in OPERATIONS.values():
        tested.update(call.operation for call in program_of(function, inputs)[0].calls)
    for name in GRADIENTS:
        tested.update(call.operation for call in program_of(gradient_of(name), [A])[0].calls)
    for name in IN_INFERENCE:
        with torch.inference_mode():
            tested.update(call.operation for call in program_of(*OPERATIONS[name])[0].calls)
    assert set(TRANSLATIONS) <= tested
    assert set(OUT_VARIANTS) <= set(TRANSLATIONS)


@pytest.mark.parametrize("name", IN_INFERENCE)
def test_operations_that_are_not_decomposed_in_inference_mode(name, engine):
    function, inputs = OPERATIONS[name]
    with torch.inference_mode():
        check(function, inputs, inputs)


UNTRANSLATED = [
    (lambda x, y: torch.add(x, y, alpha=2), (A, B)),
    (lambda x, y: torch.addmm(x[0, 0], x, y.t(), beta=0.5), (A, B)),
    (lambda x, y: x[:5].clone().addmm_(x.t(), y), (A, B)),
    (lambda x: x.pow(3), (A,)),
    (lambda x: torch.erf(x), (A,)),
    (lambda x: x.argmax(-1, keepdim=True), (A,)),
    (lambda x: x.std(), (A,)),
    (lambda x: x.gather(0, WHICH[:5].t()), (A,)),
    (lambda x, y: F.mse_loss(x, y), (A, B)),
    (lambda x, y: F.huber_loss(x, y), (A, B)),
    (lambda x, i: x.scatter_add(1, torch.cat([i, i], 1), x), (A, WHICH)),
    (lambda x: x.max(-1).values, (A,)),
    (lambda x: x + 1, (A.bfloat16(),)),
    (lambda x: x + 1, (torch.zeros(SET_ASIDE + 1),)),
    (lambda x: x.sum(), (torch.zeros(0),)),
    (lambda x: x.add_(1), (A,)),
    (lambda x, y: x / y, (WHOLE, WHOLE)),
    (lambda x: x + 1.5, (WHOLE,)),
    (lambda x, y: x == y, (ROW, DOUBLE)),
    (lambda x, y: x < y, (A, WHOLE)),
    (lambda x: x.pow(2.0), (BYTES,)),
    (lambda x: x.exp(), (BYTES,)),
    (lambda x: x.sigmoid(), (BYTES,)),
    (lambda x, y: x.addcmul(y, y), (A, BYTES)),
    (lambda x: x == -1, (BYTES,)),
    (lambda x, y: x + y, (BYTES, WHOLE[0, 0])),
    (lambda x: x.sum(-1), (SINGLE,)),
    (lambda x: x.sign(), (YES,)),
    (lambda x, i: x.gather(1, i), (A, WHICH[:3])),
]


@pytest.mark.parametrize(("function", "inputs"), UNTRANSLATED)
def test_operations_without_a_translation_are_left_to_pytorch(function, inputs):
    made = check(function, inputs, inputs)
    assert "PyTorch" in made.engines


def test_results_of_pytorch_are_handed_to_numpy_and_back():
    def function(x):
        return (torch.erf(x * 2) + 1).erf() * 3

    made = check(function, [A], [B])
    assert made.engines == {"NumPy", "PyTorch"}
    assert len(made.by_torch) == 2


def test_inputs_and_results_do_not_share_memory_with_the_program():
    made, captured, _ = program_of(lambda x: (x + 1, x), [A])
    run, given = made.bind(captured), A.clone()
    first, same = run(given)
    run(given + 1)
    assert_close(first, A + 1)
    assert_close(same, A)
    assert_close(given, A)


def test_captured_tensors_are_read_and_written(engine):
    weight, total = torch.ones(5), torch.zeros(5)

    def add(x):
        total.add_(x * weight)
        return total.sum()

    made, captured, _ = program_of(add, [ROW])
    theirs = {id(weight): torch.full((5,), 2.0), id(total): torch.zeros(5)}
    others = {weight.data_ptr(): theirs[id(weight)], total.data_ptr(): theirs[id(total)]}
    run = made.bind([others[tensor.data_ptr()] for tensor in captured])
    for number in range(1, 4):
        assert_close(run(ROW), number * 2 * ROW.sum())
    assert_close(theirs[id(total)], 6 * ROW)


def test_large_products_are_computed_by_pytorch(monkeypatch):
    """They are spread over the threads that the run may have."""
    monkeypatch.setattr(numpy_operations, "PRODUCT", 10)
    made, captured, _ = program_of(lambda x, y: F.linear(x, y), (A, B))
    steps = [x for x in Binding(made, captured).variables.values() if hasattr(x, "func")]
    assert [step.func for step in steps] == [torch.mm]


def test_threads_take_turns():
    network = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3)).requires_grad_(False)
    made, captured, _ = program_of(lambda x: network(x), [torch.randn(8, 4)])
    run = made.bind(captured)
    wrong = []

    def play(seed):
        draw = torch.Generator().manual_seed(seed)
        for _ in range(300):
            x = torch.randn(8, 4, generator=draw)
            if not torch.allclose(run(x), network(x), atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=play, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
