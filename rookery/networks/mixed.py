"""Observations made of parts: codes, numbers, images and sets of entities, nested at will.

A space says by itself how it is encoded; `PartConfig` says otherwise, part by part. The parts of a
nested space are named by their keys (places, in a Tuple) joined by slashes: "units/kind".
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
    joined,
)
from rookery.networks.images import has_images, is_image

ONE_HOT_UP_TO = 64
"""Codes with more values are embedded by default."""
WIDEST = 64

Codes = spaces.Discrete | spaces.MultiDiscrete
Numbers = spaces.Box | spaces.MultiBinary


@dataclass(frozen=True, kw_only=True)
class PartConfig:
    """How one part of an observation is encoded, where its space does not say it well."""

    embedding: int | None = None
    """Codes: numbers that stand for each; 0: one-hot vectors; none: by how many codes there are."""
    clip: float | None = None
    """Numbers: limit to plus and minus this."""
    dense: tuple[int, ...] = ()
    """Widths of dense layers of its own; in a set of entities they see one entity at a time."""
    reduce: Literal["max", "mean", "keep"] | None = None
    """Of an array [entities, features] or a group of such: what is kept of all entities; keep:
    all of them, side by side. None: max for a group with numbers of each entity."""

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
    """How a network sees observations."""

    images: str = "auto"
    image_features: int = 512
    activation: str = "tanh"
    parts: dict[str, PartConfig] = {}  # noqa: RUF012

    def of(self, path: str) -> PartConfig:
        """What is said of a part."""
        return self.parts.get(path, PartConfig())


# ---------------------------------------------------------------- modules


class Embedding(nn.Module):
    """Codes [..., *shape] as learned vectors, [..., features]; every component has its own."""

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
    """Codes of entities [..., N] or [..., N, K] as learned vectors [..., N, features]; a column's
    codes mean the same in every entity."""

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
    """Numbers of entities [..., N, F] as they are."""

    def __init__(self, space: spaces.Box):
        super().__init__()
        self.features = int(space.shape[-1])

    def forward(self, obs: Tensor) -> Tensor:
        return obs.float()


class Clipped(nn.Module):
    """An encoder of numbers that sees them within plus and minus `limit`."""

    def __init__(self, encoder: nn.Module, limit: float):
        super().__init__()
        self.encoder = encoder
        self.limit = limit
        self.features = features_of(encoder)

    def forward(self, obs: Tensor) -> Tensor:
        return self.encoder(obs).clamp(-self.limit, self.limit)


class Parts(nn.Module):
    """A Dict or Tuple observation: each part encoded, then side by side."""

    def __init__(self, parts: dict[str, nn.Module], keys: list[str] | None):
        super().__init__()
        self.keys = keys
        self.parts = nn.ModuleList(parts.values())
        self.features = sum(features_of(part) for part in parts.values())

    def forward(self, obs: Tree) -> Tensor:
        values = [obs[key] for key in self.keys] if self.keys is not None else obs
        return joined([part(value) for part, value in zip(self.parts, values, strict=True)])


class Dense(nn.Module):
    """An encoder with dense layers of its own."""

    def __init__(self, encoder: nn.Module, widths: tuple[int, ...], activation: str):
        super().__init__()
        self.encoder = encoder
        self.layers = Mlp(features_of(encoder), widths, activation)
        self.features = self.layers.features

    def forward(self, obs: Tree) -> Tensor:
        return self.layers(self.encoder(obs))


class Entities(nn.Module):
    """A set of entities [..., N, F]: what is largest, or the mean, over all of them."""

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
    """The encoder of an observation space; has `features`, takes [..., *shape] in every part."""
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
    """The encoder of the part of an observation that `path` names."""
    config = encoding.of(path)
    reduce = config.reduce or ("max" if looks_like_entities(space) else None)
    if reduce in ("max", "mean"):
        encoder = with_dense(entity_encoder(space, encoding, path), config, encoding)
        return Entities(encoder, reduce)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = {key: part_encoder(part, encoding, sub) for key, sub, part in parts_of(space, path)}
        encoder = Parts(parts, list(parts) if isinstance(space, spaces.Dict) else None)
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
        raise unsupported(space)
    return with_dense(limited(encoder, config), config, encoding)


def entity_encoder(space: spaces.Space, encoding: Encoding, path: str) -> nn.Module:
    """The encoder of a set of entities up to [..., N, features]."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = {}
        for key, sub, part in parts_of(space, path):
            encoder = entity_encoder(part, encoding, sub)
            parts[key] = with_dense(encoder, encoding.of(sub), encoding)
        return Parts(parts, list(parts) if isinstance(space, spaces.Dict) else None)
    if isinstance(space, spaces.MultiDiscrete):
        size = encoding.of(path).embedding
        require(size != 0, f"net.parts.{path}.embedding: codes of entities are always embedded")
        return EntityCodes(space, size)
    assert isinstance(space, spaces.Box)
    return limited(EntityNumbers(space), encoding.of(path))


