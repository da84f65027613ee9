"""The learner: the only place where gradients are computed, clipped and handed to the optimizer."""

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
from rookery.data.layer_records import LayerRecords
from rookery.data.steps import Batch
from rookery.data.tree import tree_leaves
from rookery.errors import Diverged, require
from rookery.learning.actor import Times
from rookery.learning.diagnosis import Diagnosis, DiagnosisSpec, UpdateEvidence
from rookery.learning.nonfinite import locate
from rookery.learning.optimizers import learning_rate_at, make_optimizer
from rookery.learning.reduce import Reducer
from rookery.networks.flat import FlatParameters
from rookery.tracing import TracedFunction

METRIC_SLOTS = 15
NO_DIAGNOSIS = DiagnosisSpec()
Tensors = dict[str, dict[str, Tensor]]
"""Tensors by file of the checkpoint and name."""


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """Settings of the learner."""

    micro_batches: int = 1
    """Parts a batch is cut into, their gradients accumulated: less memory, the same update."""
    reduce: Literal["mean", "sum"] = "mean"
    """Over ranks: the mean over all rows of all ranks, or that times the number of ranks."""
    sync: Literal["allreduce", "broadcast"] = "allreduce"
    """Every rank steps on the reduced gradient, or rank 0 steps and broadcasts the weights."""
    transport: Literal["auto", "mpi", "gloo", "nccl"] = "auto"
    """Transport of gradient sums; auto: nccl on GPU, mpi where installed, gloo otherwise."""

    prefetch: int = 2
    """Batches drawn ahead of the learner, on threads."""
    publish_updates: int = 20
    """Updates between hand-overs of the weights to the actors, on threads."""
    trace: bool = True
    """True: updates, acting and target values are traced on the CPU: recorded once and repeated
    without their Python code. Set to false for breakpoints in a loss."""

    def __post_init__(self) -> None:
        for name in ("micro_batches", "prefetch", "publish_updates"):
            value = getattr(self, name)
            require(value >= 1, f"learner.{name} must be at least 1, got {value}")


