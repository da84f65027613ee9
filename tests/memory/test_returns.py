"""Advantages and returns against answers by hand and brute force."""

import pytest
import torch
from scenes import column

from rookery.memory.returns import gae, n_step, rescale, reward_to_go, unrescale


def random_window(seed, rows=24, lanes=7):
    """Return reward, discount, mask [T, B] and value [T + 1, B], with all kinds of episode ends.

    A masked row follows each ending, on the first row at times, as a segment's cut leaves it.
    """
    rng = torch.Generator().manual_seed(seed)
    reward = torch.randn(rows, lanes, generator=rng)
    value = torch.randn(rows + 1, lanes, generator=rng)
    discount, mask = torch.ones(rows, lanes), torch.ones(rows, lanes)
    ending = torch.randint(6, (rows + 1, lanes), generator=rng)  # 0 terminates, 1 truncates
    for b in range(lanes):
        resetting = bool(ending[-1, b] <= 1)
        for t in range(rows):
            if resetting:
                mask[t, b], reward[t, b], resetting = 0, 0, False
                continue
            discount[t, b] = float(ending[t, b] != 0)
            resetting = bool(ending[t, b] <= 1)
    return reward, discount, mask, value


def ends(t, b, discount, mask):
    """True if row t is its episode's last in the window."""
    return discount[t, b] == 0 or t + 1 == len(mask) or mask[t + 1, b] == 0


def brute_gae(reward, discount, mask, value, gamma, lam):
    """Return the O(T^2) sum over later TD errors of the same episode."""
    out = torch.zeros_like(reward)
    rows, lanes = reward.shape
    for b in range(lanes):
        for t in range(rows):
            if not mask[t, b]:
                continue
            for k in range(t, rows):
                delta = reward[k, b] + gamma * discount[k, b] * value[k + 1, b] - value[k, b]
                out[t, b] += (gamma * lam) ** (k - t) * delta
                if ends(k, b, discount, mask):
                    break
    return out


def brute_returns(reward, discount, mask, value, gamma):
    """Return the O(T^2) sum of later rewards of the same episode and its bootstrap value."""
    out = torch.zeros_like(reward)
    rows, lanes = reward.shape
    for b in range(lanes):
        for t in range(rows):
            if not mask[t, b]:
                continue
            for k in range(t, rows):
                out[t, b] += gamma ** (k - t) * reward[k, b]
                if ends(k, b, discount, mask):
                    out[t, b] += gamma ** (k + 1 - t) * discount[k, b] * value[k + 1, b]
                    break
    return out


def test_truncation_bootstraps_and_termination_does_not():
    reward, mask = column([1, 1, 0, 1]), column([1, 1, 0, 1])  # row 2: autoreset
    value = column([0, 0, 10, 0, 0])  # 10 at the final observation
    truncated = gae(reward, column([1, 1, 1, 1]), mask, value, gamma=1, lam=1)
    terminated = gae(reward, column([1, 0, 1, 1]), mask, value, gamma=1, lam=1)
    assert truncated.flatten().tolist() == [12, 11, 0, 1]
    assert terminated.flatten().tolist() == [2, 1, 0, 1]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_gae_equals_brute_force(seed, lam):
    window = random_window(seed)
    expected = brute_gae(*window, gamma=0.9, lam=lam)
    torch.testing.assert_close(gae(*window, gamma=0.9, lam=lam), expected, atol=1e-5, rtol=1e-5)


def test_lambda_0_is_the_td_error():
    reward, discount, mask, value = random_window(7)
    error = (reward + 0.9 * discount * value[1:] - value[:-1]) * mask
    assert torch.equal(gae(reward, discount, mask, value, 0.9, 0.0), error)


def test_lambda_1_is_monte_carlo_minus_the_value():
    reward, discount, mask, value = random_window(8)
    monte_carlo = brute_returns(reward, discount, mask, value, 0.9)
    expected = (monte_carlo - value[:-1]) * mask
    got = gae(reward, discount, mask, value, 0.9, 1.0)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_gae_does_not_change_its_inputs():
    window = random_window(9)
    before = [x.clone() for x in window]
    gae(*window, 0.9, 0.9)
    reward_to_go(*window, 0.9)
    assert all(torch.equal(x, y) for x, y in zip(window, before, strict=True))


