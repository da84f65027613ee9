"""Settings of algorithms with a replay memory, and the memory built from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import gymnasium.spaces as spaces
import torch
from torch import Tensor

from rookery.algorithms.base import Collection, OptimizerConfig, Spaces
from rookery.data.tree import tree_map, tree_replace
from rookery.errors import require
from rookery.memory import budget
from rookery.memory.distributions import Prioritized, Uniform
from rookery.memory.limiter import Limiter
from rookery.memory.replay import FirstPriorities, Replay, Windows
from rookery.memory.ring import Layout, Ring, row_like

UNIFORM_BYTES, PRIORITIZED_BYTES = 9, 17
"""Approximate bytes of a window's entry in the index, beside its rows."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(OptimizerConfig):
    """Settings of every algorithm with a replay memory."""

    learning_rate: float = 1e-4
    anneal: bool = False
    epsilon: float = 1.5e-4
    max_grad_norm: float = 40.0
    gamma: float = 0.99
    """Discount per agent step."""
    n_step: int = 3
    """Rewards summed before bootstrapping."""
    batch_size: int = 32
    """Windows in an update."""
    capacity: int | str = 1_000_000
    """Size of the memory over all environments: rows, or bytes such as 8GB."""
    warm_up: int = 20_000
    """Rows stored over all environments before learning starts."""
    samples_per_insert: float | None = 8.0
    """Times that each stored step is learned from on average; none: no limit."""
    alpha: float = 0.6
    """Exponent of priorities in sampling (Schaul et al. 2016); 0: uniform sampling."""
    beta: float = 0.4
    """Exponent of importance weights: 0 no correction, 1 full correction."""
    beta_end: float | None = None
    """Value that beta rises to linearly over the run; none: constant."""
    double: bool = True
    """True: double Q-learning, the online network chooses the action of the target value."""
    dueling: bool = True
    """True: value and advantages have separate output streams (Wang et al. 2016)."""
    loss: Literal["huber", "mse"] = "huber"
    """Loss of a TD error."""
    target_period: int = 2_500
    """Updates between copies of the network into its target, if target_tau is none."""
    target_tau: float | None = None
    """Share of the network mixed into its target with every update; none: copies."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("lie in (0, 1]", "gamma", "target_tau")
        self.check("lie in [0, 1]", "alpha", "beta")
        self.check("be at least 1", "n_step", "batch_size", "target_period")
        self.check("be positive", "samples_per_insert")
        self.check("be 0 or more", "warm_up")
        end = self.beta_end
        require(
            end is None or self.beta <= end <= 1,
            f"algo.beta_end must lie between algo.beta={self.beta} and 1, got {end}",
        )
        budget.check_capacity(self.capacity)


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
    assert isinstance(spaces_.action, spaces.Discrete)
    last = spaces_.action.n - 1
    kinds = (torch.int16, torch.int32, torch.int64)
    smallest = next(kind for kind in kinds if last <= torch.iinfo(kind).max)
    return Layout(
        obs=obs,
        action=torch.empty((), dtype=smallest, device="meta"),
        extra={name: torch.empty((), device="meta") for name in recorded},
        state=state,
        frames=spaces_.frame_stack,
        stride=stride,
        normalizer=spaces_.normalizer,
    )


def build_replay(
    config: ReplayConfig,
    layout: Layout,
    windows: Windows,
    collection: Collection,
    device: torch.device,
    first_priorities: FirstPriorities | None,
    lanes: int,
    writers: int,
    seed: int,
) -> Replay:
    """Return a replay memory for `writers` actors of `lanes` environments each.

    Batches are copied to `device`. `first_priorities` computes priorities of new windows from what
    was recorded while acting; None: the largest priority so far.
    """
    rows_at_once = collection.steps
    assert rows_at_once is not None
    total = lanes * writers
    index = PRIORITIZED_BYTES if config.alpha else UNIFORM_BYTES
    row_bytes = layout.row_bytes() + index / windows.stride
    capacity = budget.rows_within(config.capacity, row_bytes)
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
        device,
        writers,
        first_priorities if config.alpha else None,
    )
