"""Who tries how much: a ladder over all environments of a run, or a slope over its steps."""

import itertools

import pytest
import torch
from scenes import FLAT, Lanes, Loop, make

from rookery.algorithms.apex import ApeX
from rookery.algorithms.dqn import DQN, linear_epsilon
from rookery.algorithms.off_policy import EpsilonDraw, epsilon_greedy, ladder
from rookery.algorithms.r2d2 import R2D2
from rookery.data.steps import Lanes as Place
from rookery.networks.build import NetConfig

RECURRENT = NetConfig(hidden=(8,), core="lstm", core_size=4)


def cut(total, actors):
    """The lanes of actors that share `total` environments as evenly as they can."""
    edges = [total * i // actors for i in range(actors + 1)]
    return [Place(a, b - a, total) for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize(
    ("total", "actors"), [(1, 1), (2, 1), (2, 2), (16, 1), (16, 3), (2_400, 300)]
)
@pytest.mark.parametrize("kind", [ApeX, R2D2])
def test_environment_i_of_n_explores_with_the_papers_epsilon(total, actors, kind):
    algorithm = make(kind, FLAT, RECURRENT if kind is R2D2 else None)
    parts = [algorithm.exploration(12_345, lanes) for lanes in cut(total, actors)]
    assert [len(part) for part in parts] == [lanes.size for lanes in cut(total, actors)]
    expected = [0.4 ** (1 + 7 * i / (total - 1)) if total > 1 else 0.4 for i in range(total)]
    assert torch.cat(parts).tolist() == pytest.approx(expected, rel=1e-5)


def test_base_and_power_of_the_ladder():
    place = Place(0, 3, 3)
    assert ladder(place, 0.5, 0.0).tolist() == [0.5] * 3
    assert ladder(place, 0.5, 2.0).tolist() == [0.5, 0.25, 0.125]
    algorithm = make(ApeX, FLAT, epsilon_base=0.5, epsilon_power=2.0)
    assert algorithm.exploration(0, place).tolist() == [0.5, 0.25, 0.125]


def drawn_greedy(q, epsilon, generator):
    if epsilon is None:
        return epsilon_greedy(q, None)
    numbers = torch.rand(2, len(q), generator=generator)
    return epsilon_greedy(q, EpsilonDraw(epsilon, numbers))


def test_frequencies_of_epsilon_greedy():
    count, actions = 20_000, 4
    q = torch.tensor([[0.0, 1.0, 3.0, 2.0]]).repeat(3 * count, 1)
    epsilon = torch.tensor([0.0, 0.3, 1.0]).repeat_interleave(count)
    chosen = drawn_greedy(q, epsilon, torch.Generator().manual_seed(0)).view(3, count)
    assert bool((chosen[0] == 2).all())
    for e, part in ((0.3, chosen[1]), (1.0, chosen[2])):
        shares = torch.bincount(part, minlength=actions) / count
        expected = [e / actions + (1 - e) * (a == 2) for a in range(actions)]
        # Five deviations of a share: sqrt(p (1 - p) / count) is at most 0.0036.
        assert shares.tolist() == pytest.approx(expected, abs=0.018)


def test_without_epsilon_the_best_action_is_taken_and_no_number_drawn():
    q = torch.tensor([[0.0, 2, 1], [5, 4, 3]])
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert drawn_greedy(q, None, generator).tolist() == [1, 0]
    assert torch.equal(generator.get_state(), before)


def test_each_lane_has_its_own_epsilon():
    q = torch.tensor([[1.0] + [0.0] * 99]).repeat(400, 1)
    epsilon = torch.tensor([0.0, 1.0]).repeat(200)
    chosen = drawn_greedy(q, epsilon, torch.Generator().manual_seed(0))
    assert bool((chosen[::2] == 0).all())
    assert (chosen[1::2] == 0).float().mean() < 0.1


def test_the_slope_and_its_ends():
    def at(step):
        return linear_epsilon(step, 1.0, 0.2, 100)

    assert [at(0), at(50), at(100), at(10**12)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert linear_epsilon(0, 1.0, 0.2, 0) == pytest.approx(0.2)


def test_dqn_explores_by_the_steps_of_the_run():
    settings = {"epsilon_start": 0.9, "epsilon_end": 0.1, "epsilon_steps": 1_000}
    env = Lanes([[(3, "truncated")]] * 2)
    algorithm = make(DQN, env, capacity=100, warm_up=0, **settings)
    actor = Loop(algorithm, env).actor
    for step, epsilon in ((0, 0.9), (250, 0.7), (1_000, 0.1), (9_999, 0.1)):
        actor.collect(step)
        assert actor.explore.tolist() == pytest.approx([epsilon] * 2)
    noisy = make(DQN, env, noisy=True, **settings)
    assert noisy.exploration(0, Place(0, 2, 2)).tolist() == [0, 0]


def test_dqn_acts_by_the_epsilon_it_is_given():
    algorithm = make(DQN, FLAT)
    obs = torch.zeros(4_000, 3)
    best = algorithm.act(obs, torch.zeros(4_000), (), None, None).action
    assert len(best.unique()) == 1
    generator = torch.Generator().manual_seed(0)
    half = algorithm.act(obs, torch.zeros(4_000), (), generator, torch.full((4_000,), 0.5)).action
    assert (half == best).float().mean().item() == pytest.approx(0.5 + 0.5 / 4, abs=0.04)
