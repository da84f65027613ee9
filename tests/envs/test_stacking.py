"""Frame stacks of every engine against stacks built frame by frame."""

import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from scripted_envs import Counter, Scripted

from rookery.envs import EnvOptions, frame_stack_of, make_env, register_env, statistics
from rookery.envs.wrappers.episodes import ClipReward, EpisodeStatistics, OneLife
from rookery.envs.wrappers.observations import FrameStack
from rookery.errors import BadInput


class Counting(VectorEnv):
    """Every observation is a new number; episodes terminate or truncate at random.

    A reset row never ends an episode. All observations are returned in the same buffer.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs, space=None, seed=0):
        self.num_envs = num_envs
        self.single_observation_space = space or spaces.Box(1, np.inf, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.random, self.count = np.random.default_rng(seed), 0
        self.shape = (num_envs, *(self.single_observation_space.shape or ()))
        self.buffer = np.zeros(self.shape, self.single_observation_space.dtype)

    def _obs(self):
        size = int(np.prod(self.shape))
        self.buffer[:] = np.arange(self.count + 1, self.count + 1 + size).reshape(self.shape)
        self.count += size
        return self.buffer

    def reset(self, *, seed=None, options=None):
        self.resetting = np.zeros(self.num_envs, bool)
        return self._obs(), {}

    def step(self, actions):
        ended = (self.random.random(self.num_envs) < 0.3) & ~self.resetting
        cut = self.random.random(self.num_envs) < 0.5
        self.resetting = ended
        return self._obs(), np.zeros(self.num_envs), ended & ~cut, ended & cut, {}


def stacks(frames, starts, count):
    """Return stacks [T, B, count, *frame] of frames [T, B, *frame]; episodes start at `starts`."""
    wanted = np.zeros((*frames.shape[:2], count, *frames.shape[2:]), frames.dtype)
    for lane in range(frames.shape[1]):
        start = 0
        for t in range(len(frames)):
            start = t if starts[t, lane] else start
            for back in range(min(count, t - start + 1)):
                wanted[t, lane, count - 1 - back] = frames[t - back, lane]
    return wanted


def played(env, steps):
    """Return observations [1 + T, B, ...] of a reset and `steps` steps, and episode starts."""
    obs = [env.reset(seed=3)[0].copy()]
    starts = [np.ones(env.num_envs, bool)]
    resetting = np.zeros(env.num_envs, bool)
    random = np.random.default_rng(1)
    for _ in range(steps):
        action = random.integers(0, 2, env.num_envs)
        new, _, terminated, truncated, _ = env.step(action)
        obs.append(new.copy())
        starts.append(resetting)
        resetting = terminated | truncated
    return np.stack(obs), np.stack(starts)


@pytest.mark.parametrize("count", [2, 4, 7])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(1, np.inf, (2,), np.float32),
        spaces.Box(-np.inf, np.inf, (), np.float64),
        spaces.Box(0, 2**31, (2, 3, 2), np.int64),
        spaces.Discrete(10**6),
    ],
)
def test_stacks_equal_brute_force(count, space):
    frames, starts = played(Counting(3, space), 200)
    got, started = played(FrameStack(Counting(3, space), count), 200)
    assert starts[1:].sum() > 50
    np.testing.assert_array_equal(starts, started)
    np.testing.assert_array_equal(got, stacks(frames, starts, count))
    assert got.dtype == frames.dtype


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_the_final_observation_keeps_its_stack_and_the_next_row_starts_from_zeros(flag):
    lane = [{"obs": 1}, {"obs": 2, flag: True}, {"obs": 3}, {"obs": 4}]
    got, _ = played(FrameStack(Scripted([lane]), 3), 4)
    assert got[:, 0, :, 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 0, 3], [0, 3, 4]]


def test_a_second_reset_clears_the_stack():
    env = FrameStack(Counting(2), 3)
    played(env, 5)
    obs = env.reset()[0]
    assert not obs[:, :2].any()
    assert obs[:, 2].all()


def test_a_stack_never_contains_frames_of_the_previous_life():
    lives = [3, 2, 2, 2, 1, 0, 3, 3]
    lane = [{"obs": t + 1, "lives": n} for t, n in enumerate(lives)]
    lane[5]["terminated"] = True  # the no-op after the second lost life ends the game
    env = FrameStack(OneLife(EpisodeStatistics(Scripted([lane], lives=[3]))), 3)
    got, starts = played(env, len(lane))
    assert starts[:, 0].tolist() == [True, False, False, True, False, False, True, True, False]
    assert got[1:, 0, :, 0].tolist() == [
        [0, 0, 1],
        [0, 1, 2],  # a life is lost
        [0, 0, 3],
        [0, 3, 4],
        [3, 4, 5],  # another
        [0, 0, 6],
        [0, 0, 7],
        [0, 7, 8],
    ]


def test_returned_stacks_are_never_overwritten():
    env = FrameStack(Counting(3), 4)
    held = [env.reset()[0]]
    copies = [held[0].copy()]
    for _ in range(30):
        held.append(env.step(np.zeros(3, int))[0])
        copies.append(held[-1].copy())
    for one, copy in zip(held, copies, strict=True):
        np.testing.assert_array_equal(one, copy)
    assert not any(np.shares_memory(a, b) for a, b in itertools.pairwise(held))


class Nested(Counter):
    """Nested observations that all equal the step's number."""

    def __init__(self, length=4):
        space = spaces.Dict(
            a=spaces.Box(1, 100, (2,), np.float32),
            pair=spaces.Tuple([spaces.Discrete(100), spaces.MultiBinary(3)]),
            grey=spaces.Box(0, 255, (1, 5, 5), np.uint8),
        )
        super().__init__(space=space, length=length)

    def _obs(self):
        t = self.t + 1
        image = np.full((1, 5, 5), t, np.uint8)
        return {
            "a": np.full(2, t, np.float32),
            "pair": (t, np.ones(3, np.int8)),
            "grey": image,
        }


