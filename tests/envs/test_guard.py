"""An environment that raises or returns invalid values is an error of one line."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from scripted_envs import Counter

from rookery.envs import EnvOptions, make_env, register_env
from rookery.errors import RunFailed

UNIT = spaces.Box(0, 1, (2,), np.float32)


def steps(env, count):
    for _ in range(count):
        env.step(np.zeros(env.num_envs, int))


def failure(options=None, **kwargs):
    """Return message and details of the failure of a Counter within five steps."""
    register_env("bad", lambda: Counter(**kwargs), replace=True)
    env = make_env("bad", options, num_envs=2)
    env.reset(seed=0)
    with pytest.raises(RunFailed) as caught:
        steps(env, 5)
    text = str(caught.value)
    assert text.startswith('envs: "bad" ')
    assert "\n" not in text
    return text, caught.value.details


def test_an_exception_is_one_line_with_the_traceback_in_the_details():
    text, details = failure(wrong=ZeroDivisionError("by\nnothing"))
    assert text == 'envs: "bad" raised ZeroDivisionError: by nothing'
    assert "scripted_envs.py" in details


def test_non_finite_rewards_and_observations_are_errors():
    assert failure(reward=np.nan)[0].endswith("the reward nan (environment 0)")
    assert failure(reward=np.inf)[0].endswith("the reward inf (environment 0)")
    assert "observation with nan" in failure(wrong=np.float32([1, np.nan]))[0]
    free = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    assert "observation with inf" in failure(space=free, wrong=np.float32([np.inf, 1]))[0]
    half = spaces.Box(np.float32([0, -np.inf]), np.float32([np.inf, np.inf]))
    assert "observation with inf" in failure(space=half, wrong=np.float32([np.inf, 1]))[0]
    assert "observation of -3.0" in failure(space=half, wrong=np.float32([-3, 1]))[0]


def test_wrong_shapes_dtypes_and_missing_keys_are_errors():
    assert "shape (1,), its space has (2,)" in failure(wrong=np.float32([1]))[0]
    assert "shape (), its space has (2,)" in failure(wrong=1.0)[0]
    image = spaces.Box(0, 255, (2,), np.uint8)
    assert "dtype float32, its space has uint8" in failure(space=image, wrong=np.float32([1, 2]))[0]
    nested = spaces.Dict(a=spaces.Discrete(2), b=UNIT)
    assert 'without "b"' in failure(space=nested, wrong={"a": 1})[0]


def test_observations_outside_their_space_are_errors():
    assert (
        "observation of 5.0, outside its space Box(0.0, 1.0"
        in failure(space=UNIT, wrong=np.float32([0.5, 5]))[0]
    )
    assert "outside its space Discrete(3)" in failure(space=spaces.Discrete(3), wrong=3)[0]
    assert "outside" in failure(space=spaces.Discrete(3, start=1), wrong=0)[0]
    assert "outside" in failure(space=spaces.MultiDiscrete([2, 5]), wrong=np.array([2, 1]))[0]
    nested = spaces.Dict(a=spaces.Discrete(2), b=UNIT)
    assert 'at "b"' in failure(space=nested, wrong={"a": 1, "b": np.float32([0, 2])})[0]
    byte = spaces.Box(0, 9, (1,), np.uint8)
    assert "outside" in failure(space=byte, wrong=np.uint8([10]))[0]


@pytest.mark.parametrize(
    ("wrong", "options"),
    [(np.float32([1.005, -0.005]), None), (np.float32([5, 0]), EnvOptions(check_bounds=False))],
)
def test_small_overshoot_and_unchecked_bounds_are_accepted(wrong, options):
    register_env("near", lambda: Counter(space=UNIT, wrong=wrong), replace=True)
    env = make_env("near", options)
    env.reset()
    steps(env, 5)


@pytest.mark.parametrize("wrapped", [False, True])
def test_lunar_lander_may_leave_the_bounds_of_its_space(wrapped):
    """Full thrust lifts it above the bound of 2.5 for y in its space."""
    pytest.importorskip("Box2D")
    name = "LunarLander-v3"
    if wrapped:
        register_env("lander", lambda: gymnasium.make("LunarLander-v3"), replace=True)
        name = "lander"
    env = make_env(name, num_envs=4)
    env.reset(seed=0)
    highest = max(env.step(np.full(4, 2))[0][:, 1].max() for _ in range(250))
    assert highest > 2.6


def test_a_bad_action_is_an_error_that_names_the_environment():
    env = make_env("CartPole-v1")
    env.reset(seed=0)
    with pytest.raises(RunFailed, match='envs: "CartPole-v1" raised AssertionError'):
        env.step(np.array([7]))
