"""The base class of algorithms, the settings they share, and the registry of their names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import gymnasium.spaces as spaces
import numpy as np
import torch
from torch import Tensor, nn

from rookery.data.steps import Batch, Decision, Lanes, Loss, Segment
from rookery.data.tree import Tree, flatten_time, tree_map
from rookery.errors import BadInput, nearest, require
from rookery.memory.base import Memory
from rookery.memory.ring import RowNormalizer
from rookery.networks.build import NetConfig
from rookery.networks.recurrent import clear
from rookery.tracing import TracedFunction


class Spaces(NamedTuple):
    """The spaces of a single environment, and how its observations are made."""

    obs: spaces.Space
    action: spaces.Space
    frame_stack: int = 1
    """Frames along the first axis of an observation."""
    normalizer: RowNormalizer | None = None
    """Normalises observations and rewards, if they are normalised."""


class Collection(NamedTuple):
    """The rows, or the whole episodes, that an actor collects at a time."""

    steps: int | None = None
    episodes: int | None = None
    newest_frame: bool = False
    """True if only the newest frame of stacked observations is stored."""
    raw: bool = False
    """True if observations and rewards are stored as before normalisation."""


RULES: dict[str, Callable[[float], bool]] = {
    "be positive": lambda x: x > 0,
    "be 0 or more": lambda x: x >= 0,
    "be at least 1": lambda x: x >= 1,
    "lie in [0, 1]": lambda x: 0 <= x <= 1,
    "lie in (0, 1]": lambda x: 0 < x <= 1,
}
"""Conditions on settings, for `OptimizerConfig.check`."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Settings of the optimizer, which every algorithm has."""

    optimizer: Literal["adam", "rmsprop", "sgd"] = "adam"
    """Name of the optimizer."""
    learning_rate: float = 3e-4
    """Size of a step at the start."""
    anneal: bool = True
    """True: the learning rate falls linearly to zero over the run."""
    epsilon: float = 1e-5
    """Added to the denominator of adam and rmsprop."""
    max_grad_norm: float = 0.5
    """The gradient is scaled down to this norm; 0: never."""

    def __post_init__(self) -> None:
        self.check("be positive", "learning_rate", "epsilon")
        self.check("be 0 or more", "max_grad_norm")

    def check(self, rule: str, *names: str) -> None:
        """Raise unless the settings `names`, where they are not None, follow one of RULES."""
        for name in names:
            value = getattr(self, name)
            require(value is None or RULES[rule](value), f"algo.{name} must {rule}, got {value}")


