"""Advantages and returns against hand-worked answers and brute force."""

import pytest
import torch
from scenes import column

from rookery.memory.returns import gae, reward_to_go


def random_window(seed, rows=24, lanes=7):
    """Reward, discount, mask [T, B] and value [T + 1, B], with every kind of ending.

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
    """Whether row t is its episode's last in the window."""
    return discount[t, b] == 0 or t + 1 == len(mask) or mask[t + 1, b] == 0


def brute_gae(reward, discount, mask, value, gamma, lam):
    """Sum over later errors of the same episode, each row from scratch."""
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
    """Rewards of the same episode and the value of where it was cut, each row from scratch."""
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
def test_gae_is_the_brute_force_sum(seed, lam):
    window = random_window(seed)
    expected = brute_gae(*window, gamma=0.9, lam=lam)
    torch.testing.assert_close(gae(*window, gamma=0.9, lam=lam), expected, atol=1e-5, rtol=1e-5)


def test_lambda_0_is_the_td_error():
    reward, discount, mask, value = random_window(7)
    error = (reward + 0.9 * discount * value[1:] - value[:-1]) * mask
    assert torch.equal(gae(reward, discount, mask, value, 0.9, 0.0), error)


def test_lambda_1_is_monte_carlo_less_the_value():
    reward, discount, mask, value = random_window(8)
    monte_carlo = brute_returns(reward, discount, mask, value, 0.9)
    expected = (monte_carlo - value[:-1]) * mask
    got = gae(reward, discount, mask, value, 0.9, 1.0)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_gae_leaves_its_inputs_alone():
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
    # 2 + 10/2 = 7, 1 + 7/2 = 4.5; the cut: 4 + 20/2 = 14.
    assert truncated.flatten().tolist() == [4.5, 7, 0, 14]
    assert terminated.flatten().tolist() == [2, 2, 0, 14]


@pytest.mark.parametrize("seed", range(5))
def test_reward_to_go_is_the_brute_force_sum(seed):
    window = random_window(seed)
    expected = brute_returns(*window, gamma=0.9)
    torch.testing.assert_close(reward_to_go(*window, 0.9), expected, atol=1e-5, rtol=1e-5)


def test_a_discount_of_0_ends_the_sums_without_a_masked_row():
    reward, ones = column([1, 2, 4]), column([1, 1, 1])
    discount, value = column([1, 0, 1]), column([0, 0, 0, 8])
    assert gae(reward, discount, ones, value, 1.0, 1.0).flatten().tolist() == [3, 2, 12]
    assert reward_to_go(reward, discount, ones, value, 1.0).flatten().tolist() == [3, 2, 12]
