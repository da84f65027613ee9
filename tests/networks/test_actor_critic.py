"""Policy heads: log-probabilities against torch.distributions, draws against probabilities."""

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from torch import distributions as D

from rookery.errors import BadInput
from rookery.networks.actor_critic import policy_head

FEATURES = 6
DISCRETE = spaces.Discrete(5, start=3)
MULTI = spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [2, -1]])
BINARY = spaces.MultiBinary((2, 2))
BOX = spaces.Box(np.array([-1, -3], np.float32), np.array([1, 5], np.float32))
SPACES = {"discrete": DISCRETE, "multi": MULTI, "binary": BINARY, "box": BOX}


def a_head(space, log_std=-0.3):
    return policy_head(FEATURES, space, log_std)


def some_params(head, rows=1000, seed=0):
    """Return random distribution parameters [rows, P]."""
    rng = torch.Generator().manual_seed(seed)
    width = head(torch.zeros(1, FEATURES)).shape[-1]
    return torch.randn(rows, width, generator=rng)


def sampled(head, params, seed):
    """Return a sampled action for every row of parameters."""
    generator = torch.Generator().manual_seed(seed)
    return head.sample(params, head.draw(len(params), generator, params.device))


def torch_reference(name, params):
    """Return log-probability function and entropy of torch.distributions."""
    if name == "discrete":
        d = D.Categorical(logits=params)
        return d.log_prob, d.entropy()
    if name == "multi":
        parts = [D.Categorical(logits=p) for p in params.split([2, 3, 4, 2], -1)]
        return (
            lambda a: sum(d.log_prob(a[..., i]) for i, d in enumerate(parts)),
            sum(d.entropy() for d in parts),
        )
    if name == "binary":
        d = D.Independent(D.Bernoulli(logits=params), 1)
        return lambda a: d.log_prob(a.float()), d.entropy()
    mean, log_std = params[..., :2], params[..., 2:]
    d = D.Independent(D.Normal(mean, log_std.exp()), 1)
    return d.log_prob, d.entropy()


