"""What policy gradients share: acting with an actor-critic, and pure functions."""

from __future__ import annotations

import torch
from torch import Tensor

from rookery.algorithms.base import Algorithm
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
