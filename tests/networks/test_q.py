"""Action values: heads of every kind, and networks that remember."""

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from scenes import CPU

from rookery.networks.build import NetConfig
from rookery.networks.noisy import NoisyLinear
from rookery.networks.q import Inputs, QHead, QHeadConfig, QNetwork, RecurrentQNetwork

BOX = spaces.Box(-1, 1, (3,), np.float32)
FEATURES, ACTIONS = 6, 4


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("atoms", [1, 5])
@pytest.mark.parametrize("leading", [(), (2,), (3, 2)])
def test_shapes(dueling, noisy, atoms, leading):
    head = QHead(FEATURES, ACTIONS, QHeadConfig(dueling, noisy, atoms))
    out = head(torch.randn(*leading, FEATURES))
    assert out.shape == ((*leading, ACTIONS) if atoms == 1 else (*leading, ACTIONS, atoms))
    assert isinstance(head.out, NoisyLinear) == noisy


@pytest.mark.parametrize("atoms", [1, 5])
def test_dueling_is_value_plus_advantage_less_its_mean(atoms):
    torch.manual_seed(0)
    head = QHead(FEATURES, ACTIONS, QHeadConfig(dueling=True, atoms=atoms))
    x = torch.randn(7, FEATURES)
    raw = head.out(x).view(7, ACTIONS + 1, atoms)
    q = head(x).view(7, ACTIONS, atoms)
    for row in range(7):
        for z in range(atoms):
            advantage = raw[row, :ACTIONS, z]
            expected = raw[row, ACTIONS, z] + advantage - sum(advantage) / ACTIONS
            torch.testing.assert_close(q[row, :, z], expected)
    # So the value is the mean over the actions, whatever the advantages.
    torch.testing.assert_close(q.mean(1), raw[:, ACTIONS])


def test_without_dueling_the_outputs_are_the_values():
    head = QHead(FEATURES, ACTIONS, QHeadConfig())
    x = torch.randn(2, FEATURES)
    assert torch.equal(head(x), head.out(x))


def test_a_network_without_memory_takes_any_leading_axes():
    network = QNetwork(BOX, ACTIONS, NetConfig(hidden=(8,)), QHeadConfig(dueling=True))
    obs = torch.randn(5, 2, 3)
    whole = network(obs)
    assert whole.shape == (5, 2, ACTIONS)
    torch.testing.assert_close(whole[3], network(obs[3]))


def recurrent(core):
    torch.manual_seed(0)
    net = NetConfig(hidden=(8,), core=core, core_size=5)
    return RecurrentQNetwork(BOX, ACTIONS, net, QHeadConfig(dueling=True))


def some_rows(rows, lanes):
    rng = torch.Generator().manual_seed(0)
    action = torch.randint(ACTIONS, (rows, lanes), generator=rng)
    hot = torch.nn.functional.one_hot(action, ACTIONS).float()
    inputs = Inputs(hot, torch.randn(rows, lanes, generator=rng))
    return torch.randn(rows, lanes, 3, generator=rng), inputs


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_windows_and_single_rows_agree(core):
    network, (obs, inputs) = recurrent(core), some_rows(9, 4)
    reset = torch.rand(9, 4, generator=torch.Generator().manual_seed(1)) < 0.3
    first = state = tuple(torch.randn_like(part) for part in network.initial_state(4, CPU))
    values = []
    for t in range(9):
        state = tuple(torch.where(reset[t].unsqueeze(-1), 0.0, part) for part in state)
        row = Inputs(inputs.action[t : t + 1], inputs.reward[t : t + 1])
        q, state = network(obs[t : t + 1], row, state)
        values.append(q)
    torch.testing.assert_close(network.window(obs, inputs, first, reset), torch.cat(values))
    after = network.after(obs, inputs, first, reset)
    for ours, theirs in zip(after, state, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_previous_action_and_reward_are_seen(core):
    network, (obs, inputs) = recurrent(core), some_rows(2, 3)
    state = network.initial_state(3, CPU)
    q, _ = network(obs, inputs, state)
    for other in (
        inputs._replace(action=inputs.action.roll(1, -1)),
        inputs._replace(reward=inputs.reward + 1),
    ):
        assert bool(((network(obs, other, state)[0] - q).abs().amax(-1) > 1e-4).all())
