"""Encoders of nested observations: codes, numbers, images and sets of entities.

The space of each part determines its encoder, unless a `PartConfig` changes it. The parts of a
nested space are named by their keys (indices, in a Tuple) joined by slashes: "units/kind".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import gymnasium.spaces as spaces
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rookery.data.tree import Tree
from rookery.errors import BadInput, nearest, require
from rookery.networks.encoders import (
    FloatVector,
    Mlp,
    OneHot,
    features_of,
    image_encoder,
)
from rookery.networks.images import has_images, is_image

ONE_HOT_UP_TO = 64
"""Codes with more values than this are embedded by default."""
WIDEST = 64
"""Largest default width of an embedding."""

Codes = spaces.Discrete | spaces.MultiDiscrete
Numbers = spaces.Box | spaces.MultiBinary


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


class Encoding(NamedTuple):
    """Encoder settings for a whole observation."""

    images: str = "auto"
    image_features: int = 512
    activation: str = "tanh"
    parts: dict[str, PartConfig] = {}  # noqa: RUF012

    def of(self, path: str) -> PartConfig:
        """Return the settings of a part."""
        return self.parts.get(path, PartConfig())


# ---------------------------------------------------------------- modules


class Embedding(nn.Module):
    """Codes [..., *shape] as learned vectors [..., features]; each component has its own table."""

    start: Tensor

    def __init__(self, space: Codes, size: int):
        super().__init__()
        counts, start = counts_of(space), starts_of(space)
        self.dims = len(space.shape or ())
        self.features = counts.size * size
        before = np.cumsum(counts.flatten()) - counts.flatten()
        self.register_buffer("start", torch.as_tensor(start.flatten() - before), persistent=False)
        self.weight = nn.Parameter(torch.randn(int(counts.sum()), size))

    def forward(self, obs: Tensor) -> Tensor:
        codes = obs.unsqueeze(-1) if self.dims == 0 else obs.flatten(-self.dims)
        return F.embedding(codes.long() - self.start, self.weight).flatten(-2)


class EntityCodes(nn.Module):
    """Codes of entities [..., N] or [..., N, K] as learned vectors [..., N, features]; entities
    share one table per column."""

    start: Tensor

    def __init__(self, space: spaces.MultiDiscrete, size: int | None):
        super().__init__()
        counts, start = columns_of(space.nvec), columns_of(starts_of(space))
        self.single = len(space.shape) == 1
        sizes = [embedding_size(int(n)) if size is None else size for n in counts]
        self.features = sum(sizes)
        self.register_buffer("start", torch.as_tensor(start.copy()), persistent=False)
        self.weights = nn.ParameterList(
            torch.randn(int(n), width) for n, width in zip(counts, sizes, strict=True)
        )

    def forward(self, obs: Tensor) -> Tensor:
        codes = (obs.unsqueeze(-1) if self.single else obs).long() - self.start
        columns = [F.embedding(codes[..., i], weight) for i, weight in enumerate(self.weights)]
        return columns[0] if len(columns) == 1 else torch.cat(columns, -1)


class EntityNumbers(nn.Module):
    """Numbers of entities [..., N, F], unchanged."""

    def __init__(self, space: spaces.Box):
        super().__init__()
        self.features = int(space.shape[-1])

    def forward(self, obs: Tensor) -> Tensor:
        return obs.float()


class Clipped(nn.Module):
    """An encoder of numbers, clipped to plus and minus `limit`."""

    def __init__(self, encoder: nn.Module, limit: float):
        super().__init__()
        self.encoder = encoder
        self.limit = limit
        self.features = features_of(encoder)

    def forward(self, obs: Tensor) -> Tensor:
        return self.encoder(obs).clamp(-self.limit, self.limit)


class NestedEncoder(nn.Module):
    """A Dict or Tuple observation: the encoded parts concatenated."""

    def __init__(self, parts: dict[str, nn.Module], keys: list[str] | None):
        super().__init__()
        self.keys = keys
        self.parts = nn.ModuleList(parts.values())
        self.features = sum(features_of(part) for part in parts.values())

    def forward(self, obs: Tree) -> Tensor:
        values = [obs[key] for key in self.keys] if self.keys is not None else obs
        features = [part(value) for part, value in zip(self.parts, values, strict=True)]
        return features[0] if len(features) == 1 else torch.cat(features, -1)


class Dense(nn.Module):
    """An encoder followed by dense layers."""

    def __init__(self, encoder: nn.Module, widths: tuple[int, ...], activation: str):
        super().__init__()
        self.encoder = encoder
        self.layers = Mlp(features_of(encoder), widths, activation)
        self.features = self.layers.features

    def forward(self, obs: Tree) -> Tensor:
        return self.layers(self.encoder(obs))


class Entities(nn.Module):
    """A set of entities [..., N, F]: the maximum or the mean over them, [..., F]."""

    def __init__(self, encoder: nn.Module, reduce: str):
        super().__init__()
        self.encoder = encoder
        self.reduce = reduce
        self.features = features_of(encoder)

    def forward(self, obs: Tree) -> Tensor:
        x = self.encoder(obs)
        return x.amax(-2) if self.reduce == "max" else x.mean(-2)


# ---------------------------------------------------------------- from spaces


def encoder_of(space: spaces.Space, encoding: Encoding | None = None) -> nn.Module:
    """Return the encoder of an observation space, with `features`, its output width; every part
    of an observation is [..., *shape]."""
    encoding = encoding or Encoding()
    known = dict(named_parts(space))
    for path, config in encoding.parts.items():
        require(
            path in known,
            f'net.parts: the observation has no part "{path}".{nearest(path, known)}',
        )
        check_part(path, config, known[path])
    return part_encoder(space, encoding, "")


def part_encoder(space: spaces.Space, encoding: Encoding, path: str) -> nn.Module:
    """Return the encoder of the part of an observation at `path`."""
    config = encoding.of(path)
    reduce = config.reduce or ("max" if looks_like_entities(space) else None)
    if reduce in ("max", "mean"):
        encoder = with_dense(entity_encoder(space, encoding, path), config, encoding)
        return Entities(encoder, reduce)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = {key: part_encoder(part, encoding, sub) for key, sub, part in parts_of(space, path)}
        encoder = NestedEncoder(parts, list(parts) if isinstance(space, spaces.Dict) else None)
    elif is_image(space):
        encoder = image_encoder(space, encoding.images, encoding.image_features)
    elif isinstance(space, Codes):
        largest = int(counts_of(space).max())
        size = config.embedding
        if size is None:
            size = 0 if largest <= ONE_HOT_UP_TO else embedding_size(largest)
        encoder = Embedding(space, size) if size else OneHot(space)
    elif isinstance(space, Numbers):
        encoder = FloatVector(space)
    else:
        raise BadInput(
            f"observation space {type(space).__name__} is not supported; use Box, Discrete,"
            " MultiDiscrete, MultiBinary, Dict or Tuple"
        )
    return with_dense(with_clip(encoder, config), config, encoding)


def entity_encoder(space: spaces.Space, encoding: Encoding, path: str) -> nn.Module:
    """Return the encoder of a set of entities to [..., N, features], before the reduction."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = {}
        for key, sub, part in parts_of(space, path):
            encoder = entity_encoder(part, encoding, sub)
            parts[key] = with_dense(encoder, encoding.of(sub), encoding)
        return NestedEncoder(parts, list(parts) if isinstance(space, spaces.Dict) else None)
    if isinstance(space, spaces.MultiDiscrete):
        size = encoding.of(path).embedding
        require(
            size != 0,
            f"net.parts.{path}.embedding must be at least 1 for codes of entities, got 0",
        )
        return EntityCodes(space, size)
    assert isinstance(space, spaces.Box)
    return with_clip(EntityNumbers(space), encoding.of(path))


