"""The one place where gradients are computed and parameters change."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rookery.algorithms.base import Algorithm
from rookery.data.steps import Batch
from rookery.data.tree import map_batch, tree_leaves, tree_map
from rookery.errors import Diverged, require
from rookery.learning.optimizers import make_optimizer
from rookery.learning.reduce import Reducer
from rookery.networks.flat import FlatParameters
from rookery.tracing.recorder import Recorded

METRIC_SLOTS = 15


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """How updates are computed, over micro batches and over ranks."""

    micro_batches: int = 1
    """Parts a batch is cut into, their gradients accumulated: less memory, the same update."""
    reduce: Literal["mean", "sum"] = "mean"
    """Over ranks: the mean over all rows of all ranks, or that times the number of ranks."""
    sync: Literal["allreduce", "broadcast"] = "allreduce"
    """Every rank steps on the reduced gradient, or rank 0 steps and broadcasts the weights."""
    transport: Literal["auto", "mpi", "gloo", "nccl"] = "auto"
    """What carries the sums; auto: nccl on GPU, mpi where installed, gloo otherwise."""

    prefetch: int = 2
    """Batches drawn ahead of the learner, on threads."""
    publish_updates: int = 20
    """Updates between hand-overs of the weights to the actors, on threads."""
    trace: bool = True
    """Whether updates, acting and target values are traced on the CPU: taken down once and run
    without Python. A breakpoint in a loss needs false."""

    def __post_init__(self) -> None:
        for name in ("micro_batches", "prefetch", "publish_updates"):
            value = getattr(self, name)
            require(value >= 1, f"learner.{name} must be at least 1, got {value}")


class Outcome(NamedTuple):
    """What an update came to."""

    stop: bool
    """The algorithm asked to leave the rest of the memory's batches, and nothing was changed."""
    priorities: Tensor | None


