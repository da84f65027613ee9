"""The memory task Recall: episodes, returns with and without memory, single and vectorized."""

import itertools

import gymnasium
import numpy as np
import pytest

from rookery.envs import EnvOptions, make_env
from rookery.envs.builtin.memory_tasks import Recall, RecallVector
from rookery.errors import BadInput

NAME = "rookery/Recall-v1"


def rows(cue, cues, delay):
    """Return the observations of an episode, including the final one."""
    shown = np.zeros((delay + 3, cues + 1), np.float32)
    shown[0, cue] = 1
    shown[delay + 1, cues] = 1
    return shown


@pytest.mark.parametrize(("cues", "delay"), [(2, 0), (4, 8), (5, 1)])
def test_an_episode_is_a_cue_blanks_and_a_query(cues, delay):
    env = Recall(cues, delay)
    for cue, answer in itertools.product(range(cues), repeat=2):
        seen = [env.reset(options={"cue": cue})[0]]
        for t in range(delay + 2):
            asked = t == delay + 1
            obs, reward, terminated, truncated, _ = env.step(answer if asked else (cue + t) % cues)
            seen.append(obs)
            assert (reward, terminated, truncated) == (asked and answer == cue, asked, False)
        np.testing.assert_array_equal(np.stack(seen), rows(cue, cues, delay))
        assert all(env.observation_space.contains(obs) for obs in seen)


@pytest.mark.parametrize("limit", [None, 2, 5, 6])
def test_vectorized_recall_gives_the_same_transitions(limit):
    cues, delay, lanes = 3, 3, 4
    kwargs = {"cues": cues, "delay": delay}
    many = RecallVector(lanes, max_episode_steps=limit, **kwargs)
    singles = [gymnasium.make(NAME, max_episode_steps=limit, **kwargs) for _ in range(lanes)]
    start = np.array([0, 1, 2, 1])
    obs, _ = many.reset(seed=0, options={"cue": start})
    for lane, env in enumerate(singles):
        np.testing.assert_array_equal(
            obs[lane], env.reset(seed=0, options={"cue": int(start[lane])})[0]
        )
    random, resetting, paid = np.random.default_rng(0), [False] * lanes, 0
    for _ in range(80):
        action = random.integers(0, cues, lanes)
        obs, reward, terminated, truncated, _ = many.step(action)
        for lane, env in enumerate(singles):
            if resetting[lane]:
                shown = int(obs[lane].argmax())
                want, rest = env.reset(options={"cue": shown})[0], (0, False, False)
            else:
                want, *rest, _ = env.step(action[lane])
            np.testing.assert_array_equal(obs[lane], want)
            assert (reward[lane], terminated[lane], truncated[lane]) == tuple(rest)
            resetting[lane] = bool(rest[1] or rest[2])
        paid += reward.sum()
    assert (paid > 0) == (limit != 2)


def test_every_memoryless_policy_scores_1_over_the_number_of_cues():
    """A deterministic memoryless policy maps each of the cues + 2 observations to an action."""
    cues, delay = 3, 2
    env = Recall(cues, delay)
    for policy in itertools.product(range(cues), repeat=cues + 2):
        total = 0.0
        for cue in range(cues):
            obs, _ = env.reset(options={"cue": cue})
            terminated = False
            while not terminated:
                index = int(obs.argmax()) if obs.any() else cues + 1
                obs, reward, terminated, _, _ = env.step(policy[index])
                total += reward
        assert total / cues == 1 / cues


def test_a_policy_with_memory_scores_1():
    env = make_env(NAME, num_envs=6)
    assert env.engine == "gymnasium-native"
    assert env.single_observation_space.shape == (5,)
    obs, _ = env.reset(seed=0)
    memory, scores, seen = np.zeros(6, int), [], set()
    for _ in range(120):
        shown = obs[:, :4].any(1)
        memory = np.where(shown, obs[:, :4].argmax(1), memory)
        seen |= set(memory.tolist())
        obs, _, _, _, info = env.step(memory)
        if "episode" in info:
            done = info["episode"]["done"]
            scores += info["episode"]["return"][done].tolist()
            assert (info["episode"]["length"][done] == 10).all()
    assert seen == {0, 1, 2, 3}
    assert scores == [1.0] * 66  # a lane ends an episode every 11 rows, from the tenth


@pytest.mark.parametrize("options", [EnvOptions(), EnvOptions(frame_skip=2)])
def test_the_same_seed_gives_the_same_stream(options):
    env = make_env(NAME, options, num_envs=8)

    def run(seed):
        first = env.reset(seed=seed)[0].copy()
        return np.stack([first, *(env.step(np.zeros(8, int))[0].copy() for _ in range(40))])

    np.testing.assert_array_equal(run(1), run(1))
    assert (run(1) != run(2)).any()


def test_cues_are_uniformly_distributed():
    first = RecallVector(4000).reset(seed=0)[0].sum(0)
    assert first[4] == 0
    assert abs(first[:4] - 1000).max() < 120


@pytest.mark.parametrize("kwargs", [{"cues": 1}, {"delay": -1}, {"cues": 2.5}, {"delay": True}])
@pytest.mark.parametrize("skip", [None, 2])
def test_bad_settings_are_errors_with_name_and_value(kwargs, skip):
    [(key, value)] = kwargs.items()
    with pytest.raises(BadInput) as caught:
        make_env(NAME, EnvOptions(kwargs=kwargs, frame_skip=skip))
    least = {"cues": 2, "delay": 0}[key]
    assert (
        str(caught.value) == f"env.kwargs: {key} must be a whole number >= {least}, got {value!r}"
    )


def test_settings_and_time_limit_apply():
    env = make_env(NAME, EnvOptions(kwargs={"cues": 2, "delay": 1}, time_limit=2), num_envs=2)
    env.reset(seed=0)
    flags = [env.step(np.zeros(2, int))[3].tolist() for _ in range(4)]
    assert flags == [[False] * 2, [True] * 2, [False] * 2, [False] * 2]
    assert gymnasium.spec(NAME).reward_threshold == 0.95
