"""What an algorithm is to the rest of the system, and the registry of names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import gymnasium.spaces as spaces
import torch
from torch import Tensor, nn

from rookery.data.steps import Batch, Decision, Lanes, Loss, Segment
from rookery.data.tree import Tree
from rookery.errors import BadInput, nearest, require
from rookery.memory.base import Memory
from rookery.memory.ring import Normalizer
from rookery.networks.build import NetConfig
from rookery.tracing.recorder import Recorded


class SpaceNormalizer(Normalizer, Protocol):
    """What scales the observations and rewards of an environment."""

    def raw_leaves(self) -> dict[tuple[Any, ...], spaces.Space]:
        """The spaces of the leaves that are scaled, as they are before, by their paths."""
        ...

    def follow(self, shared: Mapping[str, Any]) -> None:
        """Take over the statistics that another process shares, by their names."""
        ...


class Spaces(NamedTuple):
    """What a single environment sees and does."""

    obs: spaces.Space
    action: spaces.Space
    frame_stack: int = 1
    """Frames along the first axis of an observation."""
    normalizer: SpaceNormalizer | None = None
    """What observations and rewards are scaled by, if they are."""


class Collection(NamedTuple):
    """How much an actor gathers at a time: so many rows, or so many whole episodes."""

    steps: int | None = None
    episodes: int | None = None
    newest_frame: bool = False
    """Whether of stacked observations only the newest frame is kept."""
    raw: bool = False
    """Whether observations and rewards are kept as they were before normalisation."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How a gradient becomes a step. Every algorithm's config has these fields."""

    optimizer: Literal["adam", "rmsprop", "sgd"] = "adam"
    """Which optimizer."""
    learning_rate: float = 3e-4
    """Size of a step at the start."""
    anneal: bool = True
    """Whether the learning rate falls linearly to zero over the run."""
    epsilon: float = 1e-5
    """Added to the denominator of adam and rmsprop."""
    max_grad_norm: float = 0.5
    """The gradient is scaled down to this norm; 0: never."""

    def __post_init__(self) -> None:
        require(
            self.learning_rate > 0, f"algo.learning_rate must be positive, got {self.learning_rate}"
        )
        require(self.epsilon > 0, f"algo.epsilon must be positive, got {self.epsilon}")
        require(
            self.max_grad_norm >= 0,
            f"algo.max_grad_norm must be 0 or more, got {self.max_grad_norm}",
        )


class Algorithm(Protocol):
    """Decides, prepares and judges; knows no processes, files, loggers or environments."""

    Config: ClassVar[type[OptimizerConfig]]
    default_net: ClassVar[NetConfig] = NetConfig()
    off_policy: ClassVar[bool] = False
    """Whether it learns from what other weights did: then actors may play while it learns."""
    asynchronous: ClassVar[bool] = False
    """Whether they do so where nobody says otherwise."""
    explores_by: ClassVar[str | None] = None
    """What `exploration` gives, if it is worth reporting."""
    traceable: ClassVar[bool] = True
    """False if its loss, its acting or its target values do what tracing cannot repeat, such as to
    count their calls in Python: then nothing of it is traced."""
    trace: bool = True
    """False if the run's settings ask for no tracing."""
    config: OptimizerConfig
    device: torch.device
    network: nn.Module
    collection: Collection

    def __init__(self, spaces: Spaces, config: Any, net: NetConfig, device: torch.device): ...

    def initial_state(self, batch: int) -> Tree:
        """Recurrent state at the start of an episode, [batch, ...]; () without one."""
        ...

    def exploration(self, env_steps: int, lanes: Lanes) -> Tensor:
        """How much to explore in each of the lanes, [B], so many steps into the run."""
        return torch.ones(lanes.size, device=self.device)

    def act(
        self,
        obs: Tree,
        reward: Tensor,
        state: Tree,
        generator: torch.Generator | None,
        explore: Tensor | None,
    ) -> Decision:
        """Actions for observations [B, ...] and the rewards [B] that came with them; without
        exploration the best ones."""
        ...

    def played(self, state: Tree, env_action: Tensor) -> Tree:
        """The state after a decision, if the environments were given the actions [B] instead of
        those that were decided."""
        return state

    def best(self, obs: Tree, reward: Tensor, state: Tree) -> Decision:
        """What `act` decides without exploration, and in `extra` all that it was decided by.

        Operations on tensors alone, the same for every batch size: what is exported."""
        ...

    def prepare(self, segment: Segment) -> Segment:
        """What the actor makes of its rows before they are learned from."""
        ...

    def memory(self, lanes: int, writers: int, seed: int) -> Memory:
        """Where prepared segments go: those of `writers` actors with `lanes` environments each."""
        ...

    def ahead(self, batch: Batch) -> Batch:
        """The batch with what can be computed of it while the learner is busy with another."""
        return batch

    def settled(self, done: int, coming: int) -> bool:
        """Whether that stays the same for so many coming updates, after so many that were done."""
        return False

    def before_update(self, generator: torch.Generator) -> None:
        """Called once before the loss of an update is computed, however many parts its batch is
        cut into; draws the random numbers that the loss needs. The generator's numbers are the
        same on every rank."""

    def statistics(self, batch: Batch) -> Tensor:
        """Sums over the batch's rows that its loss needs; the first is their count.

        The learner adds them up over all ranks before any loss is computed."""
        ...

    def loss(self, batch: Batch, statistics: Tensor) -> Loss:
        """What a batch, or a part of one, costs, given the statistics of the whole."""
        ...

    @property
    def may_stop(self) -> bool:
        """Whether `stop` can say yes."""
        return False

    def stop(self, metrics: dict[str, float]) -> bool:
        """Whether to leave off learning from this memory's content before this update."""
        return False

    def after_update(self, updates: int) -> None:
        """What follows the learner's so many-th step."""

    def saved(self) -> dict[str, nn.Module]:
        """Modules beside the network whose parameters belong to a checkpoint, by name."""
        return {}

    @property
    def untraced(self) -> str | None:
        """Why nothing of it is traced; None if it is."""
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
        """Return `function` traced, or as it is if nothing of the algorithm is traced. If it turns
        out that it cannot be traced after all, there is a notice with this name."""

        def tell(recorded: Recorded) -> None:
            if recorded.lost:
                self.notices.append(f"warning: {name}: {recorded.status}")

        return function if self.untraced else Recorded(function, modules, self, tell)

    @cached_property
    def notices(self) -> list[str]:
        """Lines for the run's log that nobody has taken yet."""
        return []

    def take_notices(self) -> list[str]:
        """Return the lines for the run's log since the last call."""
        taken = self.notices.copy()
        self.notices.clear()
        return taken


ALGORITHMS: dict[str, type[Algorithm]] = {}


def register(name: str) -> Callable[[type], type]:
    """Class decorator: the algorithm is called `name` on the command line."""

    def add(cls: type) -> type:
        ALGORITHMS[name] = cls
        return cls

    return add


def algorithm_class(name: str) -> type[Algorithm]:
    """The algorithm called `name`."""
    if name not in ALGORITHMS:
        raise BadInput(
            f'algorithm: there is no "{name}".{nearest(name, ALGORITHMS)}'
            " 'rookery algorithms' lists them."
        )
    return ALGORITHMS[name]
