"""The projection of value distributions onto atoms."""

import math

import pytest
import torch

from rookery.networks.q import expected_value, project_onto_atoms


def by_loops(probabilities, reward, discount, atoms):
    """Algorithm 1 of Bellemare et al. 2017."""
    low, high, count = float(atoms[0]), float(atoms[-1]), len(atoms)
    width = (high - low) / (count - 1)
    out = torch.zeros(len(reward), count, dtype=torch.float64)
    for i in range(len(reward)):
        for j in range(count):
            moved = min(high, max(low, float(reward[i]) + float(discount[i]) * float(atoms[j])))
            place = (moved - low) / width
            below, above = math.floor(place), math.ceil(place)
            p = float(probabilities[i, j])
            if below == above:
                out[i, below] += p
            else:
                out[i, below] += p * (above - place)
                out[i, above] += p * (place - below)
    return out


def random_case(rows=40, count=11, low=-3.0, high=4.0, spread=5.0):
    rng = torch.Generator().manual_seed(0)
    atoms = torch.linspace(low, high, count, dtype=torch.float64)
    p = (3 * torch.randn(rows, count, generator=rng, dtype=torch.float64)).softmax(-1)
    reward = spread * torch.randn(rows, generator=rng, dtype=torch.float64)
    discount = torch.rand(rows, generator=rng, dtype=torch.float64)
    discount[::4] = 0.0
    return p, reward, discount, atoms


@pytest.mark.parametrize("count", [2, 11, 51])
def test_the_projection_equals_the_papers_algorithm_1(count):
    case = random_case(count=count)
    torch.testing.assert_close(project_onto_atoms(*case), by_loops(*case))


def test_projected_probabilities_sum_to_1():
    out = project_onto_atoms(*random_case())
    assert bool((out >= 0).all())
    torch.testing.assert_close(out.sum(-1), torch.ones_like(out[:, 0]))


def test_the_mean_is_kept_inside_the_support():
    p, reward, discount, atoms = random_case(spread=0.1, low=-10, high=10, count=21)
    discount = discount * 0.9
    mean = reward + discount * (p @ atoms)
    torch.testing.assert_close(project_onto_atoms(p, reward, discount, atoms) @ atoms, mean)


def test_values_outside_the_support_go_to_the_end_atoms():
    p, reward, discount, atoms = random_case()
    big = torch.full_like(reward, 100.0)
    above, below = (
        project_onto_atoms(p, big, discount, atoms),
        project_onto_atoms(p, -big, discount, atoms),
    )
    torch.testing.assert_close(above[:, -1], torch.ones_like(reward))
    torch.testing.assert_close(below[:, 0], torch.ones_like(reward))


def test_a_terminal_reward_is_divided_between_neighbouring_atoms():
    atoms = torch.tensor([0.0, 1.0, 2.0])
    p = torch.tensor([[0.2, 0.3, 0.5]])
    out = project_onto_atoms(p, torch.tensor([0.25]), torch.tensor([0.0]), atoms)
    assert out[0].tolist() == pytest.approx([0.75, 0.25, 0.0])


def test_means_of_distributions():
    logits = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, math.log(2)]])
    assert expected_value(logits, torch.tensor([-1.0, 0.0, 4.0])).tolist() == pytest.approx(
        [1.0, 1.75]
    )
