"""What the policy-gradient algorithms have in common: acting, and pure functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from rookery.algorithms.base import Algorithm
from rookery.data.steps import Decision, Segment
from rookery.data.tree import Tree
from rookery.networks.build import ActorCritic


class PolicyAlgorithm(Algorithm):
    """What follows from having an actor-critic."""

    network: ActorCritic

    def initial_state(self, batch: int) -> Tree:
        return self.network.initial_state(batch, self.device)

    def act(
        self,
        obs: Tree,
        reward: Tensor,
        state: Tree,
        generator: torch.Generator | None,
        explore: Tensor | None,
    ) -> Decision:
        head = self.network.head
        draw = None if explore is None else head.draw(len(reward), generator, self.device)
        return self.decided(obs, state, draw)

    @cached_property
    def decided(self) -> Callable[..., Decision]:
        """`choose`, traced where that pays."""
        return self.traced("acting", self.choose, lambda: [self.network])

    def choose(self, obs: Tree, state: Tree, draw: Tensor | None) -> Decision:
        """What `act` decides given the random numbers for it, or without any; with the
        distribution that the actions came from.

        Values are recorded too where they come with the policy; a value network of its own answers
        for a whole segment at once, in `values`.
        """
        extra: dict[str, Tensor] = {}
        if self.network.values_apart:
            params = self.network.policy(obs)
        else:
            params, extra["value"], state = self.network.step(obs, state)
        extra["params"] = params
        head = self.network.head
        action = head.mode(params) if draw is None else head.sample(params, draw)
        return Decision(action, head.to_env(action), state, extra)

    def best(self, obs: Tree, reward: Tensor, state: Tree) -> Decision:
        """With the distribution's parameters by name and, where there is a critic, the value."""
        network, head = self.network, self.network.head
        if network.values_apart:
            params, value = network.policy(obs), network.value(obs)
        else:
            params, value, state = network.step(obs, state)
        action = head.mode(params)
        extra = head.named(params)
        if network.value_head is not None:
            extra["value"] = value
        return Decision(action, head.to_env(action), state, extra)


def values(network: ActorCritic, segment: Segment) -> Tensor:
    """Values of a segment's observations and of the one after them, [T + 1, B]."""
    if network.value_head is None:
        rows, lanes = segment.steps.reward.shape
        return segment.steps.reward.new_zeros(rows + 1, lanes)
    if network.values_apart:
        first, last = network.value(segment.steps.obs), network.value(segment.next_obs)
    else:
        first = segment.steps.extra["value"]
        last = network.step(segment.next_obs, segment.next_state)[1]
    return torch.cat([first, last.unsqueeze(0)])


def moments(values: Tensor, mask: Tensor) -> Tensor:
    """Count, sum and sum of squares of the unmasked values, [3] in double precision."""
    masked = (values * mask).double().flatten()
    count = mask.sum(dtype=torch.float64)
    return torch.stack([count, masked.sum(), torch.dot(masked, masked)])


def standardise(values: Tensor, moments: Tensor, centre: bool = True, scale: bool = True) -> Tensor:
    """`values` less their mean, over their deviation; either may be left out."""
    count, total, squares = moments.unbind()
    count = count.clamp(min=1)
    mean = total / count
    if centre:
        values = values - mean
    if scale:
        variance = torch.addcmul(squares / count, mean, mean, value=-1)
        values = values / (variance.clamp(min=0).sqrt() + 1e-8)
    return values
