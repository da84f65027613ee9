"""Encoders: every space, equal features for all layouts of an image, sizes by hand."""

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch

from rookery.errors import BadInput
from rookery.networks.actor_critic import ActorCritic
from rookery.networks.build import NetConfig, Trunk, encoder_of
from rookery.networks.encoders import ACTIVATIONS, FloatVector, Tanh
from rookery.networks.images import Board, ConvNet, Image, Impala, image_input


def image(*shape):
    return spaces.Box(0, 255, shape, np.uint8)


def encode(space, values, encoder="auto"):
    return encoder_of(space, NetConfig(encoder=encoder, image_features=16))(values)


def test_vectors_are_unchanged():
    space = spaces.Box(-1, 1, (2, 3), np.float64)
    x = torch.arange(12.0).view(2, 2, 3)
    assert encode(space, x.double()).tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert encode(space, x.double()).dtype == torch.float32
    assert encode(spaces.Box(-1, 1, ()), torch.tensor([3.0, 4.0])).tolist() == [[3], [4]]


def test_bytes_are_scaled_to_1():
    x = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    torch.testing.assert_close(encode(image(3), x), torch.tensor([[0, 0.2, 1]]))


def test_multi_binary_becomes_floats():
    x = torch.tensor([[[1, 0], [0, 1]]], dtype=torch.int8)
    assert encode(spaces.MultiBinary((2, 2)), x).tolist() == [[1, 0, 0, 1]]


def test_discrete_becomes_one_hot_from_the_spaces_start():
    assert encode(spaces.Discrete(3, start=5), torch.tensor([5, 7])).tolist() == [
        [1, 0, 0],
        [0, 0, 1],
    ]
    one = encode(spaces.Discrete(3), torch.tensor([[1, 2]]))
    assert one.shape == (1, 2, 3)


def test_multi_discrete_becomes_concatenated_one_hots():
    space = spaces.MultiDiscrete([2, 3], start=[0, 1])
    assert encode(space, torch.tensor([[1, 3]])).tolist() == [[0, 1, 0, 0, 1]]
    square = spaces.MultiDiscrete([[2, 2], [2, 2]])
    assert encode(square, torch.tensor([[[0, 1], [1, 0]]])).tolist() == [[1, 0, 0, 1, 0, 1, 1, 0]]


def test_nested_parts_are_concatenated():
    inner = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])
    space = spaces.Dict({"b": inner, "a": spaces.MultiBinary(1)})
    obs = {
        "a": torch.tensor([[1]]),
        "b": (torch.tensor([1]), torch.tensor([[0.25, 0.5]])),
    }
    # A Dict space sorts its keys: a, then b.
    assert encode(space, obs).tolist() == [[1, 0, 1, 0.25, 0.5]]
    backwards = {"b": obs["b"], "a": obs["a"]}
    assert torch.equal(encode(space, backwards), encode(space, obs))


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2))], ids=str)
def test_an_unsupported_observation_space_is_an_error(space):
    for wrapped in (space, spaces.Dict({"x": space}), spaces.Tuple([space])):
        with pytest.raises(BadInput, match=type(space).__name__):
            encoder_of(wrapped, NetConfig(encoder="auto", image_features=16))


