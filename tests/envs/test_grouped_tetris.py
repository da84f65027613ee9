"""Tetris by placements: features and boards against a count cell by cell."""

import sys

import gymnasium
import numpy as np
import pytest

from rookery.envs import EnvOptions, make_env, registered_envs
from rookery.envs.builtin.grouped_tetris import GroupedTetris, features
from rookery.errors import BadInput

NAME = "rookery/GroupedTetris-v0"
pytest.importorskip("tetris_gymnasium")
KEYS = "tetris_gymnasium/Tetris"


def board_features(board):
    """Return holes, bumpiness and heights of a board without full lines, cell by cell."""
    rows, columns = board.shape
    heights, holes = [], 0
    for x in range(columns):
        filled = [y for y in range(rows) if board[y, x]]
        heights.append(rows - filled[0] if filled else 0)
        holes += sum(not board[y, x] for y in range(filled[0], rows)) if filled else 0
    steps = [abs(heights[x] - heights[x + 1]) for x in range(columns - 1)]
    return [
        holes / columns,
        sum(steps) / columns,
        sum(heights) / (columns * rows),
        max(heights) / rows,
    ]


def board_of(*lines):
    """Return a board in which "#" is a filled cell."""
    return np.array([[cell == "#" for cell in line] for line in lines])


def test_features_of_a_board_by_hand():
    board = board_of(
        "....",
        ".#..",
        "####",
        "##.#",
        "#.##",
    )
    # After the full line is cleared: "....", "....", ".#..", "##.#", "#.##", so heights 2, 3, 1, 2
    # and one hole below the top of the second column.
    lines, holes, bumpiness, mean_height, max_height, lost = features(
        board[None], np.array([False])
    )[0]
    assert [lines, holes, lost] == [0.25, 0.25, 0]
    assert bumpiness == (1 + 2 + 1) / 4
    assert (mean_height, max_height) == (pytest.approx(8 / 20), pytest.approx(3 / 5))


