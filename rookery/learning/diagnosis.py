"""Diagnosis: measures single updates, and the policy and values on a sample of their batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rookery.algorithms.base import Algorithm, spread
from rookery.data.layer_records import LayerRecords
from rookery.data.steps import Batch
from rookery.data.tree import tree_leaves
from rookery.errors import require
from rookery.learning.activations import (
    Activation,
    ActivationRecorder,
    dormant_share,
    effective_rank,
    saturated_share,
)
from rookery.learning.layer_hooks import check_layers, layer_histograms, watch_layers

SAMPLE_ROWS = 256
SAMPLE_BYTES = 4 << 20
"""Observations of a sample have at most this size, or are a single row."""
TIME_SHARE = 0.02
"""Largest share of the time that measuring once a report takes: where it would take more, reports
are left out."""
MOST_ACTIONS = 32
"""Largest number of actions, or of their dimensions, of which each has a column."""
Columns = dict[str, Any]


class UpdateEvidence(NamedTuple):
    """Batch of an update and the weights before it, which repeat it."""

    batch: Batch
    weights: dict[str, Tensor]
    """Weights by name, those of other modules, such as a target network, as "module:name"."""

    @classmethod
    def of(cls, algorithm: Algorithm, batch: Batch) -> UpdateEvidence:
        """Return the evidence of an update that was not made yet."""
        weights = dict(algorithm.network.named_parameters())
        for name, module in algorithm.saved().items():
            weights |= {f"{name}:{key}": value for key, value in module.named_parameters()}
        return cls(batch, {name: value.detach().clone() for name, value in weights.items()})

    def restore(self, algorithm: Algorithm) -> None:
        """Load the weights into an algorithm of the same settings."""
        own = UpdateEvidence.of(algorithm, self.batch).weights
        require(set(own) == set(self.weights), "the evidence is of another network")
        modules = algorithm.saved() | {"": algorithm.network}
        with torch.no_grad():
            for name, value in self.weights.items():
                module, _, key = name.rpartition(":")
                dict(modules[module].named_parameters())[key].copy_(value)


class DiagnosisSpec(NamedTuple):
    """Measurements that are asked for."""

    every: int | None = 0
    """Updates between measurements; None: one for each report; 0: none."""
    histograms: int = 0
    """Updates between histograms of layers, at most one for each report; 0: none."""
    watch: tuple[str, ...] = ()
    """Layers of which outputs and gradients are recorded in every measurement."""


class BeforeUpdate(NamedTuple):
    """The state before an update."""

    evidence: UpdateEvidence
    sample: Batch
    actions: Tensor
    """Best actions in the sample."""
    updates: int


class Diagnosis:
    """Measures updates: layers, policy, values and data.

    The update itself is not changed: what is measured is computed by `Algorithm.best` and, for
    layers that are watched, by `Algorithm.loss`, which draw no random numbers.
    """

    def __init__(self, algorithm: Algorithm, spec: DiagnosisSpec):
        check_layers(algorithm.network, spec.watch)
        self.algorithm = algorithm
        self.every = None if spec.watch and spec.every == 0 else spec.every
        self.histograms = spec.histograms
        self.watch = spec.watch
        self.records: LayerRecords | None = None
        """Histograms and watched layers since the last report."""
        self.columns: dict[str, float] = {}
        self.measured = 0
        self.spent_s = 0.0
        """Time of the last measurement."""
        self.due_at = 0.0
        """Time from which on the next measurement may be made, if `every` is None."""
        self.target_before: Tensor | None = None
        self.evidence: UpdateEvidence | None = None
        """Evidence of the last update that was measured."""

    def is_due(self, updates: int, now: float) -> bool:
        """True if the update after `updates` updates is to be measured."""
        if self.draws_histograms(updates):
            return True
        if self.every is None:
            return not self.columns and now >= self.due_at
        return self.every > 0 and updates % self.every == 0

    def draws_histograms(self, updates: int) -> bool:
        """True if histograms are due, and none wait for the next report."""
        waiting = self.records is not None and self.records.histograms
        return self.histograms > 0 and updates % self.histograms == 0 and not waiting

    def take(self) -> dict[str, float]:
        """Return the newest columns since the last call."""
        columns, self.columns = self.columns, {}
        return columns

    def take_records(self) -> LayerRecords | None:
        """Return histograms and watched layers since the last call; None if there are none."""
        records, self.records = self.records, None
        return records

    @torch.no_grad()
    def before(self, batch: Batch, updates: int) -> BeforeUpdate:
        """Return what `after` compares with, before the update after `updates` updates."""
        start = time.perf_counter()
        if self.watch:
            histograms = {} if self.records is None else self.records.histograms
            watched = watch_layers(self.algorithm, batch, self.watch)
            self.records = LayerRecords(updates, histograms, watched)
        sample = sample_of(batch)
        actions = self.algorithm.best_in(sample).action
        self.evidence = UpdateEvidence.of(self.algorithm, batch)
        self.spent_s = time.perf_counter() - start
        return BeforeUpdate(self.evidence, sample, actions, updates)

    @torch.no_grad()
    def after(self, before: BeforeUpdate) -> None:
        """Measure an update right after its step; its gradient is still in the buffer."""
        start = time.perf_counter()
        network, (batch, weights) = self.algorithm.network, before.evidence
        with ActivationRecorder(network) as recorder:
            decision = self.algorithm.best_in(before.sample)
        columns = layer_columns(network, weights) | activation_columns(recorder.found)
        columns |= data_columns(batch, recorder.input)
        columns |= self.algorithm.diagnose(batch, before.sample, decision)
        columns |= {"policy_churn": differing_share(decision.action, before.actions)}
        columns |= self.target_columns()
        if self.draws_histograms(before.updates):
            tensors = {} if self.records is None else self.records.tensors
            histograms = layer_histograms(network, recorder.found)
            self.records = LayerRecords(before.updates, histograms, tensors)
        device = self.algorithm.device
        values = [torch.as_tensor(x, dtype=torch.float64, device=device) for x in columns.values()]
        self.columns = dict(zip(columns, torch.stack(values).tolist(), strict=True))
        self.measured += 1
        now = time.perf_counter()
        self.spent_s += now - start
        # The first measurement loads code, and takes much longer than the others.
        self.due_at = now + self.spent_s / TIME_SHARE if self.measured > 1 else 0.0

    def target_columns(self) -> Columns:
        """Return the distance of the target network, and its change since the last call, relative
        to the network's weights; empty without a target network."""
        target = self.algorithm.saved().get("target")
        if target is None:
            return {}
        values = torch.cat([parameter.detach().flatten() for parameter in target.parameters()])
        network = self.algorithm.network.parameters()
        own = torch.cat([parameter.detach().flatten() for parameter in network])
        size = own.norm().clamp(min=1e-8)
        columns: Columns = {"target_distance": (own - values).norm() / size}
        if self.target_before is not None:
            columns["target_change"] = (values - self.target_before).norm() / size
        self.target_before = values
        return columns