def test_nested_observations_are_stacked_leaf_by_leaf():
    register_env("nested-stack", Nested, replace=True)
    env = make_env("nested-stack", EnvOptions(frame_stack=3), num_envs=2)
    rows = [env.reset(seed=0)[0], *(env.step(np.zeros(2, int))[0] for _ in range(6))]
    for row in rows:
        assert env.observation_space.contains(row)
    wanted = [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [0, 0, 1], [0, 1, 2]]
    assert [row["a"][1, :, 0].tolist() for row in rows] == wanted
    assert [row["pair"][0][0].tolist() for row in rows] == wanted
    assert [row["grey"][0, :, 4, 4].tolist() for row in rows] == wanted
    assert rows[0]["pair"][1].tolist() == [[[0] * 3, [0] * 3, [1] * 3]] * 2
    assert rows[0]["grey"].shape == (2, 3, 5, 5)


def test_stacking_a_discrete_space_without_0_is_an_error():
    space = spaces.Discrete(3, start=1)
    with pytest.raises(BadInput, match=r"env\.frame_stack pads with zeros, which Discrete\(3"):
        FrameStack(Counting(1, space), 2)


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("CartPole-v1", "gymnasium-native"),
        ("loop-cartpole", "for-loop"),
        ("Blackjack-v1", "for-loop"),
        ("envpool:CartPole-v1", "envpool"),
    ],
)
def test_stacks_of_every_engine_equal_brute_force(name, engine):
    if engine == "envpool":
        pytest.importorskip("envpool")
    register_env("loop-cartpole", lambda: gymnasium.make("CartPole-v1"), replace=True)
    if name == "Blackjack-v1":
        env = make_env(name, EnvOptions(frame_stack=3), num_envs=2)
        assert [part.shape for part in env.reset(seed=0)[0]] == [(2, 3)] * 3
        return
    plain = make_env(name, num_envs=3)
    env = make_env(name, EnvOptions(frame_stack=3), num_envs=3)
    assert env.engine == plain.engine == engine
    assert env.single_observation_space.shape == (3, 4)
    frames, starts = played(plain, 100)
    got, started = played(env, 100)
    assert starts[1:].sum() > 5
    np.testing.assert_array_equal(starts, started)
    np.testing.assert_array_equal(got, stacks(frames, starts, 3))


def test_a_registered_vector_environment_is_stacked():
    register_env("counting", lambda num_envs: Counting(num_envs), replace=True)
    env = make_env("counting", EnvOptions(frame_stack=2), num_envs=3)
    assert (env.engine, env.single_observation_space.shape) == ("custom", (2, 2))
    assert env.observation_space.contains(env.reset()[0])


