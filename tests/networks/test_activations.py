"""The fast tanh equals torch's."""

import pytest
import torch

from rookery.networks.activations import ACTIVATIONS, Tanh


def test_tanh_is_torchs_forward_and_backward():
    x = torch.cat([torch.linspace(-12, 12, 20_001), torch.tensor([-200.0, 200.0, 1e-8, 0.0])])
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    weight = torch.linspace(-1, 1, len(x))
    y, z = Tanh()(ours), theirs.tanh()
    (y * weight).sum().backward()
    (z * weight).sum().backward()
    torch.testing.assert_close(y, z, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=0)
    with torch.inference_mode():
        assert torch.equal(Tanh()(x), y)  # acting and learning see the same features


def test_tanh_gradient_passes_gradcheck():
    x = torch.linspace(-3, 3, 31, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Tanh(), (x,))


def test_tanh_does_not_change_its_input():
    x = torch.randn(10)
    before = x.clone()
    Tanh()(x)
    assert torch.equal(x, before)


def test_tanh_keeps_small_values_in_bfloat16():
    x = torch.tensor([1e-3, -2e-3, 0.01], dtype=torch.bfloat16)
    torch.testing.assert_close(Tanh()(x), x.tanh())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_keep_the_shape(name):
    assert ACTIVATIONS[name]()(torch.randn(2, 3, 4)).shape == (2, 3, 4)
