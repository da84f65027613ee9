"""NetConfig, the encoder of an observation space, and the trunk of all networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

import gymnasium.spaces as spaces
import numpy as np
import torch
from torch import Tensor, nn

from rookery.data.tree import Tree
from rookery.errors import BadInput, nearest, require
from rookery.networks import encoders
from rookery.networks.encoders import Codes, Mlp, Numbers, features_of, starts_of
from rookery.networks.images import image_encoder
from rookery.networks.recurrent import Core, State

ONE_HOT_UP_TO = 64
"""Codes with more values than this are embedded by default."""
LEAST_BOARD = 8
"""Shortest side of a uint8 array [H, W] that counts as a board."""
Groups = spaces.Dict | spaces.Tuple


@dataclass(frozen=True, kw_only=True)
class PartConfig:
    """Encoder settings for one part of an observation."""

    embedding: int | None = None
    """For codes: width of the embedding; 0: one-hot vectors; none: by the number of codes."""
    clip: float | None = None
    """For numbers: clip to plus and minus this."""
    dense: tuple[int, ...] = ()
    """Widths of dense layers for this part; in a set of entities they see one entity at a time."""
    reduce: Literal["max", "mean", "keep"] | None = None
    """For an array [entities, features] or a group of such: reduction over the entities; keep:
    concatenate all of them. None: max for a group with numbers of each entity."""

    def __post_init__(self) -> None:
        require(
            self.embedding is None or self.embedding >= 0,
            f"net.parts: embedding must be 0 or more, got {self.embedding}",
        )
        require(
            self.clip is None or self.clip > 0, f"net.parts: clip must be positive, got {self.clip}"
        )
        require(
            all(width > 0 for width in self.dense),
            f"net.parts: dense must be positive widths, got {self.dense}",
        )


PLAIN_PART = PartConfig()


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """Settings of a network."""

    encoder: Literal["auto", "mlp", "nature", "small", "narrow", "impala"] = "auto"
    """Encoder of images; auto: nature, or impala below 36x36. Vectors go directly to the
    dense layers."""
    image_features: int = 512
    """Width of the dense layer after the convolutions."""
    parts: dict[str, PartConfig] = field(default_factory=dict)
    """Encoders of parts of a nested observation by path: {"units/kind": {"embedding": 8}, "units":
    {"dense": [32], "reduce": "mean"}}; other parts are encoded by their spaces."""
    hidden: tuple[int, ...] | None = None
    """Widths of the dense layers; none: 64,64, and no further layers after an image encoder."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Activation of the dense layers."""
    core: Literal["none", "lstm", "gru"] = "none"
    """Recurrent core after the dense layers."""
    core_size: int = 128
    """Units of the recurrent core."""
    per_action: bool = False
    """Observations [A, F] describe each of A actions: the policy's network scores each row
    separately, and the value's network sees all rows."""
    shared: bool | None = None
    """Policy and value share their layers; none: true for images only."""
    log_std: float = 0.0
    """Initial log-deviation of Gaussian actions, in units where the bounds are -1 and 1."""

    def __post_init__(self) -> None:
        widths = (*(self.hidden or ()), self.image_features, self.core_size)
        require(
            all(width > 0 for width in widths),
            "net.hidden, net.image_features and net.core_size must be positive,"
            f" got {self.hidden}, {self.image_features} and {self.core_size}",
        )
        require(
            not self.per_action or (self.core == "none" and not self.shared),
            "net.per_action needs net.core=none and net.shared=false,"
            f" got net.core={self.core} and net.shared={self.shared}",
        )


def encoder_of(space: spaces.Space, net: NetConfig) -> nn.Module:
    """Return the encoder of an observation space, with `features`, its output width.

    The space of each part determines its encoder, unless `net.parts` changes it. The parts of a
    nested space are named by their keys (indices, in a Tuple) joined by slashes: "units/kind".
    Every part of an observation is [..., *shape].
    """
    known = dict(named_parts(space))
    for path, config in net.parts.items():
        require(
            path in known,
            f'net.parts: the observation has no part "{path}".{nearest(path, known)}',
        )
        check_part(path, config, known[path])
    return part_encoder(space, net, "")


def part_encoder(space: spaces.Space, net: NetConfig, path: str) -> nn.Module:
    """Return the encoder of the part of an observation at `path`."""
    config = net.parts.get(path, PLAIN_PART)
    reduce = config.reduce or ("max" if looks_like_entities(space) else None)
    if reduce in ("max", "mean"):
        return encoders.Entities(entity_encoder(space, net, path), reduce)
    encoder: nn.Module
    if isinstance(space, Groups):
        parts = {key: part_encoder(part, net, sub) for key, sub, part in parts_of(space, path)}
        encoder = encoders.NestedEncoder(parts)
    elif is_image(space) and net.encoder != "mlp":
        encoder = image_encoder(space, net.encoder, net.image_features)
    elif isinstance(space, Codes):
        largest = int(encoders.counts_of(space).max())
        size = config.embedding
        if size is None:
            size = 0 if largest <= ONE_HOT_UP_TO else encoders.embedding_size(largest)
        encoder = encoders.Embedding(space, size) if size else encoders.OneHot(space)
    elif isinstance(space, Numbers):
        encoder = encoders.FloatVector(space, config.clip)
    else:
        raise BadInput(
            f"observation space {type(space).__name__} is not supported; use Box, Discrete,"
            " MultiDiscrete, MultiBinary, Dict or Tuple"
        )
    return encoders.Dense(encoder, config.dense, net.activation) if config.dense else encoder