class Learner:
    """Loss, gradient, reduction over ranks, clipping, step."""

    def __init__(
        self,
        algorithm: Algorithm,
        config: LearnerConfig,
        reducer: Reducer,
        device: torch.device,
        precision: str = "fp32",
        compile: bool = False,
    ):
        self.algorithm = algorithm
        self.config = config
        self.reducer = reducer
        self.device = device
        self.precision = precision
        self.flat = FlatParameters(algorithm.network, device, spare=1 + METRIC_SLOTS)
        self.optimizer = make_optimizer(self.flat.values, algorithm.config)
        self.loss = torch.compile(algorithm.loss) if compile else algorithm.loss
        self.updates = 0
        self.learn_s = 0.0
        self.reduce_s = 0.0
        self.metric_names: list[str] = ["loss"]
        self.sums = torch.zeros(2 + METRIC_SLOTS, device=device)
        self.norms, self.metrics = self.sums[0], self.sums[1:]
        self.counted = 0
        limited = algorithm.config.max_grad_norm > 0
        self.divisor = torch.ones((), device=device) if limited else None
        """What the gradient is to be divided by, so that its norm is within its limit."""
        self.samples = torch.zeros((), dtype=torch.float64, device=device)
        """Rows, or windows of a replay, that the run learned from, over all ranks."""
        self.input_bytes: int | None = None
        """Size of a batch; None before the first."""
        self.accumulate: Callable[[Batch, Tensor], Tensor | None] = self.add_gradient
        self.at_once: Callable[[Batch], Tensor | None] = self.whole_gradient
        self.notices: list[str] = []
        """Lines for the run's log."""
        self.untraced = "the loss is compiled" if compile else algorithm.untraced
        """Why updates are not traced; None if they are."""
        if not config.trace:
            self.untraced = "learner.trace is false"
        if not self.untraced:
            self.accumulate = Recorded(
                self.add_gradient, self.modules, algorithm, self.note_tracing
            )
            self.at_once = Recorded(self.whole_gradient, self.modules, algorithm, self.note_tracing)
        whole = reducer.world == 1 and config.micro_batches == 1
        self.in_one_piece = whole and not algorithm.may_stop
        """Whether nothing comes between an update's gradient and its step."""
        self.share_weights()
        seed = torch.randint(2**62, (1,)).to(device)
        reducer.broadcast(seed)
        self.generator = torch.Generator(device).manual_seed(int(seed))
        """Draws the same numbers on every rank."""

    def modules(self) -> list[nn.Module]:
        """Those a loss depends on."""
        return [self.algorithm.network, *self.algorithm.saved().values()]

    def share_weights(self) -> None:
        """Give every rank the network of rank 0 and the modules saved beside it, such as the
        target network."""
        self.reducer.broadcast(self.flat.values)
        for parameter in self.saved_parameters():
            self.reducer.broadcast(parameter)

    def digest(self) -> str:
        """A SHA-256 of the network and of the modules saved beside it: equal on all ranks."""
        found = hashlib.sha256(self.flat.values.detach().cpu().numpy().tobytes())
        for parameter in self.saved_parameters():
            found.update(parameter.cpu().numpy().tobytes())
        return found.hexdigest()

    def saved_parameters(self) -> Iterator[Tensor]:
        """Return the parameters of the modules that are saved beside the network."""
        for module in self.algorithm.saved().values():
            yield from (parameter.data for parameter in module.parameters())

    def set_progress(self, done: float) -> None:
        """Set the learning rate for the part of the run that is done, 0 to 1."""
        config = self.algorithm.config
        left = max(0.0, 1 - done) if config.anneal else 1.0
        self.optimizer.learning_rate = config.learning_rate * left

    @property
    def learning_rate(self) -> float:
        return self.optimizer.learning_rate

    def update(self, batch: Batch) -> Outcome:
        """One step on a batch, the same on every rank."""
        start, reduced = time.perf_counter(), self.reduce_s
        if self.input_bytes is None:
            self.input_bytes = sum(leaf.nbytes for leaf in tree_leaves((batch.steps, batch.state)))
            if self.untraced:
                self.notices.append(f"updates: computed plainly: {self.untraced}")
        self.algorithm.before_update(self.generator)
        if self.in_one_piece:
            outcome = Outcome(False, self.at_once(batch))
            self.step_optimizer()
            self.learn_s += time.perf_counter() - start
            return outcome
        statistics = self.algorithm.statistics(batch)
        self.reduce(self.reducer.sum, statistics)
        self.flat.buffer.zero_()
        priorities = [
            p for part in self.parts(batch) if (p := self.accumulate(part, statistics)) is not None
        ]
        if self.config.sync == "allreduce":
            self.reduce(self.reducer.sum, self.flat.buffer)
        else:
            self.reduce(self.reducer.sum_to_first, self.flat.buffer)
            self.reduce(self.reducer.broadcast, self.flat.spare)
        stop = self.algorithm.stop(LazyMetrics(self.metric_names, self.flat.spare))
        if not stop:
            self.step(statistics)
        self.learn_s += time.perf_counter() - start - (self.reduce_s - reduced)
        return Outcome(stop, torch.cat(priorities) if priorities else None)

    def ahead(self, batch: Batch, updates: int) -> Batch:
        """The batch for so many of the next updates, with what is the same in all of them computed
        at once."""
        together = updates > 1 and self.algorithm.settled(self.updates, updates)
        return self.algorithm.ahead(batch) if together else batch

    def add_gradient(self, part: Batch, statistics: Tensor) -> Tensor | None:
        """Add the part's gradient and metrics to the buffer."""
        if self.precision == "bf16":
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = self.loss(part, statistics)
        else:
            loss = self.loss(part, statistics)
        loss.total.backward()
        self.metric_names = ["loss", *loss.metrics]
        # Detached: a metric with a history would tie the buffer into every later graph.
        values = torch.stack([loss.total, *loss.metrics.values()]).detach()
        self.flat.spare[: len(values)].add_(values)
        return loss.priorities

    def whole_gradient(self, batch: Batch) -> Tensor | None:
        """The gradient of a batch that is neither cut nor shared out."""
        statistics = self.algorithm.statistics(batch)
        self.flat.buffer.zero_()
        priorities = self.add_gradient(batch, statistics)
        self.measure(statistics)
        return priorities

    def parts(self, batch: Batch) -> Iterator[Batch]:
        """The batch cut into micro batches along its lanes."""
        if self.config.micro_batches == 1:
            yield batch
            return
        lanes = torch.arange(batch.steps.mask.shape[1], device=self.device)
        for part in lanes.tensor_split(self.config.micro_batches):
            index = slice(int(part[0]), int(part[-1]) + 1) if len(part) else slice(0, 0)
            yield Batch(
                map_batch(batch.steps, index),
                tree_map(lambda x, index=index: x[index], batch.state),
                None if batch.keys is None else batch.keys[index],
                None if batch.weight is None else batch.weight[index],
            )

    def step(self, statistics: Tensor) -> None:
        """Step along the clipped gradient, or take the step of rank 0."""
        if self.config.reduce == "sum":
            self.flat.grad.mul_(self.reducer.world)
        if self.config.sync == "allreduce":
            self.measure(statistics)
            self.step_optimizer()
            return
        if self.reducer.rank == 0:
            self.measure(statistics)
            self.optimizer.step(self.divisor)
        for values in (self.flat.values, self.sums, self.samples):
            self.reduce(self.reducer.broadcast, values)
        self.count_update()

    def step_optimizer(self) -> None:
        """A step along the clipped gradient."""
        self.optimizer.step(self.divisor)
        self.count_update()

    def count_update(self) -> None:
        """Note that there was an update."""
        self.counted += 1
        self.updates += 1
        self.algorithm.after_update(self.updates)

    @torch.no_grad()
    def measure(self, statistics: Tensor) -> None:
        """Note the gradient's norm, how far it exceeds its limit, the metrics and how many samples
        there were."""
        norm = torch.dot(self.flat.grad, self.flat.grad).sqrt()
        if self.divisor is not None:
            limit = self.algorithm.config.max_grad_norm
            self.divisor.copy_((norm / limit).clamp(min=1))
        self.norms.add_(norm)
        self.metrics.add_(self.flat.spare)
        self.samples.add_(statistics[0])

    def reduce(self, call: Callable[[Tensor], None], tensor: Tensor) -> None:
        """A reducer's call, timed."""
        start = time.perf_counter()
        call(tensor)
        self.reduce_s += time.perf_counter() - start

    def note_tracing(self, recorded: Recorded) -> None:
        """Note how updates are computed."""
        warning = "warning: " if recorded.lost else ""
        self.notices.append(f"{warning}updates: {recorded.status}")

    def take_notices(self) -> list[str]:
        """Return the lines for the run's log since the last call."""
        notices, self.notices = self.notices, []
        return notices + self.algorithm.take_notices()

    def check_finite(self) -> None:
        """Raise Diverged if the gradient, the loss or a metric is NaN or infinite."""
        # A sum with anything in it that is not finite is not finite either.
        if not math.isfinite(total(self.sums)):
            names = ["grad_norm", *self.metric_names]
            values = dict(zip(names, (self.sums / self.counted).tolist(), strict=False))
            bad = next(name for name, value in values.items() if not math.isfinite(value))
            raise Diverged(
                f"training diverged: {bad} is {values[bad]} after {self.updates} updates;"
                " lower algo.learning_rate or algo.max_grad_norm, or look at the rewards' scale"
            )

    def take_metrics(self) -> dict[str, float]:
        """Means over the updates since the last call."""
        self.check_finite()
        if not self.counted:
            return {}
        means = (self.sums / self.counted).tolist()
        self.sums.zero_()
        self.counted = 0
        return dict(zip(["grad_norm", *self.metric_names], means, strict=False))

    def counts(self) -> dict[str, int]:
        """What `load_counts` needs to go on."""
        return {"updates": self.updates, "samples": int(self.samples)}

    def load_counts(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `counts` returned; samples from 0 where a checkpoint has none."""
        self.updates = int(saved["updates"])
        self.samples.fill_(int(saved.get("samples", 0)))

    def load_optimizer(self, saved: dict[str, Tensor]) -> None:
        """Go on from the optimizer state of a checkpoint; another optimizer's is refused."""
        require(
            set(saved) == set(self.optimizer.state),
            "algo.optimizer: the checkpoint was made with another; leave it as it was",
        )
        for name, value in self.optimizer.state.items():
            value.copy_(saved[name])


def total(values: Tensor) -> float:
    """The sum of a few numbers; on the CPU by NumPy, which is sooner done with them."""
    return float(values.numpy().sum() if values.device.type == "cpu" else values.sum())


class LazyMetrics(dict[str, float]):
    """Metrics read from their tensor only when an algorithm asks: reading waits for the GPU."""

    def __init__(self, names: list[str], values: Tensor):
        super().__init__()
        self.names, self.values_tensor = names, values

    def __missing__(self, name: str) -> float:
        return float(self.values_tensor[self.names.index(name)])
