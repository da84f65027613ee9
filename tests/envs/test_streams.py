"""The same environment through every engine: equal transitions in NEXT_STEP mode."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scripted_envs import Counter

from rookery.envs import EnvOptions, make_env, register_env
from rookery.envs.engines.single import ForLoop


def assert_same(a, b):
    """Assert that nested observations are equal."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, tuple):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def assert_same_stream(ours, theirs, steps):
    theirs.action_space.seed(3)
    obs, _ = ours.reset(seed=11)
    expected, _ = theirs.reset(seed=11)
    assert_same(obs, expected)
    ended = 0
    for _ in range(steps):
        action = theirs.action_space.sample()
        obs, reward, terminated, truncated, info = ours.step(action)
        expected, want, term, trunc, their_info = theirs.step(action)
        assert_same(obs, expected)
        np.testing.assert_array_equal(reward, want)
        np.testing.assert_array_equal(terminated, term)
        np.testing.assert_array_equal(truncated, trunc)
        assert info.keys() - {"episode"} == their_info.keys()
        ended += int((term | trunc).sum())
    return ended


@pytest.mark.parametrize("name", ["Acrobot-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_for_loop_equals_sync_vector_env(name):
    ours = make_env(name, EnvOptions(time_limit=17), num_envs=3)
    assert ours.engine == "for-loop"
    theirs = SyncVectorEnv([lambda: gymnasium.make(name, max_episode_steps=17)] * 3)
    assert assert_same_stream(ours, theirs, 60) > 3


def test_lunar_lander_equals_sync_vector_env():
    pytest.importorskip("Box2D")
    ours = make_env("LunarLander-v3", num_envs=2)
    theirs = SyncVectorEnv([lambda: gymnasium.make("LunarLander-v3")] * 2)
    assert assert_same_stream(ours, theirs, 200) >= 2


class Nested(gymnasium.Env):
    """Random nested observations, and an action space that starts at 2."""

    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (3, 2), np.uint8),
        pair=spaces.Tuple([spaces.Discrete(5, start=-1), spaces.Box(-1, 1, (), np.float32)]),
        bits=spaces.MultiBinary(3),
    )
    action_space = spaces.Discrete(3, start=2)

    def _draw(self):
        rng = self.np_random
        return {
            "image": rng.integers(0, 256, (3, 2), np.uint8),
            "pair": (np.int64(rng.integers(-1, 4)), np.float32(rng.uniform(-1, 1))),
            "bits": rng.integers(0, 2, 3, np.int8),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._draw(), {"fresh": True}

    def step(self, action):
        assert self.action_space.contains(action), repr(action)
        done = bool(self.np_random.uniform() < 0.2)
        return self._draw(), float(action), done, done, {"n": 1.5}


def test_nested_observations_and_info_equal_sync_vector_env():
    register_env("nested", Nested, replace=True)
    ours = make_env("nested", num_envs=3)
    assert assert_same_stream(ours, SyncVectorEnv([Nested] * 3), 50) > 5


def drive_cartpole(env, inner, steps):
    """Play from a forced state; return rows of (obs, reward, terminated)."""
    env.reset(seed=0)
    inner.state = np.array([[0.01, 0.02, 0.03, -0.02], [0, 0.5, 0, -0.3]]).T
    rows = []
    for t in range(steps):
        obs, reward, terminated, _, _ = env.step(np.array([t % 2, 1]))
        rows.append((obs.copy(), reward.copy(), terminated.copy()))
    return rows


def test_native_vector_cartpole_equals_single_cartpole():
    env = make_env("CartPole-v1", num_envs=2)
    assert env.engine == "gymnasium-native"
    rows = drive_cartpole(env, env.unwrapped, 12)
    for lane, start in enumerate(([0.01, 0.02, 0.03, -0.02], [0, 0.5, 0, -0.3])):
        single = gymnasium.make("CartPole-v1").unwrapped
        single.reset(seed=0)
        single.state = np.array(start)
        for t, (obs, reward, terminated) in enumerate(rows):
            want, r, done, _, _ = single.step([t % 2, 1][lane])
            np.testing.assert_allclose(obs[lane], want, rtol=1e-5, atol=1e-7)
            assert (reward[lane], terminated[lane]) == (r, done)
            if done:
                after = rows[t + 1]
                assert np.abs(after[0][lane]).max() <= 0.05
                assert (after[1][lane], after[2][lane]) == (0, False)
                break


def step_of_cartpole(obs, action):
    """Return one step of CartPole's equations (Barto, Sutton and Anderson, 1983)."""
    x, v, angle, spin = obs.astype(np.float64).T
    sin, cos = np.sin(angle), np.cos(angle)
    push = (np.where(action == 1, 10.0, -10.0) + 0.05 * spin**2 * sin) / 1.1
    twist = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    pull = push - 0.05 * twist * cos / 1.1
    return np.stack([x + 0.02 * v, v + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * twist], -1)


@pytest.mark.parametrize("name", ["CartPole-v1", "envpool:CartPole-v1", "for-loop"])
def test_every_engine_obeys_next_step_autoreset(name):
    """Rows, including final ones, obey CartPole's equations; a reset row pays 0 and starts an
    episode."""
    if name.startswith("envpool"):
        pytest.importorskip("envpool")
    options = EnvOptions(time_limit=30)
    if name == "for-loop":
        register_env("loop-cartpole", lambda: gymnasium.make("CartPole-v1"), replace=True)
        env = make_env("loop-cartpole", options, num_envs=4)
    else:
        env = make_env(name, options, num_envs=4)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    obs = env.reset(seed=5)[0].copy()
    rng = np.random.default_rng(0)
    resetting, length = np.zeros(4, bool), np.zeros(4, int)
    seen = {"terminated": 0, "truncated": 0}
    for t in range(300):
        # Lane 0 balances until the time limit; the others fall.
        action = rng.integers(0, 2, 4)
        action[0] = obs[0, 2] + obs[0, 3] > 0
        new, reward, terminated, truncated, _ = env.step(action)
        played = ~resetting
        want = step_of_cartpole(obs, action)
        np.testing.assert_allclose(new[played], want[played], rtol=1e-4, atol=1e-5)
        assert (np.abs(new[resetting]) <= 0.05).all()
        assert (reward == played).all()
        assert not (terminated | truncated)[resetting].any()
        length = np.where(resetting, 0, length + 1)
        fell = (np.abs(new[:, 0]) > 2.4) | (np.abs(new[:, 2]) > np.float32(0.20943951))
        assert (terminated == fell & played).all(), t
        assert (truncated <= (length == 30)).all()
        assert ((terminated | truncated) >= (length == 30)).all()
        seen["terminated"] += int(terminated.sum())
        seen["truncated"] += int(truncated.sum())
        resetting, obs = terminated | truncated, new.copy()
    assert min(seen.values()) >= 2


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "envpool:CartPole-v1", "Pong"])
def test_the_same_seed_gives_the_same_stream_and_another_does_not(name):
    if name.startswith("envpool"):
        pytest.importorskip("envpool")
    env = make_env(name, num_envs=2)

    def run(seed):
        rows = [env.reset(seed=seed)[0].copy()]
        return np.stack(rows + [env.step(np.array([t % 2, 1]))[0].copy() for t in range(25)])

    first, other, again = run(3), run(4), run(3)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (first[:, 0] != first[:, 1]).any()


