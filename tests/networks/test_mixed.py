"""Encoders of nested observations, by their spaces and by net.parts."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rookery.errors import BadInput
from rookery.networks.actor_critic import ActorCritic
from rookery.networks.build import NetConfig, PartConfig, Trunk, encoder_of
from rookery.networks.encoders import Embedding, Entities, NestedEncoder, OneHot, embedding_size


def numbers(*shape):
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def codes(count, *shape):
    return spaces.MultiDiscrete(np.full(shape, count))


def batch(space, *leading, seed=0):
    """Return random observations [*leading, ...] as tensors."""
    space.seed(seed)
    if isinstance(space, spaces.Dict):
        return {key: batch(part, *leading, seed=seed) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(batch(part, *leading, seed=seed) for part in space)
    rows = [space.sample() for _ in range(int(np.prod(leading)))]
    return torch.as_tensor(np.stack(rows)).unflatten(0, leading)


def encoder(space, **parts):
    torch.manual_seed(0)
    named = {path.replace("__", "/"): PartConfig(**config) for path, config in parts.items()}
    return encoder_of(space, NetConfig(parts=named))


def size(module):
    return sum(p.numel() for p in module.parameters())


UNITS = spaces.Dict({"kind": codes(5, 4), "features": numbers(4, 3)})


def test_embeddings_are_looked_up_by_component_and_value():
    space = spaces.MultiDiscrete([3, 4], start=[10, -1])
    module = encoder_of(space, NetConfig(parts={"": PartConfig(embedding=2)}))
    out = module(torch.tensor([[11, 2], [10, -1]]))
    expected = module.weight[torch.tensor([[1, 6], [0, 3]])].flatten(1)
    assert module.weight.shape == (7, 2)
    torch.testing.assert_close(out, expected)


def test_a_single_code_is_embedded():
    module = encoder_of(spaces.Discrete(9, start=3), NetConfig(parts={"": PartConfig(embedding=4)}))
    torch.testing.assert_close(
        module(torch.tensor([[3], [11]])), module.weight[torch.tensor([[0], [8]])]
    )


@pytest.mark.parametrize(("count", "kind"), [(64, OneHot), (65, Embedding)])
def test_few_codes_are_one_hot_and_many_are_embedded(count, kind):
    assert isinstance(encoder_of(spaces.Discrete(count), NetConfig()), kind)
    assert isinstance(encoder_of(codes(count, 3), NetConfig()), kind)


def test_embedding_0_means_one_hot():
    module = encoder_of(spaces.Discrete(500), NetConfig(parts={"": PartConfig(embedding=0)}))
    assert isinstance(module, OneHot)
    assert module.features == 500


def test_embeddings_grow_with_the_number_of_codes():
    assert [embedding_size(n) for n in (2, 6, 40, 750, 10**6)] == [2, 4, 13, 64, 64]


def test_a_group_of_arrays_over_the_same_entities_is_encoded_as_a_set():
    """Its features are the maximum over entities of embedding and numbers."""
    module = encoder(UNITS, kind={"embedding": 2})
    assert isinstance(module, Entities)
    obs = batch(UNITS, 7)
    (table,) = module.encoder.parts[list(UNITS.spaces).index("kind")].weights
    by_hand = []
    for row in range(7):
        entities = []
        for i in range(4):
            parts = {"kind": table[obs["kind"][row, i]], "features": obs["features"][row, i]}
            entities.append(torch.cat([parts[key] for key in UNITS.spaces]))
        by_hand.append(torch.stack(entities).max(0).values)
    torch.testing.assert_close(module(obs), torch.stack(by_hand))
    assert module.features == 5


@pytest.mark.parametrize("reduce", ["max", "mean"])
def test_the_order_of_entities_does_not_matter(reduce):
    module = encoder_of(UNITS, NetConfig(parts={"": PartConfig(reduce=reduce, dense=(6,))}))
    obs = batch(UNITS, 3)
    turned = {key: value.flip(1) for key, value in obs.items()}
    torch.testing.assert_close(module(obs), module(turned))
    assert module.features == 6


def test_reduce_mean_averages_over_entities():
    space = numbers(4, 3)
    module = encoder_of(space, NetConfig(parts={"": PartConfig(reduce="mean")}))
    obs = batch(space, 5)
    torch.testing.assert_close(module(obs), obs.mean(1))


def test_entities_may_have_several_codes():
    space = spaces.MultiDiscrete(np.array([[3, 9]] * 4))
    module = encoder_of(space, NetConfig(parts={"": PartConfig(reduce="max", embedding=2)}))
    obs = batch(space, 5)
    first, second = module.encoder.weights
    expected = torch.cat([first[obs[..., 0]], second[obs[..., 1]]], -1).amax(1)
    torch.testing.assert_close(module(obs), expected)


def test_reduce_keep_concatenates_all_entities():
    module = encoder_of(UNITS, NetConfig(parts={"": PartConfig(reduce="keep")}))
    assert module.features == 4 * 5 + 4 * 3


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"a": numbers(4, 3), "b": codes(5, 6)}),
        spaces.Dict({"a": codes(5, 4), "b": codes(5, 4)}),
        spaces.Dict({"a": numbers(4), "b": numbers(4)}),
        spaces.Dict({"a": numbers(4, 3), "b": spaces.Discrete(4)}),
        spaces.Dict({"a": numbers(2, 3), "b": spaces.MultiDiscrete([2, 3])}),
    ],
)
def test_other_groups_are_concatenated(space):
    module = encoder_of(space, NetConfig())
    assert not isinstance(module, Entities)
    assert module(batch(space, 2, 3)).shape == (2, 3, module.features)


def test_numbers_are_clipped():
    space = spaces.Dict({"a": numbers(2), "b": numbers(2)})
    module = encoder(space, b={"clip": 5.0})
    obs = {"a": torch.tensor([[9.0, -9.0]]), "b": torch.tensor([[9.0, -9.0]])}
    assert module(obs).tolist() == [[9, -9, 5, -5]]


def test_numbers_of_entities_are_clipped_before_the_dense_layer_of_the_group():
    space = spaces.Dict({"units": UNITS})
    plain = encoder(space, units={"dense": (6,)})
    clipped = encoder(space, units={"dense": (6,)}, units__features={"clip": 1.0})
    obs = batch(space, 5)
    near = {"units": obs["units"] | {"features": obs["units"]["features"].clamp(-1, 1)}}
    torch.testing.assert_close(clipped(obs), plain(near))
    assert not torch.allclose(clipped(obs), plain(obs))


def test_a_part_may_have_dense_layers_of_its_own():
    space = spaces.Tuple([numbers(3), spaces.Discrete(4)])
    module = encoder_of(space, NetConfig(parts={"0": PartConfig(dense=(8, 2))}))
    assert module.features == 2 + 4
    assert size(module) == 4 * 8 + 9 * 2


def test_leading_axes_pass_through():
    space = spaces.Dict({"units": UNITS, "clock": numbers(1), "mode": spaces.Discrete(300)})
    module = encoder_of(space, NetConfig())
    obs = batch(space, 6)
    folded = {
        "units": {key: value.unflatten(0, (2, 3)) for key, value in obs["units"].items()},
        "clock": obs["clock"].unflatten(0, (2, 3)),
        "mode": obs["mode"].unflatten(0, (2, 3)),
    }
    torch.testing.assert_close(module(folded).flatten(0, 1), module(obs))


def test_all_parts_get_gradients():
    space = spaces.Dict({"units": UNITS, "clock": numbers(1), "mode": spaces.Discrete(300)})
    network = Trunk(space, NetConfig(core="lstm", core_size=8))
    state = network.initial_state(6, torch.device("cpu"))
    network(batch(space, 5, 6), state)[0].square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"unit": {"clip": 1.0}}, 'no part "unit".*units'),
        ({"units/kind": {"clip": 1.0}}, r"net.parts.units/kind.clip.*MultiDiscrete"),
        ({"units/features": {"embedding": 3}}, r"net.parts.units/features.embedding.*Box"),
        ({"clock": {"reduce": "max"}}, r"net.parts.clock.reduce needs a set of entities"),
        ({"units/kind": {"embedding": 0}}, r"net.parts.units/kind.embedding must be at least 1"),
    ],
)
def test_settings_without_effect_on_a_part_are_errors(parts, message):
    space = spaces.Dict({"units": UNITS, "clock": numbers(1)})
    named = {path: PartConfig(**config) for path, config in parts.items()}
    with pytest.raises(BadInput, match=message):
        encoder_of(space, NetConfig(parts=named))


@pytest.mark.parametrize("config", [{"embedding": -1}, {"clip": 0.0}, {"dense": (4, 0)}])
def test_settings_out_of_range_are_errors(config):
    with pytest.raises(BadInput, match=r"net\.parts"):
        PartConfig(**config)


def test_the_reference_network_has_its_known_number_of_parameters():
    """Embeddings 18,696, dense 264, LSTM 4,526,080, logits 131,200."""
    from rookery.config import resolve
    from rookery.envs import make_env

    config = resolve("vpg", "rookery/Synthetic-v1", {}, preset="reference").config
    env = make_env(config.environment, config.env, num_envs=2)
    network = ActorCritic(
        env.single_observation_space, env.single_action_space, config.net, critic=False
    )
    env.close()
    encoder = network.policy_trunk.encoder
    assert encoder.features == 80
    tables = [p for name, p in encoder.named_parameters() if "weights" in name]
    assert [tuple(p.shape) for p in tables] == [(750, 8), (6, 8), (1501, 8), (40, 16)]
    assert sum(p.numel() for p in tables) == 18_696
    assert size(encoder) - 18_696 == 264
    assert size(network.policy_trunk.dense) == 0
    assert size(network.policy_trunk.core) == 4_526_080
    assert size(network.head) == 131_200
    assert size(network) == 4_676_240


def test_parts_survive_json():
    from rookery.config import from_values, resolve, to_values

    text = '{"": {"reduce": "keep"}, "units/kind": {"embedding": 3, "dense": [4, 5]}}'
    config = resolve("ppo", "CartPole-v1", {"net": {"parts": text}}).config
    assert config.net.parts == {
        "": PartConfig(reduce="keep"),
        "units/kind": PartConfig(embedding=3, dense=(4, 5)),
    }
    assert from_values(to_values(config), {}) == config
    with pytest.raises(BadInput, match=r"net\.parts\..*reduce.*max.*mean.*keep"):
        resolve("ppo", "CartPole-v1", {"net": {"parts": '{"": {"reduce": "sum"}}'}})


def test_several_boards_are_not_encoded_as_a_set_of_entities():
    space = spaces.Dict(
        board=spaces.Box(0, 8, (24, 18), np.uint8), mask=spaces.Box(0, 1, (24, 18), np.uint8)
    )
    encoder = encoder_of(space, NetConfig(encoder="auto", image_features=16))
    assert isinstance(encoder, NestedEncoder)
    assert encoder.features == 32
