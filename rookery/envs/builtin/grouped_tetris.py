"""Tetris of tetris-gymnasium with one placement per step instead of one key press.

An action is a column and a rotation. The observation describes the board after each action (its
afterstate) by a few features.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ROTATIONS = 4
FEATURES = ("lines", "holes", "bumpiness", "mean_height", "max_height", "lost")
"""Features of a placement: lines it clears; of the board after it, holes (empty cells below a
filled one), bumpiness (summed height differences of neighbouring columns) and heights; 1 if it
ends the game. See `features` for the units."""


class GroupedTetris(gymnasium.Env[np.ndarray, Any]):
    """Tetris with actions Discrete(4 x width): action 4 c + r rotates the piece r times, moves its
    leftmost cell to column c, or as far right as it fits, and drops it. Every action is legal.

    The observation is [actions, features]. Rewards are tetris-gymnasium's: 1 + width x lines^2 for
    a placed piece, 0 for the one that ends the game; with `reward="lines"` they are the cleared
    lines, which `info["lines_cleared"]` holds in both cases.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"]}  # noqa: RUF012

    def __init__(
        self,
        width: int = 10,
        height: int = 20,
        reward: str = "score",
        render_mode: str | None = None,
    ):
        from tetris_gymnasium.envs import Tetris

        if reward not in ("score", "lines"):
            raise TypeError(f"reward must be score or lines, got {reward!r}")
        self.game = Tetris(render_mode=render_mode, width=width, height=height)
        self.render_mode = render_mode
        self._lines_only = reward == "lines"
        self.placements = [Placements(self.game, piece) for piece in self.game.tetrominoes]
        actions = ROTATIONS * width
        self.action_space = spaces.Discrete(actions)
        high = np.array([1, height, height, 1, 1, 1], np.float32)
        self.observation_space = spaces.Box(
            0, np.broadcast_to(high, (actions, len(FEATURES))), dtype=np.float32
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        # The game treats a seed of 0 as None.
        self.game.reset(seed=int(self.np_random.integers(1, 2**31)))
        return self._observe(), {"lines_cleared": 0}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Place the piece; the observation is about the next one."""
        game, placements = self.game, self._placements()
        game.active_tetromino = placements.rotated[action % ROTATIONS]
        game.x, game.y = int(placements.x[action]), max(0, int(self._rows[action]))
        reward, lost, lines = game.commit_active_tetromino()
        lines = int(lines)
        reward = float(lines if self._lines_only else reward)
        return self._observe(), reward, bool(lost), False, {"lines_cleared": lines}

    def render(self) -> Any:
        return self.game.render()

    def close(self) -> None:
        self.game.close()

    def _placements(self) -> Placements:
        return self.placements[self.game.active_tetromino.id - len(self.game.base_pixels)]

    def _observe(self) -> np.ndarray:
        game, placements = self.game, self._placements()
        filled = game.board > 0
        self._rows = placements.landing_rows(filled)
        return features(placements.afterstates(filled, self._rows), self._rows < 0)


class Placements:
    """All placements of a piece, by action: `x` [A], its column on the padded board, and `cells`
    [A, Y, 4], the flat cells of the padded board that it fills y rows below the top."""

    def __init__(self, game: Any, piece: Any):
        self.rotated = [piece]
        for _ in range(ROTATIONS - 1):
            self.rotated.append(game.rotate(self.rotated[-1]))
        self.shape = game.board.shape
        self.padding = game.padding
        drops = np.arange(game.height + 1)
        x, cells = [], []
        for column in range(game.width):
            for rotated in self.rotated:
                rows, columns = np.nonzero(rotated.matrix)
                most = game.width - 1 - (columns.max() - columns.min())
                x.append(game.padding + min(column, most) - columns.min())
                cells.append((drops[:, None] + rows) * self.shape[1] + x[-1] + columns)
        self.x, self.cells = np.array(x), np.array(cells)

    def landing_rows(self, filled: np.ndarray) -> np.ndarray:
        """Return how many rows each placement falls [A] before it hits a filled cell; -1: it has
        no room at the top and ends the game."""
        return filled.ravel()[self.cells].any(-1).argmax(-1) - 1

    def afterstates(self, filled: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the boards [A, H, W] after each placement, without padding, before lines are
        cleared; a placement without room leaves the board unchanged."""
        boards = np.repeat(filled.reshape(1, -1), len(rows), 0)
        at = np.flatnonzero(rows >= 0)
        boards[at[:, None], self.cells[at, rows[at]]] = True
        boards = boards.reshape(len(rows), *self.shape)
        return boards[:, : -self.padding, self.padding : -self.padding]


def features(boards: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """Return `FEATURES` [A, 6] of boards [A, H, W], whose full lines are cleared in place.

    Lines are divided by 4, holes and bumpiness by the width, heights by the board's height.
    """
    _, height, width = boards.shape
    full = np.all(boards, -1)
    for at in np.flatnonzero(full.any(-1)):
        kept = boards[at, ~full[at]]
        boards[at] = False
        boards[at, -len(kept) :] = kept
    heights = np.where(boards.any(-2), height - boards.argmax(-2), 0)
    total = heights.sum(-1)
    columns = (
        full.sum(-1) / 4,
        (total - boards.sum((-1, -2))) / width,
        np.abs(np.diff(heights)).sum(-1) / width,
        total / (width * height),
        heights.max(-1) / height,
        lost,
    )
    return np.stack(columns, -1).astype(np.float32)