def test_four_full_lines_leave_an_empty_board():
    board = np.zeros((6, 4), bool)
    board[2:] = True
    assert features(board[None], np.array([False])).tolist() == [[1, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize("width", [10, 6])
def test_features_of_an_action_describe_the_board_after_it(width):
    env = GroupedTetris(width=width)
    rng = np.random.default_rng(1)
    obs, _ = env.reset(seed=0)
    ends = lines = 0
    for step in range(400):
        # Mostly flat placements, so that lines are cleared and games last.
        tidy = obs @ np.array([5.0, -6, -1, -3, -1, -20]) + rng.normal(0, 0.2, len(obs))
        action = int(tidy.argmax()) if step % 9 else int(rng.integers(len(obs)))
        shown = obs[action]
        obs, reward, terminated, truncated, info = env.step(action)
        assert env.observation_space.contains(obs)
        assert not truncated
        if shown[-1]:
            assert terminated
            assert reward == 0
        else:
            board = env.game.crop_padding(env.game.board)
            assert shown[1:-1].tolist() == pytest.approx(board_features(board))
            assert shown[0] * 4 == info["lines_cleared"]
            assert reward == (0 if terminated else 1 + width * info["lines_cleared"] ** 2)
        lines += info["lines_cleared"]
        if terminated:
            ends += 1
            obs, _ = env.reset()
    assert lines > 20
    assert ends > 0


def test_afterstates_equal_those_of_tetris_gymnasiums_wrapper():
    from tetris_gymnasium.wrappers.grouped import GroupedActionsObservations

    env = GroupedTetris()
    env.reset(seed=5)
    rng = np.random.default_rng(5)
    theirs = GroupedActionsObservations(env.game)
    for _ in range(12):
        placements, filled = env._placements(), env.game.board > 0
        boards = placements.afterstates(filled, placements.landing_rows(filled))
        expected = theirs.observation(env.game._get_obs())
        met = 0
        for action in range(40):
            column, turns = action // 4, action % 4
            matrix = placements.rotated[turns].matrix
            # Their column is that of the middle of the piece's matrix.
            middle = column - np.nonzero(matrix)[1].min() + matrix.shape[1] // 2
            if not 0 <= middle < 10 or not theirs.legal_actions_mask[4 * middle + turns]:
                continue
            board = env.game.crop_padding(expected[4 * middle + turns]) > 0
            if not boards[action].all(-1).any():
                assert (boards[action] == board).all()
                met += 1
        assert met >= 9
        env.step(int(rng.integers(40)))


def test_a_piece_moves_no_further_right_than_it_fits():
    env = GroupedTetris()
    env.reset(seed=1)
    line = env.placements[0]  # lying flat it spans 4 of the 10 columns
    flat = [action for action in range(40) if action % 4 == 0]
    assert (line.x[flat] - line.x[0]).tolist() == [0, 1, 2, 3, 4, 5, 6, 6, 6, 6]
    upright = [action for action in range(40) if action % 4 == 1]
    assert (line.x[upright] - line.x[1]).tolist() == list(range(10))


def test_reward_lines_pays_cleared_lines_only():
    env, plain = GroupedTetris(width=4, reward="lines"), GroupedTetris(width=4)
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=3)
    plain.reset(seed=3)
    total = 0
    for _ in range(60):
        action = int(
            (obs @ np.array([5.0, -6, -1, -3, -1, -20]) + rng.normal(0, 0.01, 16)).argmax()
        )
        obs, reward, terminated, _, info = env.step(action)
        same, _, _, _, plain_info = plain.step(action)
        assert reward == info["lines_cleared"] == plain_info["lines_cleared"]
        assert (obs == same).all()
        total += reward
        if terminated:
            break
    assert total > 0
    with pytest.raises(BadInput, match=r"env\.kwargs.*reward must be score or lines, got 'gold'"):
        make_env(NAME, EnvOptions(kwargs={"reward": "gold"}))


def test_the_same_seed_repeats_the_game_also_for_seed_0():
    def play(seed):
        env = GroupedTetris()
        first = env.reset(seed=seed)[0]
        return np.array([first, *(env.step(action)[0] for action in (0, 13, 26, 39, 4, 17, 30))])

    assert (play(0) == play(0)).all()
    assert (play(0) != play(1)).any()


def test_time_limit_truncates_all_lanes():
    env = make_env(NAME, EnvOptions(time_limit=3), num_envs=2)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (2, 40, 6)
    for _ in range(3):
        _, _, terminated, truncated, _ = env.step(np.array([0, 36]))
    assert truncated.all()
    assert not terminated.any()
    env.close()


def forget(monkeypatch):
    """Undo the first import of the package."""
    monkeypatch.delitem(gymnasium.registry, KEYS, raising=False)
    for module in [key for key in sys.modules if key.startswith("tetris_gymnasium")]:
        monkeypatch.delitem(sys.modules, module)


def test_tetris_gymnasiums_own_environment_is_found_by_name(monkeypatch):
    forget(monkeypatch)
    assert (KEYS, "for-loop") in registered_envs()
    env = make_env(KEYS, num_envs=2)
    obs, _ = env.reset(seed=1)
    assert {key: part.shape[1:] for key, part in obs.items()} == {
        "board": (24, 18),
        "active_tetromino_mask": (24, 18),
        "holder": (4, 4),
        "queue": (4, 16),
    }
    env.close()


@pytest.mark.parametrize("name", [KEYS, NAME])
def test_a_missing_package_is_an_error_that_names_the_extra(monkeypatch, name):
    forget(monkeypatch)
    monkeypatch.setitem(sys.modules, "tetris_gymnasium", None)
    with pytest.raises(BadInput, match=r'".*Tetris.*" needs an extra .*rookery\[tetris\]'):
        make_env(name)
