"""ReplaySpec: from an algorithm's settings to its replay memory."""

from __future__ import annotations

from dataclasses import dataclass
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
"""Approximate bytes of a window's entry in the index, beside its rows."""


def layout_of(
    spaces_: Spaces, recorded: tuple[str, ...], state: tuple[Tensor, ...] = (), stride: int = 1
) -> Layout:
    """Return the layout of a row; `recorded` names numbers stored with it."""
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
    """Return the smallest integer type, from int16 on, that holds every action of a Discrete space,
    counted from 0."""
    assert isinstance(space, spaces.Discrete)
    kinds = (torch.int16, torch.int32, torch.int64)
    return next(kind for kind in kinds if space.n - 1 <= torch.iinfo(kind).max)


def collection_of(spaces_: Spaces, rows: int) -> Collection:
    """Return how an actor collects `rows` rows for a replay memory: only the newest frame of a
    stack, and without normalisation, since the memory normalises rows when they are drawn."""
    return Collection(
        rows, newest_frame=spaces_.frame_stack > 1, raw=spaces_.normalizer is not None
    )


@dataclass(frozen=True)
class ReplaySpec:
    """The settings of an algorithm's replay memory, apart from how many actors write to it."""

    config: ReplayConfig
    layout: Layout
    windows: Windows
    rows_at_once: int
    """Rows of each environment that an actor adds at a time."""
    device: torch.device
    """The learner's device, which batches are copied to."""
    first_priorities: FirstPriorities | None
    """Computes priorities of new windows from what was recorded while acting; None: the largest
    priority so far."""

    def build(self, lanes: int, writers: int, seed: int) -> Replay:
        """Return a replay memory for `writers` actors of `lanes` environments each."""
        config, layout, windows = self.config, self.layout, self.windows
        rows_at_once = self.rows_at_once
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
            f"algo.capacity={config.capacity} gives each of the {total} environments {rows:,} rows,"
            f" but windows of {windows.length} ({windows.settings}) that come {rows_at_once} rows"
            f" at a time need {least}; raise it or lower --envs",
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
        budget.check_replay_fits(row_bytes * rows * total, rows * total)
        ring = Ring(layout, total, rows)
        # Before the first window is whole there is nothing to wait for.
        warm_up = max(config.warm_up, windows.length * total)
        samples = config.batch_size * windows.samples
        tolerance = 2 * max(samples, (config.samples_per_insert or 0) * rows_at_once * lanes)
        return Replay(
            ring,
            windows,
            Prioritized(total * ring.starts, config.alpha, config.beta, config.beta_end)
            if config.alpha
            else Uniform(total, ring.starts),
            Limiter(config.samples_per_insert, warm_up, tolerance),
            config.batch_size,
            seed,
            self.device,
            writers,
            self.first_priorities if config.alpha else None,
        )


def transition_spec(
    config: ReplayConfig, spaces_: Spaces, rows_at_once: int, device: torch.device, recorded: bool
) -> ReplaySpec:
    """Return the spec of a replay of n-step transitions; if `recorded`, values stored while acting
    give their first priorities."""
    errors = partial(recorded_errors, gamma=config.gamma, n=config.n_step)
    return ReplaySpec(
        config,
        layout_of(spaces_, ("q", "value") if recorded else ()),
        Transitions(config.n_step, config.gamma),
        rows_at_once,
        device,
        errors if recorded else None,
    )
