"""Atari preprocessing equals Gymnasium's and EnvPool's; names, lives, clipping, scores."""

import gymnasium
import numpy as np
import pytest

from rookery.envs import EnvOptions, frame_stack_of, human_normalized, make_env
from rookery.envs.engines.atari import games, parse_game
from rookery.envs.human_scores import human_scores
from rookery.errors import BadInput


def reference(rom, cap=108_000):
    """Return one ALE environment with Gymnasium's preprocessing."""
    from ale_py.env import AtariEnv

    env = AtariEnv(rom, frameskip=1, repeat_action_probability=0.0, max_num_frames_per_episode=cap)
    env = gymnasium.wrappers.AtariPreprocessing(env, noop_max=0, frame_skip=4)
    return gymnasium.wrappers.FrameStackObservation(env, 4, padding_type="zero")


@pytest.mark.parametrize(("name", "cap"), [("Breakout", 0), ("Pong", 601), ("Qbert", 0)])
@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_observations_equal_those_of_atari_preprocessing(name, cap, render_mode):
    pytest.importorskip("cv2")
    kwargs = {"max_num_frames_per_episode": cap} if cap else {}
    options = EnvOptions(noops=0, clip_reward=False, kwargs=kwargs)
    ours = make_env(name, options, training=False, render_mode=render_mode)
    theirs = reference(name.lower(), cap or 108_000)
    assert ours.engine == ("ale" if render_mode is None else "for-loop")
    np.testing.assert_array_equal(ours.reset(seed=0)[0][0], theirs.reset(seed=0)[0])
    rng = np.random.default_rng(0)
    done, ends = False, 0
    for _ in range(400):
        action = rng.integers(ours.single_action_space.n)
        obs, reward, terminated, truncated, info = ours.step(np.array([action]))
        if done:
            (want, their_info), rest = theirs.reset(), (0, False, False)
        else:
            want, *rest, their_info = theirs.step(action)
        np.testing.assert_array_equal(obs[0], want)
        assert (reward[0], terminated[0], truncated[0]) == tuple(rest)
        assert info["lives"][0] == their_info["lives"]
        done = bool(rest[1] or rest[2])
        ends += done
    assert ends >= 1


def test_frame_cap_and_time_limit_truncate():
    for options in (
        EnvOptions(kwargs={"max_num_frames_per_episode": 40}),
        EnvOptions(time_limit=10),
    ):
        env = make_env("Breakout", options, num_envs=3)  # with no-ops, which do not count
        env.reset(seed=0)
        rows = [env.step(np.zeros(3, int)) for _ in range(21)]
        assert [int(row[3].sum()) for row in rows] == [0] * 9 + [3] + [0] * 10 + [3]
        assert not any(row[2].any() for row in rows)
        assert rows[9][4]["episode"]["length"].tolist() == [10, 10, 10]


def test_a_lost_life_terminates_the_learners_episode_but_not_the_game():
    options = EnvOptions(one_life=True, noops=0)
    learner, game = make_env("Breakout", options), make_env("Breakout", options, training=False)
    learner.reset(seed=0)
    lives, ended, games_over, total = 5, 0, 0, 0.0
    paused = False
    for t in range(1500):
        _, _, terminated, _, info = learner.step(np.array([[1, 2, 3][t % 3]]))
        lost = 0 < info["lives"][0] < lives
        lives = int(info["lives"][0])
        if "episode" in info:
            games_over += 1
            total = info["episode"]["return"][0]
            assert terminated[0]
            break
        assert terminated[0] == (lost and not paused)
        ended += int(terminated[0])
        paused = bool(terminated[0])
    assert (ended, games_over) == (4, 1)
    assert total > 0
    game.reset(seed=0)
    flags = [game.step(np.array([[1, 2, 3][t % 3]]))[2:5:2] for t in range(1500)]
    assert all(flag[0] == ("episode" in info) for flag, info in flags)


def test_rewards_are_clipped_to_signs_and_scores_stay_raw():
    """Rewards in Qbert are 25 and more."""
    env = make_env("Qbert")
    test = make_env("Qbert", training=False)
    raw = make_env("Qbert", EnvOptions(clip_reward=False))
    sums = []
    for each in (env, test, raw):
        each.reset(seed=1)
        rng = np.random.default_rng(0)
        total, episode = 0.0, None
        while episode is None:
            _, reward, _, _, info = each.step(rng.integers(0, 6, 1))
            total += reward[0]
            episode = info.get("episode")
        sums.append((total, episode["return"][0]))
    (clipped, score), evaluated, (raw_total, raw_score) = sums
    assert evaluated == (clipped, score)
    assert raw_total == raw_score == score >= 25
    assert 0 < clipped < score


@pytest.mark.parametrize(
    ("name", "rom", "sticky", "skip"),
    [
        ("ALE/Pong-v5", "pong", 0.25, 4),
        ("PongNoFrameskip-v4", "pong", 0.0, 4),
        ("PongNoFrameskip-v0", "pong", 0.25, 4),
        ("PongDeterministic-v4", "pong", 0.0, 4),
        ("Pong", "pong", 0.0, 4),
        ("ms_pacman", "ms_pacman", 0.0, 4),
        ("ALE/TicTacToe3D-v5", "tic_tac_toe_3d", 0.25, 4),
        ("MontezumaRevengeNoFrameskip-v4", "montezuma_revenge", 0.0, 4),
        ("Pong-v4", "pong", 0.0, None),
    ],
)
def test_names_determine_rom_sticky_actions_and_frame_skip(name, rom, sticky, skip):
    game = parse_game(name)
    assert (game.rom, game.sticky, game.frame_skip) == (rom, sticky, skip)


