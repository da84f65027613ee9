"""Environments of the server: names, the old API, and preprocessing against worked examples."""

from __future__ import annotations

import numpy as np
import pytest
from rookery_server.errors import Unusable
from rookery_server.factory import EnvFactory, SequentialVector, find_spec
from rookery_server.single import area_resizer, luminance, preprocess


def episodes(env, steps, action=0):
    rows = []
    for _ in range(steps):
        rows.append(env.step(action))
        if rows[-1][2] or rows[-1][3]:
            env.reset()
    return rows


def test_old_environments_are_seeded_and_distinguish_truncation_from_termination():
    env, other = EnvFactory("worlds:Old").make(False), EnvFactory("worlds:Old").make(False)
    first, info = env.reset(3)
    assert info == {}
    assert first.tolist() == np.random.RandomState(3).rand(2).astype(np.float32).tolist()
    assert other.reset(3)[0].tolist() == first.tolist()
    ends = [(t, u) for _, _, t, u, _ in episodes(env, 100) if t or u]
    assert set(ends) == {(True, False), (False, True)}
    assert len(ends) == 20


def test_copies_reset_on_the_next_step():
    env = SequentialVector(lambda: EnvFactory("worlds:Film").make(False), 2)
    env.reset(0)
    rows = [env.step(np.zeros(2, int)) for _ in range(11)]
    frames = [int(obs[0, 0, 0, 0]) for obs in (np.array(row[0]) for row in rows[-1:])]
    assert rows[8][2].tolist() == [True, True]
    assert rows[9][1].tolist() == [0.0, 0.0]  # the reset row: no reward, no flag
    assert not rows[9][2].any()
    assert frames == [10]  # one step into the new episode


def test_grayscale_weights_are_those_of_luminance():
    image = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]], np.uint8)
    assert luminance(image).tolist() == [[77, 149, 29, 255]]  # 0.299, 0.587, 0.114 of 255


def test_resizing_takes_means_over_areas():
    image = np.array([[0, 100, 200], [0, 100, 200], [60, 160, 250]], np.uint8)
    assert area_resizer((3, 3), (1, 1))(image).tolist() == [[119]]  # 1070 / 9 = 118.9
    # Half of the middle column belongs to either side.
    assert area_resizer((3, 3), (3, 2))(image).tolist() == [[33, 167], [33, 167], [93, 220]]
    assert area_resizer((3, 3), (3, 3))(image).tolist() == image.tolist()
    assert area_resizer((3, 3), (6, 6))(image)[::2, ::2].tolist() == image.tolist()


def test_skipped_frames_add_their_rewards_and_show_the_brighter_of_the_last_two():
    env = preprocess(EnvFactory("worlds:Film").make(False), frame_skip=4)
    env.reset(0)
    obs, reward, terminated, _, _ = env.step(0)
    assert (int(obs[0, 0, 0]), reward, terminated) == (40, 4.0, False)
    env.step(0)
    obs, reward, terminated, _, _ = env.step(0)  # the ninth frame ends the episode
    assert (int(obs[0, 0, 0]), reward, terminated) == (90, 1.0, True)

    class Flicker:
        """Draws in every other frame."""

        observation_space, action_space = env.observation_space, env.action_space

        def __init__(self):
            self.frame = 0

        def step(self, action):
            self.frame += 1
            return np.full((4, 6, 3), 9 * (self.frame % 2), np.uint8), 0.0, False, False, {}

    assert (preprocess(Flicker(), frame_skip=4).step(0)[0] == 9).all()


def test_frame_stacks_begin_with_zeros_in_every_episode():
    everything = {"grey": True, "resize": (2, 3), "frame_stack": 3, "time_limit": 9}
    env = preprocess(EnvFactory("worlds:Film").make(False), frame_skip=2, **everything)
    assert env.observation_space.shape == (3, 2, 3)
    obs, _ = env.reset(0)
    assert not obs.any()  # frame 0 is black, and so is what was before it
    greys = [luminance(np.full((1, 1, 3), [10 * t, 0, 0], np.uint8))[0, 0] for t in range(10)]
    assert [int(x) for x in env.step(0)[0][:, 0, 0]] == [0, 0, greys[2]]
    assert [int(x) for x in env.step(0)[0][:, 0, 0]] == [0, greys[2], greys[4]]
    assert [int(x) for x in env.step(0)[0][:, 1, 2]] == [greys[2], greys[4], greys[6]]
    assert not env.reset()[0].any()


def test_a_time_limit_truncates():
    env = preprocess(EnvFactory("worlds:Film").make(False), time_limit=3)
    env.reset(0)
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


def test_an_observation_of_the_wrong_shape_raises():
    class Liar:
        observation_space = EnvFactory("worlds:Film").make(False).observation_space
        action_space = EnvFactory("worlds:Film").make(False).action_space

        def reset(self, seed=None):
            return np.zeros((4, 6), np.uint8), {}

    with pytest.raises(ValueError, match=r"shape \(4, 6\)"):
        SequentialVector(Liar, 1).reset()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: EnvFactory("Nowhere-v0"), "not registered"),
        (lambda: EnvFactory("worlds:Nobody"), "defines no such name"),
        (lambda: EnvFactory("no_such_module:X"), "cannot import"),
        (lambda: EnvFactory("worlds:Old", kwargs={"wheels": 3}).make(False), "cannot be made"),
        (lambda: EnvFactory("worlds:Old", actions="worlds:NONE"), 'defines no "NONE"'),
        (
            lambda: preprocess(EnvFactory("worlds:Old").make(False), grey=True),
            "--grey needs",
        ),
    ],
)
def test_unusable_settings_raise_one_line(wrong, text):
    with pytest.raises(Unusable, match=text):
        wrong()


def test_arguments_reach_the_environment():
    env = EnvFactory("worlds:Old", kwargs={"length": 2}).make(False)
    env.reset(0)
    env.step(0)
    assert any(env.step(0)[2:4])


def test_gymnasium_takes_precedence_over_gym():
    assert find_spec("CartPole-v1")[1] == "gymnasium"
