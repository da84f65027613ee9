"""From an algorithm's settings to the replay memory it learns from."""

from __future__ import annotations

from functools import partial

import gymnasium.spaces as spaces
import torch
from torch import Tensor

from rookery.algorithms.base import Collection, Spaces
from rookery.algorithms.off_policy import ReplayConfig, recorded_errors
from rookery.data.tree import tree_map, tree_replace
from rookery.errors import require
from rookery.memory import budget
from rookery.memory.distributions import Prioritized, Uniform
from rookery.memory.limiter import Limiter
from rookery.memory.replay import FirstPriorities, Replay, Transitions, Windows
from rookery.memory.ring import Layout, Ring, row_like

UNIFORM_BYTES, PRIORITIZED_BYTES = 9, 17
"""About what a window takes beside its rows: its number and its place among those to draw from."""


def layout_of(
    spaces_: Spaces, recorded: tuple[str, ...], state: tuple[Tensor, ...] = (), stride: int = 1
) -> Layout:
    """What a row of such an environment is made of; `recorded` names numbers kept with it."""
    obs = row_like(spaces_.obs)
    if spaces_.frame_stack > 1:
        obs = tree_map(lambda x: x[0], obs)
    if spaces_.normalizer is not None:
        raw = spaces_.normalizer.raw_leaves()
        obs = tree_replace(obs, {path: row_like(leaf) for path, leaf in raw.items()})
    return Layout(
        obs=obs,
        action=torch.empty((), dtype=action_dtype(spaces_.action), device="meta"),
        extra={name: torch.empty((), device="meta") for name in recorded},
        state=state,
        frames=spaces_.frame_stack,
        stride=stride,
        normalizer=spaces_.normalizer,
    )


def action_dtype(space: spaces.Space) -> torch.dtype:
    """The smallest type of whole numbers, from int16 on, that holds every action of a Discrete
    space, counted from 0."""
    assert isinstance(space, spaces.Discrete)
    kinds = (torch.int16, torch.int32, torch.int64)
    return next(kind for kind in kinds if space.n - 1 <= torch.iinfo(kind).max)


def collection_of(spaces_: Spaces, rows: int) -> Collection:
    """How an actor collects so many rows for a replay memory: one frame of a stack, and raw, for
    the memory scales rows by the statistics of the time they are drawn."""
    return Collection(
        rows, newest_frame=spaces_.frame_stack > 1, raw=spaces_.normalizer is not None
    )


def transition_replay(
    config: ReplayConfig,
    spaces_: Spaces,
    *,
    recorded: bool,
    lanes: int,
    writers: int,
    rows_at_once: int,
    device: torch.device,
    seed: int,
) -> Replay:
    """A replay of n-step transitions; if values are `recorded`, they give first priorities."""
    return build_replay(
        config,
        layout_of(spaces_, ("q", "value") if recorded else ()),
        Transitions(config.n_step, config.gamma),
        lanes=lanes,
        writers=writers,
        rows_at_once=rows_at_once,
        device=device,
        seed=seed,
        first_priorities=partial(recorded_errors, gamma=config.gamma, n=config.n_step)
        if recorded
        else None,
    )


def build_replay(
    config: ReplayConfig,
    layout: Layout,
    windows: Windows,
    *,
    lanes: int,
    writers: int,
    rows_at_once: int,
    device: torch.device,
    seed: int,
    first_priorities: FirstPriorities | None,
) -> Replay:
    """A replay for `writers` actors of `lanes` environments that add `rows_at_once` rows."""
    total = lanes * writers
    index = PRIORITIZED_BYTES if config.alpha else UNIFORM_BYTES
    row_bytes = layout.row_bytes() + index / windows.stride
    capacity = budget.rows_within(config.capacity, row_bytes)
    require(
        config.batch_size <= capacity,
        f"algo.capacity={config.capacity} holds {capacity:,} rows, less than"
        f" algo.batch_size={config.batch_size}",
    )
    starts = capacity // total // windows.stride
    rows = starts * windows.stride
    # While rows are being overwritten, some window must stay whole.
    least = windows.length + windows.stride + layout.frames + rows_at_once
    require(
        rows >= least,
        f"algo.capacity={config.capacity} gives each of the {total} environments {rows:,} rows, but"
        f" windows of {windows.length} ({windows.settings}) that come {rows_at_once} rows at a time"
        f" need {least}; raise it or lower --envs",
    )
    require(
        config.batch_size <= starts * total,
        f"algo.capacity={config.capacity} holds {starts * total:,} windows, less than"
        f" algo.batch_size={config.batch_size}",
    )
    require(
        config.warm_up <= rows * total,
        f"algo.warm_up={config.warm_up} is more than algo.capacity={config.capacity} holds",
    )
    budget.check_fits(row_bytes * rows * total, rows * total)
    ring = Ring(layout, total, rows)
    samples = config.batch_size * windows.samples
    tolerance = 2 * max(samples, (config.samples_per_insert or 0) * rows_at_once * lanes)
    return Replay(
        ring,
        windows,
        Prioritized(total * ring.starts, config.alpha, config.beta, config.beta_end)
        if config.alpha
        else Uniform(total, ring.starts),
        # Before the first window is whole there is nothing to wait for.
        Limiter(config.samples_per_insert, max(config.warm_up, windows.length * total), tolerance),
        config.batch_size,
        seed,
        device,
        writers,
        first_priorities if config.alpha else None,
    )
