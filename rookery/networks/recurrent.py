"""A recurrent core that starts anew at every episode boundary."""

from __future__ import annotations

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]
"""Recurrent state, each part [B, size]; () for a network without memory."""


class Core(nn.Module):
    """LSTM or GRU over [T, B, inputs], whose state is cleared before rows marked in `reset`."""

    def __init__(self, kind: str, inputs: int, size: int):
        super().__init__()
        self.rnn: nn.LSTM | nn.GRU = (nn.LSTM if kind == "lstm" else nn.GRU)(inputs, size)
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

    def forward(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        """Features [T, B, size] and the state after the last row; `reset` is [T, B] booleans."""
        if reset is None:
            return self.run(x, state)
        rows = reset.any(1).nonzero().flatten().tolist()
        outputs = []
        for start, end in zip([0, *rows], [*rows, len(x)], strict=True):
            if start in rows:
                state = clear(state, reset[start])
            if end > start:
                features, state = self.run(x[start:end], state)
                outputs.append(features)
        return torch.cat(outputs), state

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """The core over rows without a reset among them."""
        hidden = tuple(part.unsqueeze(0) for part in state)
        if self.parts == 1:
            features, last = self.rnn(x, hidden[0])
            return features, (last.squeeze(0),)
        features, (h, c) = self.rnn(x, hidden)
        return features, (h.squeeze(0), c.squeeze(0))


def clear(state: State, reset: Tensor) -> State:
    """The state with the lanes marked in `reset` [B] set to zero."""
    return tuple(part.masked_fill(reset.unsqueeze(-1), 0.0) for part in state)


def resets(mask: Tensor) -> Tensor | None:
    """Where state must be cleared before a row: after each masked row, [T, B]; None if nowhere."""
    after = mask[:-1] == 0
    if not bool(after.any()):
        return None
    return torch.cat([torch.zeros_like(after[:1]), after])
