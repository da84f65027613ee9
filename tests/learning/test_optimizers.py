"""The flat optimizers compute what torch.optim computes."""

import pytest
import torch

from rookery.algorithms.base import OptimizerConfig
from rookery.learning.optimizers import RMSPROP_DECAY, make_optimizer


def torch_optimizer(name, values, config):
    rate, epsilon = config.learning_rate, config.epsilon
    if name == "adam":
        return torch.optim.Adam([values], lr=rate, eps=epsilon)
    if name == "rmsprop":
        return torch.optim.RMSprop(
            [values], lr=rate, eps=epsilon, alpha=RMSPROP_DECAY, centered=True
        )
    return torch.optim.SGD([values], lr=rate)


@pytest.mark.parametrize("divisor", [None, 1.0, 2.5])
@pytest.mark.parametrize("name", ["adam", "rmsprop", "sgd"])
def test_steps_equal_torch(name, divisor):
    config = OptimizerConfig(optimizer=name, learning_rate=0.01, epsilon=1e-5)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(200, generator=generator)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    step, reference = make_optimizer(ours, config), torch_optimizer(name, theirs, config)
    for number in range(50):
        ours.grad = torch.randn(200, generator=generator)
        theirs.grad = ours.grad / (divisor or 1)
        if number == 25:
            step.learning_rate = reference.param_groups[0]["lr"] = 0.002
        step.step(None if divisor is None else torch.tensor(divisor))
        reference.step()
    assert not torch.allclose(ours, start, atol=1e-2)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_rmsprop_stays_finite_where_rounding_makes_the_variance_negative():
    config = OptimizerConfig(optimizer="rmsprop", learning_rate=0.001, epsilon=1e-5)
    constant = torch.linspace(0.1, 10, 100)
    values = torch.nn.Parameter(torch.zeros(100))
    optimizer = make_optimizer(values, config)
    smallest = 0.0
    for _ in range(400):
        values.grad = constant.clone()
        optimizer.step()
        variance = optimizer.state["square"] - optimizer.state["mean"] ** 2
        smallest = min(smallest, float(variance.min()))
    assert smallest < 0
    assert torch.isfinite(values).all()
    assert (values < 0).all()


def test_state_is_all_there_is():
    config = OptimizerConfig(optimizer="adam", learning_rate=0.1)
    a, b = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    first, second = make_optimizer(a, config), make_optimizer(b, config)
    a.grad = torch.tensor([1.0, -2.0, 3.0])
    first.step()
    b.data.copy_(a.data)
    for name, value in second.state.items():
        value.copy_(first.state[name])
    b.grad = a.grad
    first.step()
    second.step()
    assert torch.equal(a, b)
