"""The core over a window equals the core step by step, with the state cleared at resets."""

import copy

import pytest
import torch
from scenes import CPU
from torch import nn

from rookery.networks.recurrent import Core, clear, resets

T, B, INPUTS, SIZE = 12, 5, 3, 4


def loop(core, x, state, reset):
    """Return features and last state, computed row by row and lane by lane."""
    outputs = []
    for t in range(T):
        state = tuple(
            torch.stack([part[b] * (0 if reset[t, b] else 1) for b in range(B)]) for part in state
        )
        features, state = core(x[t : t + 1], state)
        outputs.append(features)
    return torch.cat(outputs), state


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_a_window_equals_the_loop_over_its_rows(kind, share):
    torch.manual_seed(0)
    core = Core(kind, INPUTS, SIZE)
    x = torch.randn(T, B, INPUTS)
    state = tuple(torch.randn(B, SIZE) for _ in range(core.parts))
    reset = torch.rand(T, B) < share
    expected, _ = loop(core, x, state, reset)
    torch.testing.assert_close(core.window(x, state, reset), expected)
    if not reset.any():
        torch.testing.assert_close(core.window(x, state, None), expected)
        torch.testing.assert_close(core(x, state)[0], expected)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gradients_do_not_flow_across_a_reset(kind):
    core = Core(kind, INPUTS, SIZE)
    x = torch.randn(T, B, INPUTS, requires_grad=True)
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[6, 2] = True
    features = core.window(x, core.initial_state(B, CPU), reset)
    features[6:].sum().backward()
    touched = x.grad[:6].abs().sum((0, 2)) > 0
    assert touched.tolist() == [True, True, False, True, True]


def test_the_lstm_equals_torchs_with_one_bias():
    ours, theirs = Core("lstm", INPUTS, SIZE), nn.LSTM(INPUTS, SIZE)
    with torch.no_grad():
        ours.rnn.bias_ih_l0.normal_()
        for name, parameter in theirs.named_parameters():
            parameter.copy_(getattr(ours.rnn, name))
    assert not theirs.bias_hh_l0.any()
    assert sum(p.numel() for p in ours.parameters()) == 4 * SIZE * (INPUTS + SIZE + 1)
    x, state = torch.randn(T, B, INPUTS), ours.initial_state(B, CPU)
    for core in (ours, copy.deepcopy(ours), ours.to(torch.device("cpu"))):
        torch.testing.assert_close(core(x, state)[0], theirs(x)[0])
    ours.to(torch.float64)
    assert ours(x.double(), tuple(s.double() for s in state))[0].dtype == torch.float64


def test_clear_zeroes_only_the_marked_lanes():
    (state,) = clear((torch.ones(3, 2),), torch.tensor([True, False, True]))
    assert state.tolist() == [[0, 0], [1, 1], [0, 0]]


def test_state_is_cleared_after_each_masked_row():
    mask = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0]])
    expected = [[False, False, False], [False, True, False], [True, False, False]]
    assert resets(mask).tolist() == expected
    assert resets(torch.ones(4, 2)) is None
    # A boundary after the last row affects only the next window.
    assert resets(torch.tensor([[1], [0]])) is None


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_state_after_a_window_equals_the_loops(kind, share):
    torch.manual_seed(0)
    core = Core(kind, INPUTS, SIZE)
    x = torch.randn(T, B, INPUTS)
    state = tuple(torch.randn(B, SIZE) for _ in range(core.parts))
    reset = torch.rand(T, B) < share
    _, expected = loop(core, x, state, reset)
    for ours, theirs in zip(core.after(x, state, reset), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    if not reset.any():
        for ours, theirs in zip(core.after(x, state, None), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