class Algorithm(ABC):
    """A reinforcement-learning algorithm: how to act, what to store, what to minimise.

    It knows no processes, threads, files, loggers or environments.
    """

    Config: ClassVar[type[OptimizerConfig]]
    default_net: ClassVar[NetConfig] = NetConfig()
    off_policy: ClassVar[bool] = False
    """True if it learns from what older weights played, so that actors may play meanwhile."""
    asynchronous: ClassVar[bool] = False
    """True if actors play while it learns, unless another backend is chosen."""
    explores_by: ClassVar[str | None] = None
    """Name of the column that reports `exploration`; None: it is not reported."""
    traceable: ClassVar[bool] = True
    """False if its loss, acting or target values do what tracing cannot repeat, such as counting
    their calls in Python: then nothing of it is traced."""
    trace: bool = True
    """The setting `learner.trace`."""
    config: OptimizerConfig
    device: torch.device
    network: nn.Module
    collection: Collection

    @abstractmethod
    def __init__(self, spaces: Spaces, config: Any, net: NetConfig, device: torch.device):
        """Subclasses set `config`, `device`, `network` and `collection`."""

    # ---------------------------------------------------------------- acting

    def initial_state(self, batch: int) -> Tree:
        """Return the recurrent state at the start of an episode, [batch, ...]; () without one."""
        return ()

    def exploration(self, env_steps: int, lanes: Lanes) -> Tensor:
        """Return how much to explore in each lane, [B], `env_steps` into the run."""
        return torch.ones(lanes.size, device=self.device)

    @abstractmethod
    def draw(self, explore: Tensor, generator: torch.Generator | None) -> Tree:
        """Return the random numbers with which `choose` explores as much as `explore` [B] says."""

    @abstractmethod
    def choose(
        self, obs: Tree, reward: Tensor, state: Tree, draw: Tree | None, explain: bool = False
    ) -> Decision:
        """Choose actions for observations [B, ...] and the rewards [B] that came with them.

        `draw` are random numbers for exploration; None: choose the best actions. `extra` of the
        decision holds what is stored with the row, or with `explain` what the action was chosen by:
        distribution parameters and value, or action values. Tensor operations only, the same for
        every batch size: this is traced and exported.
        """

    def act(
        self,
        obs: Tree,
        reward: Tensor,
        state: Tree,
        generator: torch.Generator | None,
        explore: Tensor | None,
    ) -> Decision:
        """Choose actions, exploring as much as `explore` [B] says; None: choose the best ones."""
        draw = None if explore is None else self.draw(explore, generator)
        return self.traced_choose(obs, reward, state, draw)

    def best(self, obs: Tree, reward: Tensor, state: Tree) -> Decision:
        """Return the best actions, with what they were chosen by in `extra`."""
        return self.choose(obs, reward, state, None, explain=True)

    def best_in(self, batch: Batch) -> Decision:
        """Return the best actions for the rows of a batch; of a recurrent policy for the first row
        of each lane, whose state is known."""
        rows = len(batch.steps.mask)
        if batch.state:
            obs, state = tree_map(lambda x: x[0], batch.steps.obs), batch.state
        else:
            obs, state = flatten_time(tree_map(lambda x: x[:rows], batch.steps.obs)), ()
        count = batch.steps.mask[:1].numel() if batch.state else batch.steps.mask.numel()
        return self.best(obs, torch.zeros(count, device=self.device), state)

    @cached_property
    def traced_choose(self) -> Callable[..., Decision]:
        """`choose`, traced where that is faster."""
        return self.traced("acting", self.choose, lambda: [self.network])

    def replace_action(self, state: Tree, env_action: Tensor) -> Tree:
        """Return the recurrent state after a decision whose actions [B] were replaced by others."""
        return state

    # ---------------------------------------------------------------- learning

    @abstractmethod
    def prepare(self, segment: Segment) -> Segment:
        """Return a segment as the memory stores it; computed beside the actor."""

    @abstractmethod
    def memory(self, lanes: int, writers: int, seed: int) -> Memory:
        """Return the memory for segments of `writers` actors with `lanes` environments each."""

    def precompute_targets(self, batch: Batch, coming: range | None = None) -> Batch:
        """Return the batch with the target values of its rows, where that saves time.

        `coming` are the numbers of the updates that the batch will be split into: the values must
        be the same in all of them. None: the batch is drawn while the learner is busy with another.
        """
        return batch

    def before_update(self, generator: torch.Generator) -> None:  # noqa: B027
        """Draw the random numbers that the loss needs, such as noise.

        Called once an update, however many micro batches it has; the generator draws the same
        numbers on every rank.
        """

    @abstractmethod
    def statistics(self, batch: Batch) -> Tensor:
        """Return sums over the batch's rows that its loss needs; the first is their count.

        The learner adds them up over all ranks before any loss is computed.
        """

    @abstractmethod
    def loss(self, batch: Batch, statistics: Tensor) -> Loss:
        """Return the loss of a batch, or of a micro batch, given the statistics of the whole."""

    @property
    def may_stop(self) -> bool:
        """True if `stop` can return True."""
        return False

    def stop(self, metrics: dict[str, float]) -> bool:
        """True if the rest of the memory's batches, this one included, must not be learned from."""
        return False

    def diagnose(self, batch: Batch, sample: Batch, decision: Decision) -> dict[str, Tensor]:
        """Return columns about an update for reports, given its batch, a part of that, and the
        best decision in this part."""
        return {}

    def after_update(self, updates: int) -> None:  # noqa: B027
        """Called after update number `updates`, such as to update a target network."""

    def saved(self) -> dict[str, nn.Module]:
        """Return modules beside the network whose parameters belong to a checkpoint, by name."""
        return {}

    # ---------------------------------------------------------------- tracing and log

    @property
    def untraced(self) -> str | None:
        """Why the algorithm is not traced; None if it is."""
        if not self.trace:
            return "learner.trace is false"
        if not self.traceable:
            return f"{type(self).__name__} says traceable = False"
        if self.device.type != "cpu":
            return f"the device is {self.device}, not the CPU"
        return None

    def traced(
        self,
        name: str,
        function: Callable[..., Any],
        modules: Callable[[], Sequence[nn.Module]],
    ) -> Callable[..., Any]:
        """Return `function` traced, or unchanged if the algorithm is not traced. If tracing it is
        given up later, a warning with this name is logged."""

        def report(status: str, is_warning: bool) -> None:
            if is_warning:
                self.notices.append(f"warning: {name}: {status}")

        return function if self.untraced else TracedFunction(function, modules, self, report)

    @cached_property
    def notices(self) -> list[str]:
        """Lines for the run's log since the last `take_notices`."""
        return []

    def take_notices(self) -> list[str]:
        """Return the lines for the run's log since the last call."""
        taken = self.notices.copy()
        self.notices.clear()
        return taken


def spread(name: str, values: Tensor) -> dict[str, Tensor]:
    """Return lowest and highest value, mean and deviation as columns that begin with `name`."""
    return {
        f"{name}_min": values.amin(),
        f"{name}_max": values.amax(),
        f"{name}_mean": values.mean(),
        f"{name}_std": values.std(correction=0),
    }


def carry(state: Tree, resetting: np.ndarray) -> Tree:
    """Return the recurrent state for the next row, cleared in the lanes whose row was a reset row
    [B]."""
    if not state or not resetting.any():
        return state
    return clear(state, torch.as_tensor(resetting, device=state[0].device))


ALGORITHMS: dict[str, type[Algorithm]] = {}


def register(name: str) -> Callable[[type], type]:
    """Class decorator that registers an algorithm as `name`."""

    def add(cls: type) -> type:
        ALGORITHMS[name] = cls
        return cls

    return add


def algorithm_class(name: str) -> type[Algorithm]:
    """Return the class of the algorithm `name`."""
    if name not in ALGORITHMS:
        raise BadInput(
            f'algorithm: unknown algorithm "{name}".{nearest(name, ALGORITHMS)}'
            " 'rookery algorithms' lists them."
        )
    return ALGORITHMS[name]