@pytest.mark.parametrize("encoder", ["nature", "small", "impala"])
def test_layouts_of_one_image_give_the_same_features(encoder):
    torch.manual_seed(0)
    stack = torch.randint(0, 256, (2, 4, 40, 38, 3), dtype=torch.uint8)  # N, S, H, W, C
    chw = stack.permute(0, 1, 4, 2, 3).reshape(2, 12, 40, 38)
    hwc = chw.permute(0, 2, 3, 1).contiguous()
    layouts = {(4, 40, 38, 3): stack, (12, 40, 38): chw, (40, 38, 12): hwc}
    weights, features = None, []
    for shape, values in layouts.items():
        network = encoder_of(image(*shape), NetConfig(encoder=encoder, image_features=16))
        weights = weights or network.state_dict()
        network.load_state_dict(weights)
        features.append(network(values))
    assert float(features[0].detach().std()) > 1e-3
    torch.testing.assert_close(features[1], features[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(features[2], features[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("encoder", ["nature", "small", "impala"])
def test_leading_axes_of_images_pass_through(encoder):
    network = encoder_of(image(3, 40, 40), NetConfig(encoder=encoder, image_features=16))
    values = torch.randint(0, 256, (3, 2, 3, 40, 40), dtype=torch.uint8)
    folded = network(values)
    assert folded.shape == (3, 2, 16)
    flat = network(values.flatten(0, 1))
    torch.testing.assert_close(folded.flatten(0, 1), flat, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["nature", "impala"])
@pytest.mark.parametrize("highest", [1, 100, 255])
def test_images_are_scaled_to_1_and_not_changed(kind, highest):
    space = spaces.Box(0, highest, (3, 40, 40), np.uint8)
    network = encoder_of(space, NetConfig(encoder=kind, image_features=16))
    values = torch.randint(0, highest + 1, (2, 3, 40, 40), dtype=torch.uint8)
    before = values.clone()
    layers = network.convolutions if kind == "nature" else network.stages
    seen = layers(values.float() / highest)
    seen = seen.relu() if kind == "impala" else seen
    expected = network.dense(seen.permute(0, 2, 3, 1).flatten(1)).relu()
    torch.testing.assert_close(network(values), expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(values, before)


@pytest.mark.parametrize("shape", [(4, 12, 10), (12, 10, 3), (12, 10), (2, 12, 10, 3)], ids=str)
def test_images_of_any_layout_become_channels_last(shape):
    see = Image(shape)
    x = torch.randint(256, (6, *shape), dtype=torch.uint8)
    seen = see(x)
    assert seen.dtype == torch.float32
    assert seen.shape == (6, *see.shape)
    assert seen.is_contiguous(memory_format=torch.channels_last)
    for cut in (x[::2], x.flip(0).flip(0), torch.stack([x, x], 1)[:, 1]):
        assert torch.equal(see(cut), seen[::2] if len(cut) == 3 else seen)
    planes = {(4, 12, 10): x, (12, 10, 3): x.movedim(-1, 1), (12, 10): x.unsqueeze(1)}
    stacked = x.movedim(-1, 2).flatten(1, 2) if len(shape) == 4 else planes[shape]
    assert torch.equal(seen, stacked.float())
    assert see.scale == 1 / 255


def test_nature_has_the_papers_size():
    network = ConvNet(Image((4, 84, 84)), 512, "nature")
    # 84 -> (84-8)/4+1 = 20 -> (20-4)/2+1 = 9 -> 9-3+1 = 7.
    convolutions = (4 * 64 + 1) * 32 + (32 * 16 + 1) * 64 + (64 * 9 + 1) * 64
    dense = (7 * 7 * 64 + 1) * 512
    assert convolutions + dense == 1_684_128
    assert sum(p.numel() for p in network.parameters()) == convolutions + dense


def test_small_has_the_first_papers_size():
    network = ConvNet(Image((4, 84, 84)), 256, "small")
    convolutions = (4 * 64 + 1) * 16 + (16 * 16 + 1) * 32
    assert sum(p.numel() for p in network.parameters()) == convolutions + (9 * 9 * 32 + 1) * 256


def test_impala_takes_small_images():
    network = Impala(Image((9, 7, 3)), 16)
    # 9x7 -> 5x4 -> 3x2 -> 2x1, 32 channels; 15 convolutions of 3x3.
    widths = [(3, 16)] + [(16, 16)] * 4 + [(16, 32)] + [(32, 32)] * 4 + [(32, 32)] * 5
    convolutions = sum((9 * i + 1) * o for i, o in widths)
    size = sum(p.numel() for p in network.parameters())
    assert size == convolutions + (2 * 1 * 32 + 1) * 16
    assert network(torch.zeros(2, 9, 7, 3, dtype=torch.uint8)).shape == (2, 16)


def test_auto_takes_nature_from_36_pixels_and_impala_below():
    assert isinstance(
        encoder_of(image(36, 36, 3), NetConfig(encoder="auto", image_features=16)), ConvNet
    )
    assert isinstance(
        encoder_of(image(36, 35, 3), NetConfig(encoder="auto", image_features=16)), Impala
    )


@pytest.mark.parametrize(("encoder", "least"), [("nature", 36), ("small", 20)])
def test_images_too_small_for_the_convolutions_are_an_error(encoder, least):
    assert (
        encoder_of(image(least, least, 3), NetConfig(encoder=encoder, image_features=16)).features
        == 16
    )
    with pytest.raises(BadInput, match=rf"net\.encoder={encoder}.*{least}x{least}.*12x12"):
        encoder_of(image(12, 12, 3), NetConfig(encoder=encoder, image_features=16))


def test_hidden_layers_follow_vectors_and_not_images_unless_asked():
    assert Trunk(spaces.Box(-1, 1, (3,)), NetConfig()).features == 64
    assert len(Trunk(image(20, 20, 3), NetConfig()).dense) == 0
    assert Trunk(image(20, 20, 3), NetConfig()).features == 512
    assert Trunk(image(20, 20, 3), NetConfig(hidden=(10,))).features == 10
    assert Trunk(image(20, 20, 3), NetConfig(encoder="mlp")).features == 64


def test_policy_and_value_share_layers_for_images_only():
    action, vector = spaces.Discrete(2), spaces.Box(-1, 1, (3,))
    assert not ActorCritic(vector, action, NetConfig()).shared
    assert not ActorCritic(vector, action, NetConfig(core="gru")).shared
    assert ActorCritic(spaces.Dict({"x": image(20, 20, 3)}), action, NetConfig()).shared
    assert ActorCritic(vector, action, NetConfig(shared=True)).shared
    assert not ActorCritic(vector, action, NetConfig(core="gru", shared=False)).shared


@pytest.mark.parametrize("shared", [True, False])
def test_policy_and_value_methods_equal_forward(shared):
    torch.manual_seed(0)
    config = NetConfig(hidden=(8,), shared=shared)
    network = ActorCritic(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), config)
    torch.nn.init.normal_(network.head.linear.weight)
    obs = torch.randn(5, 4, 3)
    params, value = network(obs, ())
    assert torch.equal(network.policy(obs), params)
    assert torch.equal(network.value(obs), value)


@pytest.mark.parametrize(
    "wrong", [{"hidden": (8, 0)}, {"image_features": 0}, {"core_size": -1}], ids=str
)
def test_widths_must_be_positive(wrong):
    with pytest.raises(BadInput, match=f"net.{next(iter(wrong))}"):
        NetConfig(**wrong)


def test_narrow_has_its_known_number_of_weights():
    network = encoder_of(image(3, 256, 240), NetConfig(encoder="narrow", image_features=64))
    # 256x240 -> 63x59 -> 30x28 -> 28x26; no biases in the convolutions, one in the dense layer.
    sizes = [3 * 64 * 32, 32 * 16 * 64, 64 * 9 * 32, 28 * 26 * 32 * 64, 64]
    assert sizes == [6_144, 32_768, 18_432, 1_490_944, 64]
    assert sum(sizes) == 1_548_352
    assert sum(p.numel() for p in network.parameters()) == 1_548_352
    frames = torch.zeros(2, 5, 3, 256, 240, dtype=torch.uint8)
    assert network(frames).shape == (2, 5, 64)
    # Frames of the NES have height 240 and channels last: the same number.
    network = encoder_of(image(240, 256, 3), NetConfig(encoder="narrow", image_features=64))
    assert sum(p.numel() for p in network.parameters()) == 1_548_352


def test_bytes_are_scaled_by_their_bound():
    space = spaces.Box(0, 4, (3,), np.uint8)
    assert encode(space, torch.tensor([[0, 1, 4]], dtype=torch.uint8)).tolist() == [[0, 0.25, 1]]
    zeros = spaces.Box(0, 0, (1,), np.uint8)
    assert encode(zeros, torch.zeros(1, 1, dtype=torch.uint8)).tolist() == [[0]]


def test_a_board_has_a_plane_for_every_code_but_0():
    board = image_input(spaces.Box(0, 3, (8, 9), np.uint8))
    cells = torch.zeros(1, 8, 9, dtype=torch.uint8)
    cells[0, 2, 5], cells[0, 7, 0] = 1, 3
    planes = board(cells)
    assert planes.shape == (1, 3, 8, 9)
    assert planes.dtype == torch.float32
    assert planes.nonzero().tolist() == [[0, 0, 2, 5], [0, 2, 7, 0]]


def test_uint8_arrays_are_boards_images_or_vectors():
    network = encoder_of(
        spaces.Box(0, 8, (24, 18), np.uint8), NetConfig(encoder="auto", image_features=16)
    )
    assert isinstance(network, Impala)
    assert isinstance(network.image, Board)
    assert network(torch.zeros(3, 2, 24, 18, dtype=torch.uint8)).shape == (3, 2, 16)
    grey = encoder_of(image(40, 50), NetConfig(encoder="auto", image_features=16))
    assert isinstance(grey, ConvNet)
    assert grey.image.shape == (1, 40, 50)
    assert grey.image.scale == 1 / 255
    assert grey(torch.full((2, 40, 50), 255, dtype=torch.uint8)).shape == (2, 16)
    small = encoder_of(
        spaces.Box(0, 8, (4, 16), np.uint8), NetConfig(encoder="auto", image_features=16)
    )
    assert small.features == 64
    assert isinstance(
        encoder_of(image(24, 18), NetConfig(encoder="mlp", image_features=16)), FloatVector
    )


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