def entity_encoder(space: spaces.Space, net: NetConfig, path: str) -> nn.Module:
    """Return the encoder of a set of entities to [..., N, features], before the reduction."""
    config = net.parts.get(path, PLAIN_PART)
    encoder: nn.Module
    if isinstance(space, Groups):
        parts = {key: entity_encoder(part, net, sub) for key, sub, part in parts_of(space, path)}
        encoder = encoders.NestedEncoder(parts)
    elif isinstance(space, spaces.MultiDiscrete):
        require(
            config.embedding != 0,
            f"net.parts.{path}.embedding must be at least 1 for codes of entities, got 0",
        )
        encoder = encoders.EntityCodes(space, config.embedding)
    else:
        assert isinstance(space, spaces.Box)
        encoder = encoders.EntityNumbers(space, config.clip)
    return encoders.Dense(encoder, config.dense, net.activation) if config.dense else encoder


def parts_of(space: Groups, path: str) -> Iterator[tuple[Any, str, spaces.Space]]:
    """Yield key or index, path and space of every part."""
    named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, part in named:
        yield key, f"{path}/{key}" if path else str(key), part


def named_parts(space: spaces.Space, path: str = "") -> Iterator[tuple[str, spaces.Space]]:
    """Yield path and space of every part at every depth, starting with the whole."""
    yield path, space
    if isinstance(space, Groups):
        for _, sub, part in parts_of(space, path):
            yield from named_parts(part, sub)


def entities_in(space: spaces.Space) -> int | None:
    """Return the number of entities in an array or a group of arrays; None if it is no such set."""
    if isinstance(space, Groups):
        counts = {entities_in(part) for _, _, part in parts_of(space, "")}
        return counts.pop() if len(counts) == 1 else None
    if isinstance(space, spaces.MultiDiscrete):
        # Codes [N] or [N, K] with the same range in every entity.
        start = starts_of(space)
        alike = (space.nvec == space.nvec[0]).all() and (start == start[0]).all()
        return len(space.nvec) if len(space.shape) in (1, 2) and alike else None
    if isinstance(space, spaces.Box) and len(space.shape) == 2:
        return space.shape[0]
    return None


def looks_like_entities(space: spaces.Space) -> bool:
    """True if a group of several arrays is encoded as a set of entities by default: some are
    numbers [N, F], all have the same N, and none is an image."""
    if not isinstance(space, Groups) or entities_in(space) is None:
        return False
    if len(space.spaces) == 1 or has_images(space):
        return False
    return any(isinstance(part, spaces.Box) for _, part in named_parts(space))


def check_part(path: str, config: PartConfig, space: spaces.Space) -> None:
    """Raise if a setting has no effect on a part of this kind."""
    kind = f"{type(space).__name__} {space.shape}" if space.shape else type(space).__name__
    name = f"net.parts.{path or '(the whole)'}"
    require(
        config.embedding is None or isinstance(space, Codes),
        f"{name}.embedding has an effect on codes only, and this is a {kind}; remove it",
    )
    require(
        config.clip is None or (isinstance(space, Numbers) and not is_image(space)),
        f"{name}.clip has an effect on numbers only, and this is a {kind}; remove it",
    )
    require(
        config.reduce in (None, "keep") or entities_in(space) is not None,
        f"{name}.reduce needs a set of entities, and this is a {kind}: use numbers [N, F], codes"
        " [N] or [N, K] with equal counts in a column, or a group of such with one N",
    )


def is_image(space: spaces.Space) -> TypeGuard[spaces.Box]:
    """True if a space contains uint8 images, or boards [H, W]."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    board = len(space.shape) == 2 and min(space.shape) >= LEAST_BOARD
    return board or len(space.shape) in (3, 4)


def has_images(space: spaces.Space) -> bool:
    """True if any part of an observation space is an image."""
    return any(is_image(part) for _, part in named_parts(space))


def hidden_of(space: spaces.Space, config: NetConfig) -> tuple[int, ...]:
    """Return the widths of the dense layers after the encoder."""
    if config.hidden is not None:
        return config.hidden
    return () if has_images(space) and config.encoder != "mlp" else (64, 64)


class Trunk(nn.Module):
    """Encoder, dense layers and recurrent core: observations [T, B, ...] to features [T, B, F].

    The core takes `extra_inputs` further inputs [T, B, extra_inputs] after the dense layers'
    features. `encoder` replaces the default encoder of the space. `noisy` dense layers have
    learned noise in their weights.
    """

    def __init__(
        self,
        space: spaces.Space,
        config: NetConfig,
        extra_inputs: int = 0,
        encoder: nn.Module | None = None,
        noisy: bool = False,
    ):
        super().__init__()
        self.encoder = encoder or encoder_of(space, config)
        width = features_of(self.encoder)
        self.dense = Mlp(width, hidden_of(space, config), config.activation, noisy)
        width = self.dense.features + extra_inputs
        self.core = None if config.core == "none" else Core(config.core, width, config.core_size)
        self.features = width if self.core is None else self.core.features

    def initial_state(self, batch: int, device: torch.device) -> State:
        """Return the state at the start of an episode."""
        return () if self.core is None else self.core.initial_state(batch, device)

    def forward(self, obs: Tree, state: State, extra: Tensor | None = None) -> tuple[Tensor, State]:
        """Return the features and the state after the last row."""
        features = self.before_core(obs, extra)
        return (features, state) if self.core is None else self.core(features, state)

    def window(
        self, obs: Tree, state: State, reset: Tensor | None, extra: Tensor | None = None
    ) -> Tensor:
        """Return the features of rows; the state is cleared before rows marked in `reset`."""
        features = self.before_core(obs, extra)
        return features if self.core is None else self.core.window(features, state, reset)

    def before_core(self, obs: Tree, extra: Tensor | None) -> Tensor:
        """Return the inputs of the core."""
        features = self.dense(self.encoder(obs))
        return features if extra is None else torch.cat([features, extra], -1)
