"""Atari scores relative to random play and to a human tester."""

from __future__ import annotations

import csv
import functools
from pathlib import Path

from rookery.envs.registry import atari_game


@functools.cache
def human_scores() -> dict[str, tuple[float, float]]:
    """Return the scores (random, human) of the 57 games by ROM, with 30 no-ops at the start.

    From Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning" (2016), and
    Badia et al., "Agent57" (2020).
    """
    with (Path(__file__).parent / "human_scores.csv").open(newline="") as file:
        rows = csv.DictReader(file)
        return {row["rom"]: (float(row["random"]), float(row["human"])) for row in rows}


def human_score(name: str) -> float | None:
    """Return the score of a human tester; None for an environment without one."""
    game = atari_game(name)
    return None if game is None or game.rom not in human_scores() else human_scores()[game.rom][1]


def human_normalized(name: str, score: float) -> float | None:
    """Return (score - random) / (human - random); None for a game without a human score."""
    game = atari_game(name)
    if game is None or game.rom not in human_scores():
        return None
    random, human = human_scores()[game.rom]
    return (score - random) / (human - random)
