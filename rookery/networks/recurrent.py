"""A recurrent core that starts anew at every episode boundary."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

State = tuple[Tensor, ...]
"""Recurrent state, each part [B, size]; () for a network without memory."""


class Lstm(nn.LSTM):
    """An LSTM with one bias: torch adds two up, of which one has nothing to say."""

    bias_hh_l0: Tensor

    def __init__(self, inputs: int, size: int):
        super().__init__(inputs, size)
        del self.bias_hh_l0
        self.register_buffer("bias_hh_l0", torch.zeros(4 * size), persistent=False)
        self._init_flat_weights()


class Core(nn.Module):
    """LSTM or GRU over [T, B, inputs]."""

    def __init__(self, kind: str, inputs: int, size: int):
        super().__init__()
        self.rnn: nn.LSTM | nn.GRU = (Lstm if kind == "lstm" else nn.GRU)(inputs, size)
        self.parts = 2 if kind == "lstm" else 1
        self.features = size
        for name, parameter in self.rnn.named_parameters():
            if "weight" in name:
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)

    def initial_state(self, batch: int, device: torch.device) -> State:
        """Zeros."""
        return tuple(torch.zeros(batch, self.features, device=device) for _ in range(self.parts))

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Features [T, B, size] and the state after the last row."""
        hidden = tuple(part.unsqueeze(0) for part in state)
        features, last = self.unrolled(x, hidden)
        return features, tuple(part.squeeze(0) for part in last)

    def unrolled(self, x: Any, hidden: State) -> tuple[Any, State]:
        """Torch's own call, with the state [1, B, size] as a tuple whatever the kind.

        On the CPU always in single precision: not every one has such cores in bfloat16.
        """
        if torch.is_autocast_enabled("cpu") and hidden[0].device.type == "cpu":
            with torch.autocast("cpu", enabled=False):
                return self.unrolled(x.float(), tuple(part.float() for part in hidden))
        features, last = self.rnn(x, hidden if self.parts == 2 else hidden[0])
        return features, last if self.parts == 2 else (last,)

    def window(self, x: Tensor, state: State, reset: Tensor | None) -> Tensor:
        """Features [T, B, size] of rows before some of which, marked in `reset` [T, B], the
        state is cleared.

        Every stretch between resets becomes a sequence of its own, padded behind, so that all go
        through the core in one call instead of row by row.
        """
        if reset is None:
            return self(x, state)[0]
        parts = stretches(x, state, reset)
        features = self(parts.padded, parts.first)[0][parts.place, parts.sequence]
        return features.unflatten(0, reset.t().shape).transpose(0, 1)

    def after(self, x: Tensor, state: State, reset: Tensor | None) -> State:
        """The state after the last of such rows."""
        if reset is None:
            return self(x, state)[1]
        parts = stretches(x, state, reset)
        rows = len(reset)
        lengths = parts.place.new_zeros(parts.padded.shape[1]).scatter_reduce(
            0, parts.sequence, parts.place + 1, "amax"
        )
        packed = pack_padded_sequence(parts.padded, lengths.cpu(), enforce_sorted=False)
        hidden = tuple(part.unsqueeze(0) for part in parts.first)
        after = self.unrolled(packed, hidden)[1]
        ends = parts.sequence[rows - 1 :: rows]
        return tuple(part.squeeze(0)[ends] for part in after)


class Stretches(NamedTuple):
    """Rows [T, B] cut at resets into sequences, padded behind."""

    padded: Tensor
    """[longest, sequences, inputs]."""
    first: State
    """State before the first row of each sequence."""
    sequence: Tensor
    """Which sequence a row is in, [B * T], counted lane after lane."""
    place: Tensor
    """Where in its sequence a row is, [B * T]."""


def stretches(x: Tensor, state: State, reset: Tensor) -> Stretches:
    """The stretches between resets of rows [T, B, inputs]."""
    rows, lanes = reset.shape
    begins = reset.t().clone()
    begins[:, 0] = True
    starts = begins.flatten().nonzero().squeeze(-1)
    sequence = begins.flatten().cumsum(0) - 1
    place = torch.arange(rows * lanes, device=x.device) - starts[sequence]
    padded = x.new_zeros(int(place.max()) + 1, len(starts), x.shape[-1])
    padded = padded.index_put((place, sequence), x.transpose(0, 1).flatten(0, 1))
    carried = starts % rows == 0
    first = tuple(spread(part, carried) for part in clear(state, reset[0]))
    return Stretches(padded, first, sequence, place)


def spread(state: Tensor, carried: Tensor) -> Tensor:
    """The lanes' state [B, size] where a sequence carries it on, zeros elsewhere, [N, size]."""
    first = state.new_zeros(len(carried), state.shape[-1])
    return first.index_put((carried,), state)


def clear(state: State, reset: Tensor) -> State:
    """The state with the lanes marked in `reset` [B] set to zero."""
    return tuple(part.masked_fill(reset.unsqueeze(-1), 0.0) for part in state)


def carry(state: State, resetting: np.ndarray) -> State:
    """The state for the next row: cleared in the lanes whose row was a reset, marked [B]."""
    if not state or not resetting.any():
        return state
    return clear(state, torch.as_tensor(resetting, device=state[0].device))


def resets(mask: Tensor) -> Tensor | None:
    """Where state must be cleared before a row: after each masked row, [T, B]; None if nowhere."""
    after = mask[:-1] == 0
    if not bool(after.any()):
        return None
    return torch.cat([torch.zeros_like(after[:1]), after])
