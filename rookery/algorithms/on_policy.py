"""What the policy-gradient algorithms have in common: pure functions of an actor-critic."""

from __future__ import annotations

import torch
from torch import Tensor

from rookery.data.steps import Decision, Segment
from rookery.data.tree import Tree
from rookery.networks.build import ActorCritic


def decide(
    network: ActorCritic,
    obs: Tree,
    state: Tree,
    generator: torch.Generator | None,
    greedy: bool,
) -> Decision:
    """Actions for observations [B, ...], with the distribution they came from recorded.

    Values are recorded too where they come with the policy; a value network of its own answers
    for a whole segment at once, in `values`.
    """
    extra: dict[str, Tensor] = {}
    if network.values_apart:
        params = network.policy(obs)
    else:
        params, extra["value"], state = network.step(obs, state)
    extra["params"] = params
    head = network.head
    action = head.mode(params) if greedy else head.sample(params, generator)
    return Decision(action, head.to_env(action), state, extra)


def best(network: ActorCritic, obs: Tree, state: Tree) -> Decision:
    """The likeliest actions for observations [B, ...], with the distribution's parameters by name
    and, where there is a critic, the value."""
    if network.values_apart:
        params, value = network.policy(obs), network.value(obs)
    else:
        params, value, state = network.step(obs, state)
    head = network.head
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
    masked = (values * mask).double()
    count = mask.sum(dtype=torch.float64)
    return torch.stack([count, masked.sum(), masked.square().sum()])


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
