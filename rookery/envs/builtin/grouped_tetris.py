"""Tetris of tetris-gymnasium, one placement a step instead of one key.

An action is a column and a rotation, and what is observed of each is the board that it would
leave: its afterstate, in a few numbers.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NAME = "rookery/GroupedTetris-v0"
ROTATIONS = 4
FEATURES = ("lines", "holes", "bumpiness", "mean_height", "max_height", "lost")
"""What is told of a placement: lines it clears; then, of the board after it, holes (empty cells
below a filled one), the sum of the steps between neighbouring columns, and the heights; and
whether it ends the game. See `features` for the units."""


class GroupedTetris(gymnasium.Env[np.ndarray, Any]):
    """Discrete(4 x width): action 4 c + r rotates the piece r times, moves its leftmost cell to
    column c, or as far right as it fits, and drops it. Every action is legal.

    The observation is [actions, features]. Rewards are tetris-gymnasium's: 1 for a piece that is
    placed and width x lines^2, and 0 for the one that ends the game; `reward="lines"` gives the
    lines alone. `info["lines_cleared"]` tells them either way.
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
        # The game takes a seed of 0 for none.
        self.game.reset(seed=int(self.np_random.integers(1, 2**31)))
        return self._observe(), {"lines_cleared": 0}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Place the piece, and show what may be done with the next one."""
        game, placements = self.game, self._placements()
        game.active_tetromino = placements.rotated[action % ROTATIONS]
        game.x, game.y = int(placements.x[action]), max(0, int(self._rows[action]))
        reward, lost, lines = game.commit_active_tetromino()
        lines = int(lines)
        told = lines if self._lines_only else reward
        return self._observe(), float(told), bool(lost), False, {"lines_cleared": lines}

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
    """Every way to drop a piece, by action: `x` [A], its padded board's column, and `cells`
    [A, Y, 4], which of the padded board's flat cells it fills y rows below the top."""

    def __init__(self, game: Any, piece: Any):
        self.rotated = [piece]
        for _ in range(ROTATIONS - 1):
            self.rotated.append(game.rotate(self.rotated[-1]))
        self.shape = game.board.shape
        self.padding = game.padding
        drops = np.arange(game.height + 1)
        x, cells = [], []
        for column in range(game.width):
            for turned in self.rotated:
                rows, columns = np.nonzero(turned.matrix)
                most = game.width - 1 - (columns.max() - columns.min())
                x.append(game.padding + min(column, most) - columns.min())
                cells.append((drops[:, None] + rows) * self.shape[1] + x[-1] + columns)
        self.x, self.cells = np.array(x), np.array(cells)

    def landing_rows(self, filled: np.ndarray) -> np.ndarray:
        """How far each placement falls [A] before it would hit a filled cell; -1: it has no
        room at the top, and ends the game."""
        return filled.ravel()[self.cells].any(-1).argmax(-1) - 1

    def afterstates(self, filled: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Boards [A, H, W] without their padding, lines not yet cleared; of a placement that has
        no room, the board as it is."""
        boards = np.repeat(filled.reshape(1, -1), len(rows), 0)
        at = np.flatnonzero(rows >= 0)
        boards[at[:, None], self.cells[at, rows[at]]] = True
        boards = boards.reshape(len(rows), *self.shape)
        return boards[:, : -self.padding, self.padding : -self.padding]


def features(boards: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """Of boards [A, H, W] whose full lines are still to be cleared: `FEATURES`, [A, 6].

    Lines are in fours, holes and bumpiness in cells a column, heights in shares of the board's.
    """
    _, height, width = boards.shape
    full = np.all(boards, -1)
    cleared(boards, full)
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


def cleared(boards: np.ndarray, full: np.ndarray) -> None:
    """Take full lines [A, H] out of boards [A, H, W] in place, what is above them sinking."""
    for at in np.flatnonzero(full.any(-1)):
        kept = boards[at, ~full[at]]
        boards[at] = False
        boards[at, -len(kept) :] = kept


def register() -> None:
    """Make the environment known to Gymnasium, once; tetris-gymnasium is imported when one is
    made."""
    if NAME not in gymnasium.registry:
        gymnasium.register(
            NAME,
            entry_point="rookery.envs.builtin.grouped_tetris:GroupedTetris",
            max_episode_steps=500,
        )
