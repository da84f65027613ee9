"""Names of environments: where they are found, and the errors if they are not."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scripted_envs import Counter, OldStyle, OldWrapper, called

from rookery.envs import (
    EnvOptions,
    make_env,
    register_env,
    registered_envs,
    statistics,
)
from rookery.envs.engines.envpool import config_of
from rookery.envs.engines.single import GymnasiumAdapter
from rookery.envs.factory import resolve_options
from rookery.errors import BadInput


def message(call, *args, **kwargs):
    with pytest.raises(BadInput) as caught:
        call(*args, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_an_unknown_name_is_an_error_with_the_nearest_name():
    assert message(make_env, "CartPol-v1") == (
        'envs: "CartPol-v1" is not registered. Did you mean "CartPole-v1"? '
        "'rookery envs' lists what is installed."
    )
    assert 'Did you mean "LunarLander-v3"?' in message(make_env, "LunarLander-v2")


def test_module_names_find_registered_ids_and_environment_classes():
    env = make_env("scripted_envs:made-here", EnvOptions(kwargs={"length": 2}), num_envs=2)
    assert env.engine == "for-loop"
    env.reset()
    assert [env.step(np.zeros(2, int))[2].tolist() for _ in range(2)] == [[False] * 2, [True] * 2]
    assert make_env("scripted_envs:Counter").single_action_space.n == 2
    assert make_env("scripted_envs:OldGym").single_action_space.n == 2
    assert make_env("scripted_envs:Vector", num_envs=3).engine == "custom"
    assert make_env("gymnasium:CartPole-v1").engine == "gymnasium-native"


@pytest.mark.parametrize("found", ["not_registered", "NotAnEnvironment"])
def test_other_attributes_of_a_module_are_never_called(found):
    error = message(make_env, f"scripted_envs:{found}", EnvOptions(kwargs={"length": 2}))
    assert error == (
        f'envs: "scripted_envs:{found}" is neither a registered id nor a subclass of gymnasium.Env,'
        " gymnasium.vector.VectorEnv or gym.Env: make it one, or let its module register a function"
        f' with rookery.register_env("{found}", ...)'
    )
    assert called == []


def test_a_module_that_cannot_be_imported_is_an_error_with_the_reason():
    assert message(make_env, "no_such_module:Env-v0") == (
        'envs: "no_such_module:Env-v0" needs the module "no_such_module", which cannot be '
        "imported: ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert message(make_env, "scripted_envs:Countre") == (
        'envs: "scripted_envs" neither registers nor defines "Countre". Did you mean "Counter"?'
    )


def test_registering_a_name_twice_is_an_error():
    register_env("taken", Counter, replace=True)
    assert message(register_env, "taken", Counter) == (
        'envs: "taken" is already registered; pass replace=True to replace it'
    )


def test_the_four_value_api_of_old_gym_works():
    made = []

    def old(by_time=True):
        made.append(OldStyle(by_time=by_time))
        return made[-1]

    register_env("old", old, replace=True)
    for by_time in (True, False):
        env = make_env("old", EnvOptions(kwargs={"by_time": by_time}), num_envs=2)
        obs, _ = env.reset(seed=7)
        assert obs.tolist() == [[0], [0]]
        assert [one.seeds for one in made[-2:]] == [[7], [8]]
        rows = [env.step(np.zeros(2, int)) for _ in range(4)]
        assert [row[0][0, 0].item() for row in rows[3:]] == [0]
        assert [row[1][0].item() for row in rows] == [1, 1, 1, 0]
        assert [row[2][0].item() for row in rows] == [False, False, not by_time, False]
        assert [row[3][0].item() for row in rows] == [False, False, by_time, False]


@pytest.mark.parametrize("layers", [1, 3])
def test_wrappers_of_old_gym_work(layers):
    made = []

    def wrapped():
        env = OldStyle()
        made.append(env)
        for _ in range(layers):
            env = OldWrapper(env)
        return env

    register_env("old-wrapped", wrapped, replace=True)
    env = make_env("old-wrapped", num_envs=2)
    obs, _ = env.reset(seed=7)
    assert obs.tolist() == [[0], [0]]
    assert [one.seeds for one in made] == [[7], [8]]
    rows = [env.step(np.zeros(2, int)) for _ in range(4)]
    assert [row[3][0].item() for row in rows] == [False, False, True, False]


class TakesSeed(OldStyle):
    def reset(self, seed=None):
        self.seeds.append(seed)
        return super().reset()


class HoldsSimulator(Counter):
    """A Gymnasium environment whose attribute `env` is no wrapped environment."""

    def __init__(self):
        super().__init__()
        self.env, self.seeds = OldStyle(), []

    def reset(self, **kwargs):
        self.seeds.append(kwargs["seed"])
        self.env.reset()
        return super().reset(**kwargs)


@pytest.mark.parametrize("inner", [TakesSeed, HoldsSimulator])
def test_a_seed_reaches_the_wrapped_reset(inner):
    env, made = GymnasiumAdapter(OldWrapper(inner())), []
    for seed in (7, None):
        env.reset(seed=seed)
        made.append(env.unwrapped.seeds[-1])
    assert made == [7, None]


def test_a_registered_vector_environment_is_used_without_a_for_loop():
    register_env("vector", lambda num_envs: SyncVectorEnv([Counter] * num_envs), replace=True)
    env = make_env("vector", num_envs=3)
    assert (env.num_envs, env.engine) == (3, "custom")
    assert "env.frame_skip" in message(make_env, "vector", EnvOptions(frame_skip=2))
    register_env("fixed", lambda: SyncVectorEnv([Counter] * 2), replace=True)
    assert make_env("fixed", num_envs=2).num_envs == 2
    assert "let its function take num_envs" in message(make_env, "fixed", num_envs=3)


def test_another_autoreset_mode_is_an_error_with_the_remedy():
    register_env(
        "same-step",
        lambda: SyncVectorEnv([Counter], autoreset_mode=AutoresetMode.SAME_STEP),
        replace=True,
    )
    assert message(make_env, "same-step") == (
        'envs: "same-step" has the autoreset mode SameStep, and only NextStep is supported: make it'
        " with autoreset_mode=AutoresetMode.NEXT_STEP and set"
        ' metadata["autoreset_mode"] to it'
    )


class Unsupported(Counter):
    def __init__(self, action=False):
        super().__init__(space=spaces.Dict(x=spaces.Text(5)) if not action else None)
        if action:
            self.action_space = spaces.Dict(a=spaces.Discrete(2))


def test_an_unsupported_space_is_an_error_that_names_it():
    register_env("unsupported", Unsupported, replace=True)
    error = message(make_env, "unsupported")
    assert error.startswith('envs: "unsupported" has the observation space Text(')
    assert ' at "x", which is not supported' in error
    error = message(make_env, "unsupported", EnvOptions(kwargs={"action": True}))
    assert "has the action space Dict('a': Discrete(2)), which is not supported" in error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("frame_skip", 0),
        ("frame_stack", 2.5),
        ("noops", -1),
        ("sticky", 1.0),
        ("time_limit", True),
        ("resize", (84,)),
        ("reward_gamma", 1.5),
        ("kwargs", [1]),
    ],
)
def test_a_bad_option_is_an_error_with_its_name_and_value(field, value):
    error = message(EnvOptions, **{field: value})
    assert error.startswith(f"env.{field} must ")
    assert error.endswith(f"got {value!r}")


def test_options_that_do_not_fit_the_environment_are_errors():
    assert "env.grey and env.resize need uint8 images" in message(
        make_env, "Acrobot-v1", EnvOptions(grey=True)
    )
    assert "env.noops needs a no-op action" in message(make_env, "Acrobot-v1", EnvOptions(noops=3))
    assert 'env.kwargs: "Acrobot-v1" does not accept them' in message(
        make_env, "Acrobot-v1", EnvOptions(kwargs={"nonsense": 1})
    )


def test_a_missing_package_is_an_error_that_names_the_extra(monkeypatch):
    def absent(*args, **kwargs):
        raise gymnasium.error.DependencyNotInstalled('Box2D is not installed, run "pip..."')

    monkeypatch.setattr(gymnasium, "make", absent)
    assert "pip install 'rookery[box2d]'" in message(make_env, "LunarLander-v3")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config_of.cache_clear()
    assert message(make_env, "envpool:CartPole-v1") == (
        "envpool:CartPole-v1 needs an extra that is not installed: pip install 'rookery[envpool]'"
    )


def test_envpool_names_and_settings_that_do_not_exist_are_errors():
    pytest.importorskip("envpool")
    assert message(make_env, "envpool:CartPole-v9") == (
        'envs: EnvPool has no "CartPole-v9". Did you mean "CartPole-v1"?'
    )
    assert "env.frame_skip cannot be set" in message(
        make_env, "envpool:CartPole-v1", EnvOptions(frame_skip=2)
    )
    for key in ("stack_num", "frame_stack"):
        assert message(make_env, "envpool:Pong-v5", EnvOptions(kwargs={key: 2})) == (
            f"env.kwargs may not set {key!r}: set env.frame_stack"
        )
    assert resolve_options("envpool:Pong-v5", EnvOptions()).frame_stack == 4
    assert resolve_options("envpool:CartPole-v1", EnvOptions()).frame_stack == 1


def test_time_limits_apply_to_the_native_engine():
    for limit, options in ((500, EnvOptions()), (7, EnvOptions(time_limit=7))):
        env = make_env("CartPole-v1", options)
        assert env.unwrapped.max_episode_steps == limit
    env.reset(seed=0)
    rows = [env.step(np.array([t % 2])) for t in range(8)]
    assert [row[3].item() for row in rows] == [False] * 6 + [True, False]


def layers(env):
    """Return the names of the wrappers, the outermost first."""
    return [type(env).__name__, *layers(env.env)] if hasattr(env, "env") else []


def test_evaluation_rewards_are_scaled_by_frozen_statistics():
    options = EnvOptions(normalize_obs=True, normalize_reward=True, time_limit=20, frame_stack=2)
    env = make_env("Pendulum-v1", options, training=False)
    found = statistics(env)
    assert sorted(found) == ["obs", "reward"]

    def played(env):
        env.reset(seed=0)
        rows = [env.step(np.zeros((1, 1), np.float32)) for _ in range(20)]
        return np.array([row[1].item() for row in rows]), rows[-1][4]["episode"]["return"].item()

    raw, score = played(make_env("Pendulum-v1", EnvOptions(time_limit=20)))
    fresh, first = played(env)
    np.testing.assert_allclose(fresh, raw.clip(-10, 10))  # a variance of 1 until one is loaded
    found["reward"].load({"merged": np.array([4.0, 0.0, 4 * 100.0]), "pending": np.zeros(3)})
    scaled, again = played(env)
    np.testing.assert_allclose(scaled, raw / 10)
    assert first == again == score == pytest.approx(raw.sum())
    assert (found["reward"].count, found["obs"].count) == (4, 0)


def test_one_life_is_the_only_wrapper_that_evaluation_lacks():
    options = EnvOptions(
        normalize_obs=True, normalize_reward=True, clip_reward=True, one_life=True, frame_stack=2
    )
    seen = ["FrameStack", "NormalizeObservation", "NormalizeReward", "ClipReward"]
    inner = ["EpisodeStatistics", "Guard"]
    assert layers(make_env("Pendulum-v1", options)) == [*seen, "OneLife", *inner]
    assert layers(make_env("Pendulum-v1", options, training=False)) == [*seen, *inner]


def test_registered_envs_name_engines_and_games_get_ataris_options():
    register_env("mine", Counter, replace=True)
    listed = dict(registered_envs())
    assert listed["CartPole-v1"] == "gymnasium-native"
    assert listed["Acrobot-v1"] == "for-loop"
    assert listed["ALE/Pong-v5"] == "ale"
    assert listed["mine"] == "registered"
    assert "Ant-v5" in listed
    assert "Ant-v4" not in listed
    assert resolve_options("Pong", EnvOptions()).frame_skip == 4
    env = make_env("Pong")
    assert env.engine == "ale"
    assert env.single_observation_space.shape == (4, 84, 84)
