"""A recurrent core whose state is cleared at every episode boundary."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

State = tuple[Tensor, ...]
"""Recurrent state, each part [B, size]; () for a network without a core."""


class Lstm(nn.LSTM):
    """An LSTM with one trainable bias; torch's second one is redundant and stays 0."""

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
        """Return a state of zeros."""
        return tuple(torch.zeros(batch, self.features, device=device) for _ in range(self.parts))

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Return features [T, B, size] and the state after the last row."""
        hidden = tuple(part.unsqueeze(0) for part in state)
        features, last = self.unrolled(x, hidden)
        return features, tuple(part.squeeze(0) for part in last)

    def unrolled(self, x: Any, hidden: State) -> tuple[Any, State]:
        """Call torch's LSTM or GRU with the state as a tuple of [1, B, size] for both kinds.

        On the CPU always in float32, since some CPUs have no bfloat16 LSTM or GRU.
        """
        if torch.is_autocast_enabled("cpu") and hidden[0].device.type == "cpu":
            with torch.autocast("cpu", enabled=False):
                return self.unrolled(x.float(), tuple(part.float() for part in hidden))
        features, last = self.rnn(x, hidden if self.parts == 2 else hidden[0])
        return features, last if self.parts == 2 else (last,)

    def window(self, x: Tensor, state: State, reset: Tensor | None) -> Tensor:
        """Return features [T, B, size]; the state is cleared before rows marked in `reset` [T, B].

        The rows between two resets become a separate padded sequence, so that one call of the core
        computes all of them instead of one call per row.
        """
        if reset is None:
            return self(x, state)[0]
        parts = split_at_resets(x, state, reset)
        features = self(parts.padded, parts.first)[0][parts.place, parts.sequence]
        return features.unflatten(0, reset.t().shape).transpose(0, 1)

    def after(self, x: Tensor, state: State, reset: Tensor | None) -> State:
        """Return the state after the last row; it is cleared before rows marked in `reset`."""
        if reset is None:
            return self(x, state)[1]
        parts = split_at_resets(x, state, reset)
        rows = len(reset)
        lengths = parts.place.new_zeros(parts.padded.shape[1]).scatter_reduce(
            0, parts.sequence, parts.place + 1, "amax"
        )
        packed = pack_padded_sequence(parts.padded, lengths.cpu(), enforce_sorted=False)
        hidden = tuple(part.unsqueeze(0) for part in parts.first)
        after = self.unrolled(packed, hidden)[1]
        ends = parts.sequence[rows - 1 :: rows]
        return tuple(part.squeeze(0)[ends] for part in after)


class PaddedSequences(NamedTuple):
    """Rows [T, B] split at resets into padded sequences."""

    padded: Tensor
    """Inputs, padded at the end, [longest, sequences, inputs]."""
    first: State
    """State before the first row of each sequence."""
    sequence: Tensor
    """Sequence of each row, [B * T], numbered lane after lane."""
    place: Tensor
    """Position of each row in its sequence, [B * T]."""


def split_at_resets(x: Tensor, state: State, reset: Tensor) -> PaddedSequences:
    """Split rows [T, B, inputs] at resets into sequences."""
    rows, lanes = reset.shape
    is_start = reset.t().clone()
    is_start[:, 0] = True
    starts = is_start.flatten().nonzero().squeeze(-1)
    sequence = is_start.flatten().cumsum(0) - 1
    place = torch.arange(rows * lanes, device=x.device) - starts[sequence]
    padded = x.new_zeros(int(place.max()) + 1, len(starts), x.shape[-1])
    padded = padded.index_put((place, sequence), x.transpose(0, 1).flatten(0, 1))
    # The first sequence of each lane continues the lane's state [B, size]; others start from 0.
    continues = starts % rows == 0
    first = tuple(
        part.new_zeros(len(starts), part.shape[-1]).index_put((continues,), part)
        for part in clear(state, reset[0])
    )
    return PaddedSequences(padded, first, sequence, place)


def clear(state: State, reset: Tensor) -> State:
    """Return the state with the lanes marked in `reset` [B] set to zero."""
    return tuple(part.masked_fill(reset.unsqueeze(-1), 0.0) for part in state)


def resets(mask: Tensor) -> Tensor | None:
    """Return the rows [T, B] before which the state is cleared: those after a masked row; None if
    there are none."""
    after = mask[:-1] == 0
    if not bool(after.any()):
        return None
    return torch.cat([torch.zeros_like(after[:1]), after])