def test_for_loop_overwrites_its_buffer_and_ale_does_not():
    loop = ForLoop([Counter] * 2)
    first = loop.reset()[0]
    assert loop.step(np.zeros(2, int))[0] is first
    ale = make_env("Pong", num_envs=1)
    first = ale.reset(seed=0)[0]
    copy = first.copy()
    for _ in range(5):
        ale.step(np.array([2]))
    np.testing.assert_array_equal(first, copy)


def test_masked_cartpole_hides_velocities_single_and_vectorized():
    env = make_env("rookery/MaskedCartPole-v1", num_envs=2)
    full = make_env("CartPole-v1", num_envs=2)
    assert env.engine == "gymnasium-native"
    assert env.single_observation_space.shape == (2,)
    for got, want in zip(
        [env.reset(seed=4)[0], env.step(np.array([0, 1]))[0]],
        [full.reset(seed=4)[0], full.step(np.array([0, 1]))[0]],
        strict=True,
    ):
        np.testing.assert_array_equal(got, want[:, [0, 2]])
    single = gymnasium.make("rookery/MaskedCartPole-v1", disable_env_checker=True)
    whole = gymnasium.make("CartPole-v1")
    np.testing.assert_array_equal(single.reset(seed=1)[0], whole.reset(seed=1)[0][[0, 2]])
    assert single.spec.max_episode_steps == 500
    np.testing.assert_array_equal(single.step(1)[0], whole.step(1)[0][[0, 2]])


def test_frame_skip_sums_rewards_and_stops_at_the_episodes_end():
    register_env("counter", Counter, replace=True)
    env = make_env("counter", EnvOptions(frame_skip=3), num_envs=1)
    env.reset()
    rows = [env.step(np.zeros(1, int)) for _ in range(3)]
    assert [row[1].item() for row in rows] == [3, 2, 0]
    assert [row[2].item() for row in rows] == [False, True, False]


class Brightening(gymnasium.Env):
    """Images of one colour that is brighter by ten in each step."""

    observation_space = spaces.Box(0, 255, (12, 10, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.full((12, 10, 3), 10, np.uint8), {}

    def step(self, action):
        self.t += 1
        return np.full((12, 10, 3), 10 + 10 * self.t, np.uint8), 0.0, False, False, {}


def test_grey_resized_images_have_one_leading_channel_and_stack():
    pytest.importorskip("cv2")
    register_env("picture", Brightening, replace=True)
    options = EnvOptions(grey=True, resize=(6, 4), frame_stack=3)
    env = make_env("picture", options, num_envs=2)
    assert env.single_observation_space.shape == (3, 6, 4)
    env.reset()
    obs = env.step(np.zeros(2, int))[0]
    assert obs.shape == (2, 3, 6, 4)
    assert [int(frame.max()) for frame in obs[0]] == pytest.approx([0, 10, 20], abs=1)
