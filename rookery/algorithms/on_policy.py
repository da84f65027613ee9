"""Parts of all policy gradients: acting with an actor-critic, and pure functions."""

from __future__ import annotations

import torch
from torch import Tensor

from rookery.algorithms.base import Algorithm, spread
from rookery.data.steps import Batch, Decision, Segment
from rookery.data.tree import Tree
from rookery.networks.actor_critic import ActorCritic


class PolicyAlgorithm(Algorithm):
    """Acting with an actor-critic."""

    network: ActorCritic

    def initial_state(self, batch: int) -> Tree:
        return self.network.initial_state(batch, self.device)

    def draw(self, explore: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.network.head.draw(len(explore), generator, self.device)

    def choose(
        self, obs: Tree, reward: Tensor, state: Tree, draw: Tree | None, explain: bool = False
    ) -> Decision:
        """Choose actions; stored with the row are the distribution's parameters, and the value
        where one network computes both. A separate value network computes whole segments at once,
        in `values`.
        """
        network, head = self.network, self.network.head
        value = None
        if network.has_separate_value:
            params = network.policy(obs)
            value = network.value(obs) if explain else None
        else:
            params, value, state = network.step(obs, state)
        action = head.mode(params) if draw is None else head.sample(params, draw)
        extra = head.named(params) if explain else {"params": params}
        if value is not None and (network.value_head is not None or not explain):
            extra["value"] = value
        return Decision(action, head.to_env(action), state, extra)

    def statistics(self, batch: Batch) -> Tensor:
        return moments(batch.steps.extra["advantage"], batch.steps.mask)

    def diagnose(self, batch: Batch, sample: Batch, decision: Decision) -> dict[str, Tensor]:
        """Return moments of values, advantages and value targets, the explained variance, and the
        entropy relative to that of the uniform policy."""
        extra, kept = batch.steps.extra, batch.steps.mask.bool()
        advantage = extra["advantage"][kept]
        target = extra["return"][kept] if "return" in extra else extra["value"][kept] + advantage
        columns = spread("target", target)
        columns |= {
            "advantage_mean": advantage.mean(),
            "advantage_std": advantage.std(correction=0),
        }
        if self.network.value_head is not None:
            value = target - advantage
            columns |= {"value_mean": value.mean(), "value_std": value.std(correction=0)}
            columns["explained_variance"] = explained_variance(advantage, target)
        highest = self.network.head.highest_entropy
        if highest is not None:
            names = self.network.head.parameter_names
            params = torch.cat([decision.extra[name] for name in names], -1)
            columns["entropy_share"] = self.network.head.entropy(params).mean() / highest
        return columns


def values(network: ActorCritic, segment: Segment) -> Tensor:
    """Return values of a segment's observations and of the one after them, [T + 1, B]."""
    if network.value_head is None:
        rows, lanes = segment.steps.reward.shape
        return segment.steps.reward.new_zeros(rows + 1, lanes)
    if network.has_separate_value:
        first, last = network.value(segment.steps.obs), network.value(segment.next_obs)
    else:
        first = segment.steps.extra["value"]
        last = network.step(segment.next_obs, segment.next_state)[1]
    return torch.cat([first, last.unsqueeze(0)])


def explained_variance(error: Tensor, target: Tensor) -> Tensor:
    """Return 1 - Var(error) / Var(target): 1 for exact values, 0 for constant ones. Targets that do
    not vary count as explained."""
    variance = target.var(correction=0)
    return 1 - error.var(correction=0) / variance.clamp(min=1e-12) * (variance > 1e-12)


def moments(values: Tensor, mask: Tensor) -> Tensor:
    """Return count, sum and sum of squares of the unmasked values, [3] in double precision."""
    masked = (values * mask).double().flatten()
    count = mask.sum(dtype=torch.float64)
    return torch.stack([count, masked.sum(), torch.dot(masked, masked)])


def standardise(values: Tensor, moments: Tensor, centre: bool = True, scale: bool = True) -> Tensor:
    """Return `values` minus their mean, divided by their deviation; either is optional."""
    count, total, squares = moments.unbind()
    count = count.clamp(min=1)
    mean = total / count
    if centre:
        values = values - mean
    if scale:
        variance = torch.addcmul(squares / count, mean, mean, value=-1)
        values = values / (variance.clamp(min=0).sqrt() + 1e-8)
    return values