class Outcome(NamedTuple):
    """The result of an update."""

    stop: bool
    """The algorithm asked to skip the rest of the memory's batches; nothing was changed."""
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
        diagnose: DiagnosisSpec = NO_DIAGNOSIS,
    ):
        self.algorithm = algorithm
        self.config = config
        self.reducer = reducer
        self.device = device
        self.precision = precision
        self.flat = FlatParameters(algorithm.network, device, spare=1 + METRIC_SLOTS)
        self.optimizer = make_optimizer(self.flat.values, algorithm.config)
        self.loss = torch.compile(algorithm.loss) if compile else algorithm.loss
        measures = diagnose != NO_DIAGNOSIS and reducer.rank == 0
        self.diagnosis = Diagnosis(algorithm, diagnose) if measures else None
        self.updates = 0
        self.learn_s = 0.0
        self.reduce_s = 0.0
        self.metric_names: list[str] = ["loss"]
        self.sums = torch.zeros(2 + METRIC_SLOTS, device=device)
        self.norms, self.metrics = self.sums[0], self.sums[1:]
        self.norm_sum = self.norms.numpy() if device.type == "cpu" else None
        """View of `norms` that is fast to read; None on a GPU, where reading waits for it."""
        self.counted = 0
        limited = algorithm.config.max_grad_norm > 0
        self.clip_divisor = torch.ones((), device=device) if limited else None
        """The gradient is divided by this, so that its norm is at most max_grad_norm."""
        self.samples = torch.zeros((), dtype=torch.float64, device=device)
        """Rows, or windows of a replay, learned from over all ranks."""
        self.input_bytes: int | None = None
        """Size of a batch; None before the first."""
        self.gradient: Callable[..., Tensor | None] = self.add_gradient
        """`add_gradient`, traced where that is faster."""
        self.notices: list[str] = []
        """Lines for the run's log."""
        self.untraced = "the loss is compiled" if compile else algorithm.untraced
        """Why updates are not traced; None if they are."""
        if not config.trace:
            self.untraced = "learner.trace is false"
        if not self.untraced:
            self.gradient = TracedFunction(
                self.add_gradient, self.modules, algorithm, self.note_tracing
            )
        whole = reducer.world == 1 and config.micro_batches == 1
        self.in_one_piece = whole and not algorithm.may_stop
        """True if nothing comes between an update's gradient and its step."""
        # All ranks start with the network of rank 0 and the modules saved beside it.
        for values in (self.flat.values, *self.saved_parameters()):
            reducer.broadcast(values)
        seed = torch.randint(2**62, (1,)).to(device)
        reducer.broadcast(seed)
        self.generator = torch.Generator(device).manual_seed(int(seed))
        """Draws the same numbers on every rank."""

    def modules(self) -> list[nn.Module]:
        """Return the modules that a loss depends on."""
        return [self.algorithm.network, *self.algorithm.saved().values()]

    def digest(self) -> str:
        """Return a SHA-256 of the network and the modules saved beside it: equal on all ranks."""
        found = hashlib.sha256(self.flat.values.detach().cpu().numpy().tobytes())
        for parameter in self.saved_parameters():
            found.update(parameter.cpu().numpy().tobytes())
        return found.hexdigest()

    def saved_parameters(self) -> Iterator[Tensor]:
        """Return the parameters of the modules that are saved beside the network."""
        for module in self.algorithm.saved().values():
            yield from (parameter.data for parameter in module.parameters())

    def set_progress(self, done: float) -> None:
        """Set the learning rate for the share of the run that is done, 0 to 1."""
        self.optimizer.learning_rate = learning_rate_at(self.algorithm.config, done)

    @property
    def times(self) -> Times:
        return Times(learn_s=self.learn_s, reduce_s=self.reduce_s)

    def update(self, batch: Batch) -> Outcome:
        """Make one update on a batch, the same on every rank."""
        start, reduced = time.perf_counter(), self.reduce_s
        if self.input_bytes is None:
            self.input_bytes = sum(leaf.nbytes for leaf in tree_leaves((batch.steps, batch.state)))
            if self.untraced:
                self.notices.append(f"updates: not traced: {self.untraced}")
        self.algorithm.before_update(self.generator)
        diagnosis, before = self.diagnosis, None
        if diagnosis is not None and diagnosis.is_due(self.updates, start):
            before = diagnosis.before(batch, self.updates)
        stop = False
        if self.in_one_piece:
            priorities = self.gradient(batch)
            self.check_gradient(batch)
            self.optimizer.step(self.clip_divisor)
            self.count_update()
        else:
            statistics = self.algorithm.statistics(batch)
            self.reduce(self.reducer.sum, statistics)
            self.flat.buffer.zero_()
            found = [self.gradient(part, statistics) for part in self.parts(batch)]
            known = [each for each in found if each is not None]
            priorities = torch.cat(known) if known else None
            stop = not self.reduce_and_step(batch, statistics)
        if diagnosis is not None and before is not None and not stop:
            diagnosis.after(before)
        self.learn_s += time.perf_counter() - start - (self.reduce_s - reduced)
        return Outcome(stop, priorities)

    def precompute(self, batch: Batch, updates: int) -> Batch:
        """Return the batch for the next `updates` updates with target values computed at once,
        where they are the same in all of them."""
        coming = range(self.updates, self.updates + updates)
        return self.algorithm.precompute_targets(batch, coming) if updates > 1 else batch

    def add_gradient(self, part: Batch, statistics: Tensor | None = None) -> Tensor | None:
        """Add gradient and metrics of a micro batch to the buffer; return new priorities.

        Without `statistics` the part is a whole batch of a single rank: the buffer is emptied
        before, and the gradient measured after.
        """
        whole = statistics is None
        if statistics is None:
            statistics = self.algorithm.statistics(part)
            self.flat.buffer.zero_()
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
        if whole:
            self.measure_and_clip(statistics)
        return loss.priorities

    def parts(self, batch: Batch) -> Iterator[Batch]:
        """Yield the batch as micro batches, split along its lanes."""
        if self.config.micro_batches == 1:
            yield batch
            return
        lanes = torch.arange(batch.steps.mask.shape[1], device=self.device)
        for part in lanes.tensor_split(self.config.micro_batches):
            index = slice(int(part[0]), int(part[-1]) + 1) if len(part) else slice(0, 0)
            yield batch.lanes(index)

    def reduce_and_step(self, batch: Batch, statistics: Tensor) -> bool:
        """Sum gradient and metrics over ranks, and step along it; False, without a step, if the
        algorithm stops here."""
        if self.config.sync == "allreduce":
            self.reduce(self.reducer.sum, self.flat.buffer)
        else:
            self.reduce(self.reducer.sum_to_first, self.flat.buffer)
            self.reduce(self.reducer.broadcast, self.flat.spare)
        if self.algorithm.may_stop:
            values = self.flat.spare.tolist()
            if self.algorithm.stop(dict(zip(self.metric_names, values, strict=False))):
                return False
        self.step(batch, statistics)
        return True

    def step(self, batch: Batch, statistics: Tensor) -> None:
        """Step along the clipped gradient; with sync=broadcast only rank 0, which sends weights."""
        if self.config.reduce == "sum":
            self.flat.grad.mul_(self.reducer.world)
        if self.config.sync == "allreduce" or self.reducer.rank == 0:
            self.measure_and_clip(statistics)
            if self.config.sync == "allreduce":
                self.check_gradient(batch, statistics)
            self.optimizer.step(self.clip_divisor)
        if self.config.sync == "broadcast":
            for values in (self.flat.values, self.sums, self.samples):
                self.reduce(self.reducer.broadcast, values)
        self.count_update()

    def count_update(self) -> None:
        """Count an update, and let the algorithm update its target network."""
        self.counted += 1
        self.updates += 1
        self.algorithm.after_update(self.updates)

    @torch.no_grad()
    def measure_and_clip(self, statistics: Tensor) -> None:
        """Add up gradient norm, metrics and samples; set the divisor that clips the gradient."""
        norm = torch.dot(self.flat.grad, self.flat.grad).sqrt()
        if self.clip_divisor is not None:
            limit = self.algorithm.config.max_grad_norm
            self.clip_divisor.copy_((norm / limit).clamp(min=1))
        self.norms.add_(norm)
        self.metrics.add_(self.flat.spare)
        self.samples.add_(statistics[0])

    def reduce(self, call: Callable[[Tensor], None], tensor: Tensor) -> None:
        """Call a method of the reducer and time it."""
        start = time.perf_counter()
        call(tensor)
        self.reduce_s += time.perf_counter() - start

    def note_tracing(self, status: str, is_warning: bool) -> None:
        """Log how updates are computed."""
        self.notices.append(f"{'warning: ' if is_warning else ''}updates: {status}")

    def take_notices(self) -> list[str]:
        """Return the lines for the run's log since the last call."""
        notices, self.notices = self.notices, []
        return notices + self.algorithm.take_notices()

    def check_gradient(self, batch: Batch, statistics: Tensor | None = None) -> None:
        """Raise Diverged before a step along a gradient that is not finite. On a GPU, where looking
        at it would wait for the GPU, `check_finite` finds it at the end of the round."""
        if self.norm_sum is None or math.isfinite(self.norm_sum):
            return
        if statistics is None:
            statistics = self.algorithm.statistics(batch)
        where = locate(
            self.algorithm.network, batch, lambda: self.algorithm.loss(batch, statistics).total
        )
        raise self.diverged(where, UpdateEvidence.of(self.algorithm, batch))

    def check_finite(self) -> None:
        """Raise Diverged if the gradient, the loss or a metric is NaN or infinite."""
        # A sum with anything in it that is not finite is not finite; NumPy is faster for few.
        sums: Any = self.sums.numpy() if self.sums.device.type == "cpu" else self.sums
        if not math.isfinite(float(sums.sum())):
            raise self.diverged()

    def diverged(self, where: str = "", evidence: UpdateEvidence | None = None) -> Diverged:
        """Return the error that names the first figure that is not finite."""
        values = dict(zip(["grad_norm", *self.metric_names], self.sums.tolist(), strict=False))
        bad = next(name for name, value in values.items() if not math.isfinite(value))
        return Diverged(
            f"training diverged: {bad} is {values[bad]} after {self.updates} updates"
            f"{where and ': '}{where}; lower algo.learning_rate or algo.max_grad_norm, or look at"
            " the rewards' scale",
            evidence=evidence,
        )

    def take_metrics(self) -> dict[str, float]:
        """Return means of the metrics over the updates since the last call."""
        self.check_finite()
        if not self.counted:
            return {}
        means = self.metric_means()
        self.sums.zero_()
        self.counted = 0
        return means if self.diagnosis is None else means | self.diagnosis.take()

    def metric_means(self) -> dict[str, float]:
        """Return means over the updates since the last `take_metrics`."""
        means = (self.sums / self.counted).tolist()
        return dict(zip(["grad_norm", *self.metric_names], means, strict=False))

    def take_records(self) -> LayerRecords | None:
        """Return histograms and watched layers since the last call; None if there are none."""
        return None if self.diagnosis is None else self.diagnosis.take_records()

    @property
    def evidence(self) -> UpdateEvidence | None:
        """Batch and weights of the last update that was measured; None if none was."""
        return None if self.diagnosis is None else self.diagnosis.evidence

    def tensors(self) -> Tensors:
        """Return the weights of the networks and the state of the optimizer."""
        files: Tensors = {
            "weights": dict(self.algorithm.network.named_parameters()),
            "optimizer": self.optimizer.state,
        }
        for name, module in self.algorithm.saved().items():
            files[name] = dict(module.named_parameters())
        return files

    def counts(self) -> dict[str, int]:
        return {"updates": self.updates, "samples": int(self.samples)}

    def load(self, tensors: Tensors, counts: Mapping[str, Any]) -> None:
        """Continue from what `tensors` and `counts` returned; those of another network or optimizer
        are refused. Samples count from 0 where a checkpoint has none."""
        load_weights(self.algorithm, tensors)
        saved = tensors["optimizer"]
        require(
            set(saved) == set(self.optimizer.state),
            "algo.optimizer: the checkpoint was made with another optimizer; use the same",
        )
        for name, value in self.optimizer.state.items():
            value.copy_(saved[name])
        self.updates = int(counts["updates"])
        self.samples.fill_(int(counts.get("samples", 0)))


def load_weights(algorithm: Algorithm, tensors: Tensors) -> None:
    """Load the algorithm's networks; weights of other networks are refused."""
    load_parameters(algorithm.network, tensors["weights"])
    for name, module in algorithm.saved().items():
        require(name in tensors, f"the checkpoint is of another algorithm: it has no {name}")
        load_parameters(module, tensors[name])


def load_parameters(module: nn.Module, saved: dict[str, Tensor]) -> None:
    """Copy saved weights into a module's parameters."""
    parameters = dict(module.named_parameters())
    check_network_matches(saved, {name: p.shape for name, p in parameters.items()})
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])


def check_network_matches(saved: Mapping[str, Tensor], wanted: Mapping[str, torch.Size]) -> None:
    """Raise BadInput that names the first difference, unless all names and shapes are equal."""
    other = "the checkpoint is of a different network"
    for name, shape in wanted.items():
        require(name in saved, f"{other}: it has no {name}, which has shape {list(shape)} here")
        found = list(saved[name].shape)
        agree = found == list(shape)
        require(agree, f"{other}: {name} is {found}, this network has {list(shape)}")
    extra = next((name for name in saved if name not in wanted), None)
    require(extra is None, f"{other}: its {extra} does not exist in this network")