def limited(encoder: nn.Module, config: PartConfig) -> nn.Module:
    """`encoder` with its numbers clipped, if that is asked for."""
    return encoder if config.clip is None else Clipped(encoder, config.clip)


def with_dense(encoder: nn.Module, config: PartConfig, encoding: Encoding) -> nn.Module:
    """`encoder` with dense layers, if some are asked for."""
    return Dense(encoder, config.dense, encoding.activation) if config.dense else encoder


def parts_of(
    space: spaces.Dict | spaces.Tuple, path: str
) -> Iterator[tuple[str, str, spaces.Space]]:
    """Key, path and space of every part."""
    named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, part in named:
        yield str(key), f"{path}/{key}" if path else str(key), part


def named_parts(space: spaces.Space, path: str = "") -> Iterator[tuple[str, spaces.Space]]:
    """Path and space of every part at every depth, the whole first."""
    yield path, space
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for _, sub, part in parts_of(space, path):
            yield from named_parts(part, sub)


def entities_in(space: spaces.Space) -> int | None:
    """How many entities an array or a group of arrays describes; None if it cannot."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        counts = {entities_in(part) for _, _, part in parts_of(space, "")}
        return counts.pop() if len(counts) == 1 else None
    if isinstance(space, spaces.MultiDiscrete):
        return len(space.nvec) if same_columns(space) else None
    if isinstance(space, spaces.Box) and len(space.shape) == 2:
        return space.shape[0]
    return None


def looks_like_entities(space: spaces.Space) -> bool:
    """Whether a group of several arrays is taken for a set of entities: there are numbers [N, F]
    of each, everything else has the same N, and nothing is an image."""
    if not isinstance(space, spaces.Dict | spaces.Tuple) or entities_in(space) is None:
        return False
    if len(space.spaces) == 1 or has_images(space):
        return False
    return any(isinstance(part, spaces.Box) for _, part in named_parts(space))


def check_part(path: str, config: PartConfig, space: spaces.Space) -> None:
    """Refuse what says nothing to a part of this kind."""
    told = f"{type(space).__name__} {space.shape}" if space.shape else type(space).__name__
    name = f"net.parts.{path or '(the whole)'}"
    require(
        config.embedding is None or isinstance(space, Codes),
        f"{name}.embedding: only codes are embedded, and this is a {told}",
    )
    require(
        config.clip is None or (isinstance(space, Numbers) and not is_image(space)),
        f"{name}.clip: only numbers are clipped, and this is a {told}",
    )
    require(
        config.reduce in (None, "keep") or entities_in(space) is not None,
        f"{name}.reduce: this {told} is no set of entities: numbers [N, F], codes [N] or [N, K]"
        " with equal counts in a column, or a group of such with one N",
    )


def counts_of(space: Codes) -> np.ndarray:
    """How many values each component has."""
    return np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec)


def starts_of(space: Codes) -> np.ndarray:
    """The least value of each component."""
    return np.broadcast_to(space.start, counts_of(space).shape)


def columns_of(counts: np.ndarray) -> np.ndarray:
    """Of values [N] or [N, K] that are the same in every entity: one a column."""
    return np.atleast_1d(counts[0])


def same_columns(space: spaces.MultiDiscrete) -> bool:
    """Whether codes [N] or [N, K] mean the same in every entity."""
    start = starts_of(space)
    plain = len(space.shape) in (1, 2)
    return plain and bool((space.nvec == space.nvec[0]).all() and (start == start[0]).all())


def embedding_size(count: int) -> int:
    """A usual width for so many codes: it grows a little faster than the square root."""
    return min(WIDEST, max(2, round(1.6 * count**0.56)))


def unsupported(space: spaces.Space) -> BadInput:
    """The error for a space that nothing encodes."""
    return BadInput(
        f"observation space {type(space).__name__} is not supported; use Box, Discrete,"
        " MultiDiscrete, MultiBinary, Dict or Tuple"
    )
