"""Q-networks: dueling, noisy and distributional heads, and recurrent networks."""

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from scenes import CPU

from rookery.networks.build import NetConfig
from rookery.networks.encoders import NoisyLinear
from rookery.networks.q import Inputs, QHead, QHeadConfig, QNetwork, RecurrentQNetwork

BOX = spaces.Box(-1, 1, (3,), np.float32)
FEATURES, ACTIONS = 6, 4


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("atoms", [1, 5])
@pytest.mark.parametrize("hidden", [None, 7])
@pytest.mark.parametrize("leading", [(), (2,), (3, 2)])
def test_a_head_gives_values_or_logits_of_every_action(dueling, noisy, atoms, hidden, leading):
    head = QHead(FEATURES, ACTIONS, QHeadConfig(dueling, noisy, atoms), hidden)
    out = head(torch.randn(*leading, FEATURES))
    assert out.shape == ((*leading, ACTIONS) if atoms == 1 else (*leading, ACTIONS, atoms))


@pytest.mark.parametrize("atoms", [1, 5])
def test_dueling_is_value_plus_advantage_minus_its_mean(atoms):
    torch.manual_seed(0)
    head = QHead(FEATURES, ACTIONS, QHeadConfig(dueling=True, atoms=atoms), 8)
    x = torch.randn(7, FEATURES)
    advantages = head.advantage(x).view(7, ACTIONS, atoms)
    values = head.value(x).view(7, atoms)
    q = head(x).view(7, ACTIONS, atoms)
    for row in range(7):
        for z in range(atoms):
            advantage = advantages[row, :, z]
            expected = values[row, z] + advantage - sum(advantage) / ACTIONS
            torch.testing.assert_close(q[row, :, z], expected)
    # So the value is the mean over the actions, whatever the advantages.
    torch.testing.assert_close(q.mean(1), values)


def test_value_and_advantages_have_hidden_layers_of_their_own():
    """With a shared hidden layer, the head would equal a single linear layer."""
    head = QHead(FEATURES, ACTIONS, QHeadConfig(dueling=True), 8)
    x = torch.randn(5, FEATURES)
    before = head(x)
    with torch.no_grad():
        head.value.hidden[0].weight.normal_()
    after = head(x)
    # All actions change by the same amount: advantages do not depend on the value's layer.
    moved = after - before
    assert moved.abs().min() > 1e-4
    torch.testing.assert_close(moved, moved[:, :1].expand_as(moved))


def widths(module):
    """Return inputs and outputs of all dense layers in order."""
    kinds = (torch.nn.Linear, NoisyLinear)
    return [tuple(m.weight.shape[::-1]) for m in module.modules() if isinstance(m, kinds)]


def test_streams_for_images_start_at_the_convolutions_with_512_units_each():
    image = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    network = QNetwork(image, 6, NetConfig(), QHeadConfig(dueling=True))
    assert widths(network.trunk) == []
    assert widths(network.head) == [(3136, 512), (512, 6), (3136, 512), (512, 1)]


def test_the_last_hidden_layer_is_in_both_streams():
    net = NetConfig(hidden=(16, 12))
    network = QNetwork(BOX, ACTIONS, net, QHeadConfig(dueling=True))
    assert widths(network) == [(3, 16), (16, 12), (12, ACTIONS), (16, 12), (12, 1)]
    plain = QNetwork(BOX, ACTIONS, net, QHeadConfig())
    assert widths(plain) == [(3, 16), (16, 12), (12, ACTIONS)]


def test_streams_after_a_recurrent_core_have_a_layer_of_its_width():
    network = RecurrentQNetwork(
        BOX, ACTIONS, NetConfig(hidden=(8,), core="lstm", core_size=5), QHeadConfig(dueling=True)
    )
    assert widths(network.head) == [(5, 5), (5, ACTIONS), (5, 5), (5, 1)]


@pytest.mark.parametrize("space", [BOX, spaces.Box(0, 255, (4, 84, 84), np.uint8)], ids=str)
def test_all_dense_layers_after_the_encoder_are_noisy(space):
    config = QHeadConfig(dueling=True, noisy=True, atoms=5)
    network = QNetwork(space, ACTIONS, NetConfig(), config)
    dense = [m for m in network.modules() if isinstance(m, torch.nn.Linear | NoisyLinear)]
    assert len(dense) >= 4
    assert all(isinstance(layer, NoisyLinear) for layer in dense)


@pytest.mark.parametrize("dueling", [False, True])
def test_action_values_start_near_zero(dueling):
    image = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    torch.manual_seed(0)
    network = QNetwork(image, 6, NetConfig(activation="relu"), QHeadConfig(dueling))
    pixels = torch.randint(0, 256, (8, 4, 84, 84), dtype=torch.uint8)
    q = network(pixels).detach()
    # Weights of gain 1 give a spread of 0.3 here.
    assert float(q.std(-1).mean()) < 0.06
    assert float(q.abs().max()) < 0.3


def test_without_dueling_the_outputs_are_the_values():
    head = QHead(FEATURES, ACTIONS, QHeadConfig())
    x = torch.randn(2, FEATURES)
    assert torch.equal(head(x), head.advantage(x))


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
def test_values_depend_on_previous_action_and_reward(core):
    network, (obs, inputs) = recurrent(core), some_rows(2, 3)
    state = network.initial_state(3, CPU)
    q, _ = network(obs, inputs, state)
    for other in (
        inputs._replace(action=inputs.action.roll(1, -1)),
        inputs._replace(reward=inputs.reward + 1),
    ):
        assert bool(((network(obs, other, state)[0] - q).abs().amax(-1) > 1e-4).all())