def layers_of(network: nn.Module) -> Iterator[tuple[str, dict[str, nn.Parameter]]]:
    """Yield the name of every module that has parameters of its own, and these by their names in
    the network."""
    for name, module in network.named_modules():
        prefix = f"{name}." if name else ""
        own = module.named_parameters(recurse=False)
        if parameters := {f"{prefix}{key}": parameter for key, parameter in own}:
            yield name, parameters


def layer_columns(network: nn.Module, weights: dict[str, Tensor]) -> Columns:
    """Return norms of gradient and weights of each layer, and of the update relative to the
    `weights` before it, or where these are 0, to those after it."""
    columns: Columns = {}
    for name, parameters in layers_of(network):
        gradients = [parameter.grad for parameter in parameters.values()]
        changes = [parameter.detach() - weights[key] for key, parameter in parameters.items()]
        before, after = norm([weights[key] for key in parameters]), norm([*parameters.values()])
        size = torch.where(before > 0, before, after).clamp(min=1e-8)
        columns[f"gradient_norm/{name}"] = norm([x for x in gradients if x is not None])
        columns[f"weight_norm/{name}"] = after
        columns[f"update_ratio/{name}"] = norm(changes) / size
    return columns


def norm(tensors: list[Tensor]) -> Tensor:
    """Return the Euclidean norm of several tensors as one vector."""
    return torch.stack([tensor.detach().norm() for tensor in tensors]).norm()


def differing_share(first: Tensor, second: Tensor) -> Tensor:
    """Return the share of rows [rows, ...] that differ."""
    differs = (first != second).reshape(len(first), -1)
    return differs.any(1).float().mean()


def sample_of(batch: Batch) -> Batch:
    """Return the first lanes of a batch: about 256 rows, fewer if observations are large, and at
    least one lane."""
    rows, lanes = batch.steps.mask.shape
    lane_bytes = sum(leaf.nbytes for leaf in tree_leaves(batch.steps.obs)) / max(1, lanes)
    most = min(lanes, SAMPLE_ROWS // rows, int(SAMPLE_BYTES // max(1, lane_bytes)))
    return batch.lanes(slice(0, max(1, most)))


def activation_columns(found: dict[str, Activation]) -> Columns:
    """Return the shares of dormant and saturated units of each layer, and the effective rank of
    the last features."""
    columns: Columns = {}
    for layer, activation in found.items():
        columns[f"dormant/{layer}"] = dormant_share(activation.rows)
        if activation.limits is not None:
            columns[f"saturated/{layer}"] = saturated_share(activation.rows, activation.limits)
    if found:
        last = list(found.values())[-1].rows
        columns["feature_rank"] = effective_rank(last)
        columns["feature_count"] = last.shape[-1]
    return columns


def data_columns(batch: Batch, seen: Tensor | None) -> Columns:
    """Return ranges and moments of rewards and of the network's input, and the shares of the
    actions, over the rows that are learned from."""
    steps = batch.steps
    columns: Columns = {}
    kept = steps.mask.bool()
    rewards = steps.reward[kept].float()
    if len(rewards):
        columns |= spread("reward", rewards) | action_columns(steps.action[kept])
    if batch.weight is not None:
        columns["replay_weight_mean"] = batch.weight.mean()
    if seen is not None and len(seen) > 1:
        seen = seen.float()
        columns |= spread("obs", seen)
        columns["obs_constant"] = (seen.amax(0) == seen.amin(0)).float().mean()
    return columns


def action_columns(actions: Tensor) -> Columns:
    """Return the share of each discrete action [rows], or mean and deviation of each dimension of
    the others [rows, ...]; empty if there are too many."""
    if actions.dim() == 1 and not actions.is_floating_point():
        counts = torch.bincount(actions.long())
        shares = counts / counts.sum()
        few = len(counts) <= MOST_ACTIONS
        return {f"action_share/{i}": x for i, x in enumerate(shares)} if few else {}
    flat = actions.float().flatten(1)
    if flat.shape[1] > MOST_ACTIONS:
        return {}
    means, deviations = flat.mean(0), flat.std(0, correction=0)
    return {f"action_mean/{i}": x for i, x in enumerate(means)} | {
        f"action_std/{i}": x for i, x in enumerate(deviations)
    }