@pytest.mark.parametrize("name", ["Pong", "envpool:Pong-v5", "drawn"])
@pytest.mark.parametrize("grey", [True, False])
def test_shapes_of_stacked_atari_observations(name, grey):
    if name.startswith("envpool"):
        pytest.importorskip("envpool")
    mode = {"name": "Pong", "render_mode": "rgb_array"} if name == "drawn" else {"name": name}
    if name == "drawn":
        pytest.importorskip("cv2")
    alone = (1, 84, 84) if grey else (3, 84, 84) if name.startswith("envpool") else (1, 84, 84, 3)
    for count, shape in ((1, alone), (3, (3, 84, 84) if grey else (3, 84, 84, 3))):
        env = make_env(options=EnvOptions(grey=grey, frame_stack=count), num_envs=2, **mode)
        assert env.single_observation_space.shape == shape
        obs = env.reset(seed=0)[0]
        assert obs.shape == (2, *shape)
        assert env.observation_space.contains(obs)
        assert frame_stack_of(env) == count
        env.close()


@pytest.mark.parametrize(
    ("shape", "stacked"),
    [
        ((12, 10, 3), (3, 12, 10, 3)),
        ((12, 10, 1), (3, 12, 10, 1)),
        ((1, 12, 10), (3, 12, 10)),
        ((3, 12, 10), (3, 12, 10, 3)),
        ((12, 10), (3, 12, 10)),
        ((1, 4), (3, 1, 4)),
    ],
)
def test_channels_of_image_frames_are_moved_last(shape, stacked):
    space = spaces.Box(0, 255, shape, np.uint8)
    env = FrameStack(Counting(2, space), 3)
    obs = env.reset()[0]
    assert env.single_observation_space.shape == stacked
    assert env.observation_space.contains(obs)
    frame = env.env.buffer[:, 0] if shape == (1, 12, 10) else env.env.buffer
    wanted = np.moveaxis(frame, 1, -1) if shape == (3, 12, 10) else frame
    np.testing.assert_array_equal(obs[:, -1], wanted)


@pytest.mark.parametrize(("count", "shape"), [(None, (1, 6, 4)), (1, (1, 6, 4)), (2, (2, 6, 4))])
def test_grey_images_of_gymnasium_have_one_leading_channel(count, shape):
    pytest.importorskip("cv2")
    space = spaces.Box(0, 255, (12, 10, 3), np.uint8)
    register_env("grey", lambda: Counter(space=space), replace=True)
    env = make_env("grey", EnvOptions(grey=True, resize=(6, 4), frame_stack=count))
    assert env.single_observation_space.shape == shape
    assert env.reset()[0].shape == (1, *shape)


def test_padding_is_zero_after_normalisation():
    lane = [{"obs": 7}, {"obs": 9, "terminated": True}, {"obs": 8}]
    register_env("sevens", lambda: Scripted([lane]), replace=True)
    env = make_env("sevens", EnvOptions(normalize_obs=True, frame_stack=3))
    got, _ = played(env, 3)
    assert got[0, 0, :2].tolist() == got[3, 0, :2].tolist() == [[0], [0]]
    assert got[3, 0, 2] != 0
    assert statistics(env)["obs"].shape == (1,)
    assert statistics(env)["obs"].count == 4


def test_the_frame_stack_is_outermost_and_found_through_other_wrappers():
    env = make_env("CartPole-v1", EnvOptions(frame_stack=5, normalize_obs=True))
    assert isinstance(env, FrameStack)
    assert frame_stack_of(env) == 5
    assert frame_stack_of(env.env) == 1
    assert frame_stack_of(ClipReward(env)) == 5
    plain = make_env("CartPole-v1")
    assert frame_stack_of(plain) == frame_stack_of(plain.unwrapped) == 1


def test_a_life_lost_in_breakout_empties_the_stack():
    env = make_env("Breakout", EnvOptions(one_life=True, noops=0), num_envs=2)
    env.reset(seed=0)
    resetting, ends = np.zeros(2, bool), 0
    for t in range(400):
        obs, _, terminated, truncated, _ = env.step(np.array([[1, 2, 3][t % 3], [1, 3, 0][t % 3]]))
        empty = ~obs[:, :3].any((1, 2, 3))
        assert empty.tolist() == resetting.tolist()
        assert obs[:, 3].any((1, 2)).all()
        resetting = terminated | truncated
        ends += int(resetting.sum())
    assert ends > 5