def test_reward_to_go_by_hand():
    reward, mask = column([1, 2, 0, 4]), column([1, 1, 0, 1])
    value = column([7, 7, 10, 7, 20])
    truncated = reward_to_go(reward, column([1, 1, 1, 1]), mask, value, gamma=0.5)
    terminated = reward_to_go(reward, column([1, 0, 1, 1]), mask, value, gamma=0.5)
    # 2 + 10/2 = 7, 1 + 7/2 = 4.5; at the end of the window 4 + 20/2 = 14.
    assert truncated.flatten().tolist() == [4.5, 7, 0, 14]
    assert terminated.flatten().tolist() == [2, 2, 0, 14]


@pytest.mark.parametrize("seed", range(5))
def test_reward_to_go_equals_brute_force(seed):
    window = random_window(seed)
    expected = brute_returns(*window, gamma=0.9)
    torch.testing.assert_close(reward_to_go(*window, 0.9), expected, atol=1e-5, rtol=1e-5)


def test_a_discount_of_0_ends_the_sums_without_a_masked_row():
    reward, ones = column([1, 2, 4]), column([1, 1, 1])
    discount, value = column([1, 0, 1]), column([0, 0, 0, 8])
    assert gae(reward, discount, ones, value, 1.0, 1.0).flatten().tolist() == [3, 2, 12]
    assert reward_to_go(reward, discount, ones, value, 1.0).flatten().tolist() == [3, 2, 12]


# ---------------------------------------------------------------- n-step sums


def brute_n_step(reward, discount, mask, gamma, n):
    """Return sum, discount and length from each of the first T of T + n rows, step by step."""
    count, lanes = len(reward) - n, reward.shape[1]
    total, factor = torch.zeros(count, lanes), torch.ones(count, lanes)
    last = torch.zeros(count, lanes)
    for b in range(lanes):
        for t in range(count):
            for k in range(n):
                if not mask[t + k, b]:
                    break
                total[t, b] += gamma**k * reward[t + k, b]
                factor[t, b] = gamma ** (k + 1) * discount[t + k, b]
                last[t, b] = k + 1
                if ends(t + k, b, discount, mask):
                    break
    return total, factor, last


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_n_step_equals_brute_force(seed, n, kind):
    reward, discount, mask, _ = random_window(seed)
    window = (reward, discount, mask)
    expected = brute_n_step(*window, gamma=0.9, n=n)
    given = window if kind == "torch" else [x.numpy() for x in window]
    for got, brute in zip(n_step(*given, 0.9, n), expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(got), brute, atol=1e-5, rtol=1e-5)
        assert type(got) is type(given[0])


def test_n_step_by_hand():
    reward, mask = column([1, 2, 0, 4, 8, 16]), column([1, 1, 0, 1, 1, 1])  # row 2: autoreset
    truncated = n_step(reward, column([1, 1, 1, 1, 1, 1]), mask, 0.5, 2)
    terminated = n_step(reward, column([1, 0, 1, 1, 1, 1]), mask, 0.5, 2)
    for sums in (truncated, terminated):
        assert sums.reward.flatten().tolist() == [2, 2, 0, 8]  # 1 + 2/2, 2, none, 4 + 8/2
        assert sums.last.flatten().tolist() == [2, 1, 0, 2]
    assert truncated.discount.flatten().tolist() == [0.25, 0.5, 1, 0.25]
    assert terminated.discount.flatten().tolist() == [0, 0, 1, 0.25]


# ---------------------------------------------------------------- value rescaling


def wide_values():
    """Return 0 and values of both signs from 1e-30 to 1e6."""
    size = torch.logspace(-30, 6, 20_000, dtype=torch.float64).float()
    return torch.cat([-size.flip(0), torch.zeros(1), size])


def test_rescaling_and_back_is_exact_to_float32():
    value = wide_values()
    back = unrescale(rescale(value))
    assert back.dtype == torch.float32
    torch.testing.assert_close(back, value, rtol=5e-7, atol=0)
    assert back[len(value) // 2] == 0
    again = rescale(unrescale(value))
    torch.testing.assert_close(again, value, rtol=5e-7, atol=0)


def test_rescaling_by_hand():
    # sqrt(3 + 1) - 1 + 0.003, sqrt(99 + 1) - 1 + 0.099
    expected = torch.tensor([1.003, -1.003, 9.099, 0.0])
    torch.testing.assert_close(rescale(torch.tensor([3.0, -3.0, 99.0, 0.0])), expected)


def test_rescaling_keeps_the_order():
    value = torch.linspace(-1e6, 1e6, 200_001)
    for fn in (rescale, unrescale):
        assert bool((fn(value).diff() > 0).all())
        small = fn(torch.linspace(-1e-3, 1e-3, 2_001))
        assert bool((small.diff() > 0).all())
    assert torch.equal(rescale(-value), -rescale(value))