@pytest.mark.parametrize("name", ["Pong-v5", "ALE/Pong-v4", "ALE/Pong", "Pong-v1", "Joust", "Pang"])
def test_other_names_are_no_atari_games(name):
    assert parse_game(name) is None


def test_one_player_roms_have_the_names_of_gymnasium():
    import ale_py

    gymnasium.register_envs(ale_py)
    ours = {f"ALE/{game}-v5": rom for game, rom in games().items()}
    theirs = {i: s.kwargs["game"] for i, s in gymnasium.registry.items() if i.startswith("ALE/")}
    assert ours == theirs


def test_bad_atari_names_and_arguments_are_errors_with_a_remedy():
    with pytest.raises(BadInput) as caught:
        make_env("Pong-v4")
    assert str(caught.value) == (
        'envs: "Pong-v4" skips 2 to 4 frames at random, which is not supported: '
        'use "PongNoFrameskip-v4" or set env.frame_skip'
    )
    assert make_env("Pong-v4", EnvOptions(frame_skip=4)).engine == "ale"
    with pytest.raises(BadInput, match=r"env\.kwargs may not set 'frameskip': set env\.frame_skip"):
        make_env("Pong", EnvOptions(kwargs={"frameskip": 2}))
    with pytest.raises(BadInput, match=r'Did you mean "ALE/Pong-v5"\?'):
        make_env("ALE/Pang-v5")
    assert (
        make_env("Pong", EnvOptions(kwargs={"full_action_space": True})).single_action_space.n == 18
    )


def test_human_normalized_score_is_0_for_random_and_1_for_human_play():
    assert len(human_scores()) == 57
    assert set(human_scores()) <= set(games().values())
    assert human_normalized("ALE/Pong-v5", 14.6) == 1
    assert human_normalized("envpool:Pong-v5", -20.7) == 0
    assert human_normalized("QbertNoFrameskip-v4", 163.9 + 0.5 * (13455 - 163.9)) == pytest.approx(
        0.5
    )
    assert human_normalized("CartPole-v1", 500) is None


@pytest.mark.parametrize("name", ["Breakout", "Pong", "Qbert"])
def test_envpool_and_ale_give_equal_frames_rewards_and_lives(name):
    """EnvPool starts with at least one no-op; the comparison starts after it."""
    pytest.importorskip("envpool")
    ours = make_env(name, EnvOptions(noops=0, frame_skip=1), training=False)
    theirs = make_env(f"envpool:{name}-v5", EnvOptions(noops=1, frame_skip=1), training=False)
    assert theirs.engine == "envpool"
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.single_action_space == theirs.single_action_space
    ours.reset(seed=0)
    theirs.reset(seed=0)
    ours.step(np.array([0]))
    rng = np.random.default_rng(0)
    for _ in range(300):
        action = rng.integers(0, 4, 1)
        a, b = ours.step(action), theirs.step(action)
        np.testing.assert_array_equal(a[0][0, -1], b[0][0, -1])
        assert [x.item() for x in a[1:4]] == [x.item() for x in b[1:4]]
        assert a[4]["lives"] == b[4]["lives"]


def test_envpool_and_ale_give_equal_stacks_from_the_first_frame_on():
    """The test steps the ALE with the no-op that EnvPool starts every game with.

    The frame of a game's last step is not compared: EnvPool's differs in some pixels.
    """
    pytest.importorskip("envpool")
    ours = make_env("Breakout", EnvOptions(noops=0, frame_skip=1, frame_stack=1))
    theirs = make_env("envpool:Breakout-v5", EnvOptions(noops=1, frame_skip=1))
    assert frame_stack_of(theirs) == 4
    noop, rng, games_started = np.array([0]), np.random.default_rng(0), 0
    done, frames = True, np.zeros((4, 84, 84), np.uint8)
    for _ in range(1500):
        action = rng.integers(0, 4, 1)
        if done:
            obs = theirs.step(noop)[0] if games_started else theirs.reset(seed=0)[0]
            _ = ours.step(noop) if games_started else ours.reset(seed=0)
            frames, done = np.zeros_like(frames), False
            frame = ours.step(noop)[0]
            games_started += 1
        else:
            obs, _, terminated, truncated, _ = theirs.step(action)
            frame, _, *flags, _ = ours.step(action)
            assert [terminated, truncated] == flags
            done = bool(terminated[0] or truncated[0])
        frames = np.concatenate([frames[1:], frame[0]])
        compared = 3 if done else 4
        np.testing.assert_array_equal(obs[0, :compared], frames[:compared])
    assert games_started > 1


def test_envpool_with_zero_noops_is_an_error():
    """EnvPool itself would crash the process."""
    pytest.importorskip("envpool")
    with pytest.raises(BadInput, match=r"env\.noops must be >= 1"):
        make_env("envpool:Pong-v5", EnvOptions(noops=0))