def with_clip(encoder: nn.Module, config: PartConfig) -> nn.Module:
    """Return `encoder` with clipped numbers if `config.clip` is set."""
    return encoder if config.clip is None else Clipped(encoder, config.clip)


def with_dense(encoder: nn.Module, config: PartConfig, encoding: Encoding) -> nn.Module:
    """Return `encoder` followed by dense layers if `config.dense` is set."""
    return Dense(encoder, config.dense, encoding.activation) if config.dense else encoder


def parts_of(
    space: spaces.Dict | spaces.Tuple, path: str
) -> Iterator[tuple[str, str, spaces.Space]]:
    """Yield key, path and space of every part."""
    named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, part in named:
        yield str(key), f"{path}/{key}" if path else str(key), part


def named_parts(space: spaces.Space, path: str = "") -> Iterator[tuple[str, spaces.Space]]:
    """Yield path and space of every part at every depth, starting with the whole."""
    yield path, space
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for _, sub, part in parts_of(space, path):
            yield from named_parts(part, sub)


def entities_in(space: spaces.Space) -> int | None:
    """Return the number of entities in an array or a group of arrays; None if it is no such set."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        counts = {entities_in(part) for _, _, part in parts_of(space, "")}
        return counts.pop() if len(counts) == 1 else None
    if isinstance(space, spaces.MultiDiscrete):
        return len(space.nvec) if same_columns(space) else None
    if isinstance(space, spaces.Box) and len(space.shape) == 2:
        return space.shape[0]
    return None


def looks_like_entities(space: spaces.Space) -> bool:
    """True if a group of several arrays is encoded as a set of entities by default: some are
    numbers [N, F], all have the same N, and none is an image."""
    if not isinstance(space, spaces.Dict | spaces.Tuple) or entities_in(space) is None:
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


def counts_of(space: Codes) -> np.ndarray:
    """Return the number of codes of each component."""
    return np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec)


def starts_of(space: Codes) -> np.ndarray:
    """Return the smallest code of each component."""
    return np.broadcast_to(space.start, counts_of(space).shape)


def columns_of(counts: np.ndarray) -> np.ndarray:
    """Return one value per column of values [N] or [N, K] that are equal for all entities."""
    return np.atleast_1d(counts[0])


def same_columns(space: spaces.MultiDiscrete) -> bool:
    """True if codes [N] or [N, K] have the same range in every entity."""
    start = starts_of(space)
    plain = len(space.shape) in (1, 2)
    return plain and bool((space.nvec == space.nvec[0]).all() and (start == start[0]).all())


def embedding_size(count: int) -> int:
    """Return the usual width of an embedding of `count` codes, about their square root."""
    return min(WIDEST, max(2, round(1.6 * count**0.56)))
