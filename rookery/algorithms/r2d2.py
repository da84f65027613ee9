"""R2D2 (Kapturowski et al. 2019): recurrent Q-learning from sequences of replayed experience."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rookery.algorithms.base import Spaces, register
from rookery.algorithms.off_policy import (
    LadderAlgorithm,
    LadderConfig,
    allowed,
    chosen_value,
    cost,
    sequence_td,
)
from rookery.algorithms.replay_config import build_replay, layout_of
from rookery.data.steps import Batch, Decision, Loss, Segment, Steps
from rookery.data.tree import Tree, tree_map
from rookery.errors import require
from rookery.memory.distributions import Indices
from rookery.memory.replay import Replay, Sequences
from rookery.memory.returns import rescale
from rookery.networks.build import NetConfig
from rookery.networks.q import Inputs, QHeadConfig, RecurrentQNetwork
from rookery.networks.recurrent import State, resets

MOST_ROWS_AT_ONCE = 20


@dataclass(frozen=True, kw_only=True)
class R2D2Config(LadderConfig):
    """Settings of R2D2."""

    gamma: float = 0.997
    epsilon: float = 1e-3
    batch_size: int = 64
    """Sequences in an update."""
    alpha: float = 0.9
    beta: float = 0.6
    burn_in: int = 40
    """Rows that only warm up the recurrent state."""
    unroll: int = 80
    """Rows of a sequence that are learned from; n_step more follow them."""
    stride: int | None = None
    """Rows between the starts of sequences; none: unroll, so that each row is learned from once
    in every pass."""
    eta: float = 0.9
    """A sequence's priority is eta max + (1 - eta) mean of its absolute TD errors."""
    rescale: bool = True
    """True: values are learned on the scale h, which compresses large ones."""
    inputs: bool = True
    """True: the network sees the previous action and reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("be at least 1", "unroll", "stride")
        self.check("be 0 or more", "burn_in")
        self.check("lie in [0, 1]", "eta")
        for name in ("burn_in", "n_step", "stride"):
            value = getattr(self, name)
            require(
                value is None or value <= self.unroll,
                f"algo.{name}={value} is longer than algo.unroll={self.unroll} allows",
            )

    @property
    def sequence_stride(self) -> int:
        """Rows between the starts of sequences."""
        return self.stride or self.unroll

    @property
    def rows_at_once(self) -> int:
        """Rows collected at a time: sequences must start where a collection does, because the
        recurrent state is stored there."""
        stride = self.sequence_stride
        return max(n for n in range(1, MOST_ROWS_AT_ONCE + 1) if stride % n == 0)

    @property
    def later(self) -> int:
        """The first row after the burn-in before which another sequence stores its state."""
        stride = self.sequence_stride
        return max(1, -(-self.burn_in // stride)) * stride


# ---------------------------------------------------------------- pure functions


def mixed_priority(error: Tensor, mask: Tensor, eta: float) -> Tensor:
    """Return eta max + (1 - eta) mean of the unmasked absolute errors [T, B], [B]."""
    error = error.abs() * mask
    return eta * error.amax(0) + (1 - eta) * error.sum(0) / mask.sum(0).clamp(min=1)


def previous(steps: Steps, action: Tensor, reward: Tensor) -> Inputs:
    """Return the action and reward before each row [T, B]; zeros where an episode starts. Those
    before the first row are given."""
    hot = F.one_hot(steps.action[:-1].long(), action.shape[-1]) * steps.mask[:-1].unsqueeze(-1)
    return Inputs(
        torch.cat([action.unsqueeze(0), hot]),
        torch.cat([reward.unsqueeze(0), steps.reward[:-1] * steps.mask[:-1]]),
    )


def delta_q(stored: Tensor, recomputed: Tensor) -> Tensor:
    """Return the distance [B] of values [B, A] from a stored state to those from the state
    recomputed with the current weights, relative to the largest of these."""
    return (stored - recomputed).norm(dim=-1) / recomputed.abs().amax(-1).clamp(min=1e-6)


@register("r2d2")
class R2D2(LadderAlgorithm):
    """Recurrent, double, dueling, n-step Q-learning with stored state and burn-in."""

    Config = R2D2Config
    config: R2D2Config
    network: RecurrentQNetwork
    target: RecurrentQNetwork
    default_net = NetConfig(activation="relu", core="lstm", core_size=512)

    def __init__(self, spaces: Spaces, config: R2D2Config, net: NetConfig, device: torch.device):
        require(
            net.core != "none", "net.core=none: r2d2 needs lstm or gru; without memory use apex"
        )
        super().__init__(spaces, config, net, device, config.rows_at_once)

    def make_network(self, net: NetConfig) -> RecurrentQNetwork:
        head = QHeadConfig(self.config.dueling)
        return RecurrentQNetwork(self.spaces.obs, self.actions, net, head)

    def initial_state(self, batch: int) -> Tree:
        """Return the core's state, and the previous action, one-hot."""
        core = self.network.initial_state(batch, self.device)
        return (*core, torch.zeros(batch, self.actions, device=self.device))

    def q_values(self, obs: Tree, reward: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        *core, action_before = state
        row = tree_map(lambda x: x.unsqueeze(0), obs)
        inputs = self.visible(Inputs(action_before.unsqueeze(0), reward.unsqueeze(0)))
        q, after = self.network(row, inputs, tuple(core))
        return q.squeeze(0), after

    def state_after(self, core: Tree, action: Tensor) -> Tree:
        return (*core, F.one_hot(action, self.actions).float())

    def replace_action(self, state: Tree, env_action: Tensor) -> Tree:
        *core, _ = state
        return self.state_after(tuple(core), env_action.long() - self.start)

    def visible(self, inputs: Inputs) -> Inputs:
        """Return the previous action and reward as the network sees them: the reward on the scale
        of the values, since a raw reward of hundreds would saturate the core's gates."""
        if not self.config.inputs:
            return Inputs(*(torch.zeros_like(x) for x in inputs))
        return inputs._replace(reward=rescale(inputs.reward)) if self.config.rescale else inputs

    def prepare(self, segment: Segment) -> Segment:
        """Store the reward before the first row with the state."""
        return segment._replace(state=(*segment.state, segment.reward.unsqueeze(-1)))

    def memory(self, lanes: int, writers: int, seed: int) -> Replay:
        config = self.config
        state = (*self.initial_state(1), torch.zeros(1, 1))
        kinds = tuple(part[0].to("meta") for part in state)
        length = config.burn_in + config.unroll + config.n_step
        return build_replay(
            config,
            layout_of(self.spaces, ("q", "value"), kinds, config.sequence_stride),
            Sequences(length, config.sequence_stride, config.unroll, config.later),
            self.collection,
            self.device,
            self.first_priorities,
            lanes,
            writers,
            seed,
        )

    def first_priorities(self, steps: Steps, starts: Indices) -> Tensor:
        """Return priorities of sequences [sequences, B] from the values recorded while acting."""
        config = self.config
        q, value = steps.extra["q"], steps.extra["value"]
        rows = len(q) - config.n_step
        error = sequence_td(q[:rows], value, steps, config.gamma, config.n_step, config.rescale)
        parts = [slice(s + config.burn_in, s + config.burn_in + config.unroll) for s in starts]
        mixed = [mixed_priority(error[part], steps.mask[part], config.eta) for part in parts]
        return torch.stack(mixed)

    def statistics(self, batch: Batch) -> Tensor:
        learned = slice(self.config.burn_in, self.config.burn_in + self.config.unroll)
        return torch.stack(
            [
                batch.steps.mask[learned].double().sum(),
                torch.tensor(float(batch.steps.mask.shape[1]), device=self.device).double(),
            ]
        )

    def best_in(self, batch: Batch) -> Decision:
        """The state of a sequence holds the previous reward too."""
        *state, reward = batch.state
        obs = tree_map(lambda x: x[0], batch.steps.obs)
        return self.best(obs, reward.squeeze(-1), tuple(state))

    def loss(self, batch: Batch, statistics: Tensor) -> Loss:
        assert batch.weight is not None
        config = self.config
        inputs = self.inputs_of(batch)
        q = self.unrolled(self.network, batch, inputs)
        chosen, error = self.values_and_errors(batch, q)
        mask = batch.steps.mask[config.burn_in :][: config.unroll]
        rows, sequences = statistics.float().clamp(min=1)
        total = (cost(error, torch.zeros_like(error), config.loss) * batch.weight).sum() / rows
        with torch.no_grad():
            metrics = {
                "q_mean": (chosen * mask).sum() / rows,
                "td_error": error.abs().sum() / rows,
                "delta_q": self.state_error(q, batch, inputs).sum() / sequences,
            }
        return Loss(total, metrics, mixed_priority(error.detach(), mask, config.eta))

    def values_and_errors(self, batch: Batch, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return values of the actions taken and their TD errors, [unroll, B] each, given the
        values [unroll + n, B, A] of the rows after the burn-in."""
        config = self.config
        with torch.no_grad():
            known = batch.steps.extra.get("target_q")
            target_q = self.target_values(batch) if known is None else known
            legal = self.legal(batch.steps.obs)
            legal = None if legal is None else legal[config.burn_in :]
            best = allowed(q if config.double else target_q, legal).argmax(-1)
        steps = tree_map(lambda x: x[config.burn_in :], batch.steps._replace(obs=(), extra={}))
        chosen = chosen_value(q[: config.unroll], steps.action[: config.unroll])
        value = chosen_value(target_q, best)
        error = sequence_td(chosen, value, steps, config.gamma, config.n_step, config.rescale)
        return chosen, error

    def values_and_targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """On the scale h if `rescale`; 0 error on masked rows."""
        q = self.unrolled(self.network, batch, self.inputs_of(batch))
        value, error = self.values_and_errors(batch, q)
        return value, value + error

    def target_values(self, batch: Batch) -> Tensor:
        return self.unrolled(self.target, batch, self.inputs_of(batch))

    def inputs_of(self, batch: Batch) -> Inputs:
        """Return the previous actions and rewards of the window as the network sees them."""
        *_, action, reward = batch.state
        return self.visible(previous(batch.steps, action, reward.squeeze(-1)))

    def unrolled(self, network: RecurrentQNetwork, batch: Batch, inputs: Inputs) -> Tensor:
        """Return values [unroll + n, B, A] of the rows after the burn-in, which has no gradient."""
        burn_in, obs = self.config.burn_in, batch.steps.obs
        *core, _, _ = batch.state
        state: State = tuple(core)
        reset = resets(batch.steps.mask)
        if burn_in:
            rows = slice(0, burn_in)
            with torch.no_grad():
                state = network.after(*cut(rows, obs, inputs), state, at(rows, reset))
        rows = slice(burn_in, None)
        return network.window(*cut(rows, obs, inputs), state, at(rows, reset))

    def state_error(self, q: Tensor, batch: Batch, inputs: Inputs) -> Tensor:
        """Return delta-Q [B] at the row before which the next sequence stored its state."""
        row = slice(self.config.later, self.config.later + 1)
        *core, _, _ = (part[0] for part in batch.steps.extra["later_state"])
        stored, _ = self.network(*cut(row, batch.steps.obs, inputs), tuple(core))
        return delta_q(stored[0], q[self.config.later - self.config.burn_in])


def cut(rows: slice, obs: Tree, inputs: Inputs) -> tuple[Tree, Inputs]:
    """Return rows of observations and inputs."""
    return tree_map(lambda x: x[rows], obs), tree_map(lambda x: x[rows], inputs)


def at(rows: slice, reset: Tensor | None) -> Tensor | None:
    """Return rows of `reset`; None if none of them clears the state."""
    part = None if reset is None else reset[rows]
    return part if part is not None and bool(part.any()) else None