@pytest.mark.parametrize("name", SPACES)
def test_log_prob_and_entropy_equal_torch_distributions(name):
    head = a_head(SPACES[name])
    params = some_params(head)
    action = sampled(head, params, 1)
    log_prob, entropy = torch_reference(name, params)
    torch.testing.assert_close(
        head.log_prob(params, action), log_prob(action), atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(head.entropy(params), entropy, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SPACES)
def test_time_and_lane_axes_pass_through(name):
    head = a_head(SPACES[name])
    params = some_params(head, 6)
    action = sampled(head, params, 1)
    folded = params.view(2, 3, -1), action.view(2, 3, *action.shape[1:])
    assert torch.equal(head.log_prob(*folded).flatten(), head.log_prob(params, action))
    assert torch.equal(head.entropy(folded[0]).flatten(), head.entropy(params))
    assert head.to_env(folded[1]).shape == (2, 3, *SPACES[name].shape)


@pytest.mark.parametrize("name", SPACES)
def test_actions_are_contained_in_the_space(name):
    space, head = SPACES[name], a_head(SPACES[name])
    params = 3 * some_params(head, 300)
    for action in (sampled(head, params, 1), head.mode(params)):
        rows = head.to_env(action).numpy().astype(space.dtype)
        assert all(space.contains(row if space.shape else space.dtype.type(row)) for row in rows)


def assert_follows(counts, probabilities):
    """Assert that chi-square is below its mean plus five deviations."""
    expected = probabilities * counts.sum()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5, statistic


def test_categorical_draws_follow_the_probabilities():
    head = a_head(DISCRETE)
    logits = torch.tensor([2.0, 0.5, -1.0, -4.0, 1.0])
    draws = sampled(head, logits.expand(200_000, 5), 0)
    assert_follows(draws.bincount(minlength=5).double(), logits.softmax(-1).double())


def test_multi_categorical_draws_follow_the_probabilities_and_are_independent():
    head = a_head(spaces.MultiDiscrete([2, 3]))
    logits = torch.tensor([1.0, 0.0, -1.0, 0.5, 0.0])
    draws = sampled(head, logits.expand(200_000, 5), 0)
    joint = torch.outer(logits[:2].softmax(-1), logits[2:].softmax(-1)).flatten()
    counts = (draws[:, 0] * 3 + draws[:, 1]).bincount(minlength=6)
    assert_follows(counts.double(), joint.double())


def test_bernoulli_draws_follow_the_probabilities():
    head = a_head(spaces.MultiBinary(2))
    logits = torch.tensor([1.0, -2.0])
    draws = sampled(head, logits.expand(200_000, 2), 0).long()
    p, q = logits.sigmoid().tolist()
    joint = torch.tensor([(1 - p) * (1 - q), (1 - p) * q, p * (1 - q), p * q])
    assert_follows((draws[:, 0] * 2 + draws[:, 1]).bincount(minlength=4).double(), joint.double())


def test_gaussian_draws_have_the_mean_and_deviation():
    head = a_head(BOX)
    params = torch.tensor([1.0, -2.0, np.log(0.5), np.log(3.0)], dtype=torch.float32)
    draws = sampled(head, params.expand(200_000, 4), 0)
    torch.testing.assert_close(draws.mean(0), torch.tensor([1.0, -2.0]), atol=0.03, rtol=0)
    torch.testing.assert_close(draws.std(0), torch.tensor([0.5, 3.0]), atol=0.03, rtol=0)


@pytest.mark.parametrize("name", SPACES)
def test_the_same_generator_state_gives_the_same_draws(name):
    head = a_head(SPACES[name])
    params = some_params(head, 50)
    one, again, other = (sampled(head, params, s) for s in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("name", SPACES)
def test_the_first_policy_does_not_depend_on_the_observation(name):
    head = a_head(SPACES[name])
    params = head(torch.randn(4, FEATURES))
    if name == "box":
        assert bool((params[:, :2] == 0).all())
        assert torch.equal(params[:, 2:], torch.full((4, 2), -0.3))
    else:
        assert bool((params == 0).all())
    choices = {"discrete": 5, "multi": 2 * 3 * 4 * 2, "binary": 2**4}
    if name in choices:
        torch.testing.assert_close(
            head.entropy(params), torch.full((4,), np.log(choices[name])).float()
        )


@pytest.mark.parametrize("name", SPACES)
def test_distribution_parameters_are_float32_under_autocast(name):
    head = a_head(SPACES[name])
    with torch.autocast("cpu", torch.bfloat16):
        params = head(torch.randn(4, FEATURES))
    assert params.dtype == torch.float32
    if name == "box":
        assert torch.equal(params[:, 2:], torch.full((4, 2), -0.3))  # not -0.3008


def test_modes_by_hand():
    assert a_head(DISCRETE).mode(torch.tensor([0.0, 2, 1, 0, 0])).item() == 1
    multi = a_head(spaces.MultiDiscrete([2, 3]))
    assert multi.mode(torch.tensor([0.0, 1, 5, 0, 0])).tolist() == [1, 0]
    assert a_head(spaces.MultiBinary(2)).mode(torch.tensor([1.0, -1])).tolist() == [1, 0]
    assert a_head(BOX).mode(torch.tensor([0.5, 2, -1, -1])).tolist() == [0.5, 2]


def test_discrete_actions_are_counted_from_the_spaces_start():
    assert a_head(DISCRETE).to_env(torch.tensor([0, 4])).tolist() == [3, 7]


def test_multi_discrete_actions_take_the_spaces_shape_and_start():
    action = torch.tensor([[0, 0, 0, 0], [1, 2, 3, 1]])
    assert a_head(MULTI).to_env(action).tolist() == [[[0, 1], [2, -1]], [[1, 3], [5, 0]]]


def test_multi_binary_actions_take_the_spaces_shape():
    assert a_head(BINARY).to_env(torch.tensor([[1, 0, 0, 1]])).tolist() == [[[1, 0], [0, 1]]]


def test_gaussian_actions_are_scaled_and_clipped_to_the_bounds():
    head = a_head(BOX)
    action = torch.tensor([[-1.0, -1], [0, 0], [1, 1], [0.5, 0.5], [9, -9]])
    expected = [[-1, -3], [0, 1], [1, 5], [0.5, 3], [1, -3]]
    assert head.to_env(action).tolist() == expected


def test_gaussian_actions_respect_half_infinite_and_infinite_bounds():
    low = np.array([0, -np.inf, -np.inf], np.float32)
    high = np.array([np.inf, 2, np.inf], np.float32)
    head = a_head(spaces.Box(low, high))
    assert head.to_env(torch.tensor([[-3.0, -3, -3], [7, 7, 7]])).tolist() == [
        [0, -3, -3],
        [7, 2, 7],
    ]


def test_gaussian_deviation_gets_its_gradient():
    head = a_head(BOX)
    params = head(torch.randn(3, FEATURES))
    head.log_prob(params, torch.ones(3, 2)).sum().backward()
    # d log p / d log_std = z^2 - 1 with z = exp(0.3), three rows.
    slope = 3 * (np.exp(0.6) - 1)
    torch.testing.assert_close(head.log_std.grad, torch.full((2,), slope).float())


@pytest.mark.parametrize(
    "space",
    [spaces.Dict({"a": DISCRETE}), spaces.Box(0, 5, (2,), np.int64), spaces.Text(3)],
    ids=["dict", "whole numbers", "text"],
)
def test_an_unsupported_action_space_is_an_error(space):
    with pytest.raises(BadInput, match="action space"):
        policy_head(FEATURES, space, 0.0)
