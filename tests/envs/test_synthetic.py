"""Synthetic data: spaces, pool and seeds, rewards of the task, and the duration of a step."""

import time

import gymnasium
import numpy as np
import pytest

from rookery.cli.main import main
from rookery.envs import EnvOptions, make_env
from rookery.envs.builtin.synthetic import NAME, Synthetic, SyntheticVector
from rookery.envs.spaces import part_at, space_leaves
from rookery.errors import BadInput, RunFailed

MANY = "{a: float[3], b: float64[2](-3,5), c: float16[2](0,1), d: uint8[2,2], e: int32[2](-7,9)," \
    " f: discrete(5), g: multidiscrete[3,4], h: discrete(700)[6], i: multibinary[4]," \
    " j: (float[1], {k: int64[2], l: int8[1]})}"  # fmt: skip
UNITS = "{units: {kind: discrete(50)[6], features: float[6,3]}, clock: float[1]}"


def flat(env, obs):
    """Return the leaves of an observation in order."""
    return [part_at(obs, path) for path, _ in space_leaves(env.single_observation_space)]


def copies(env, obs):
    return [leaf.copy() for leaf in flat(env, obs)]


def play(env, steps, action, seed=0):
    """Return leaves of the observations, rewards and terminations over time."""
    obs, _ = env.reset(seed=seed)
    seen, paid, ended = [copies(env, obs)], [], []
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = env.step(action)
        assert not truncated.any()
        seen.append(copies(env, obs))
        paid.append(reward)
        ended.append(terminated)
    return [np.stack(x) for x in zip(*seen, strict=True)], np.stack(paid), np.stack(ended)


# ---------------------------------------------------------------- the data


@pytest.mark.parametrize("data", ["generated", "synthetic"])
@pytest.mark.parametrize("task", [False, True])
@pytest.mark.parametrize("obs", [MANY, UNITS, "reference", "float[3]", "discrete(9)", "uint8[8,8]"])
def test_observations_are_contained_in_their_space(obs, data, task):
    env = SyntheticVector(3, obs=obs, data=data, task=task, pool=40, length=4)
    single = Synthetic(obs=obs, data=data, task=task, pool=40, length=4)
    action, one = np.zeros(3, int), 0
    shown, lone = env.reset(seed=1)[0], single.reset(seed=1)[0]
    for _ in range(12):
        assert env.observation_space.contains(shown)
        assert single.observation_space.contains(lone)
        for (_, space), leaf in zip(
            space_leaves(env.single_observation_space), flat(env, shown), strict=True
        ):
            assert (leaf.dtype, leaf.shape) == (space.dtype, (3, *space.shape))
        shown, lone = env.step(action)[0], single.step(one)[0]


def test_values_cover_the_whole_space():
    env = SyntheticVector(4000, obs=MANY)
    obs, _ = env.reset(seed=0)
    normal = obs["a"].astype(np.float64)
    assert abs(normal.mean()) < 0.05
    assert abs(normal.std() - 1) < 0.05
    wide = obs["b"]
    assert abs(wide.mean() - 1) < 0.1
    assert (wide != wide.astype(np.float32)).mean() > 0.9
    assert wide.min() < -2.99
    assert wide.max() > 4.99
    for key, count, least in (
        ("f", 5, 0),
        ("h", 700, 0),
        ("i", 2, 0),
        ("e", 17, -7),
        ("d", 256, 0),
    ):
        values, times = np.unique(obs[key], return_counts=True)
        assert values.tolist() == list(range(least, least + count))
        even = obs[key].size / count
        assert (np.abs(times - even) < 6 * np.sqrt(even)).all()
    assert obs["g"].max(0).tolist() == [2, 3]
    assert obs["j"][1]["k"].max() > 2**62 > -(2**62) > obs["j"][1]["k"].min()


def test_generated_observations_differ_in_every_lane_and_step():
    seen = play(SyntheticVector(5, obs="{a: float[4], b: discrete(1000)[8]}"), 40, np.zeros(5, int))
    for leaf in seen[0]:
        rows = leaf.reshape(41 * 5, -1)
        assert len(np.unique(rows, axis=0)) == len(rows)


def test_observations_are_the_pool_rows_that_rows_names():
    env = SyntheticVector(5, obs=UNITS, data="synthetic", pool=30)
    assert env.rows is None
    obs, _ = env.reset(seed=0)
    windows = []
    for _ in range(60):
        assert (env.rows.dtype, env.rows.shape) == (np.int64, (5,))
        for pool, leaf in zip(flat(env, env.pool), flat(env, obs), strict=True):
            assert len(pool) == 30
            np.testing.assert_array_equal(leaf, pool[env.rows])
        windows.append(env.rows)
        obs = env.step(np.zeros(5, int))[0]
    rows = np.stack(windows)
    assert set(rows.flatten()) == set(range(30))
    assert len(np.unique(rows, axis=0)) == 60  # no selection of rows repeats
    assert (rows[:, 0] != rows[:, 1]).any()
    times = np.bincount(rows.flatten(), minlength=30)
    assert times.max() < 30  # 10 each on average
    assert len(np.unique(env.pool["clock"])) == 30


def test_the_pool_is_the_same_in_every_process_and_never_changes():
    make = {"obs": UNITS, "data": "synthetic", "pool": 20}
    env, other = SyntheticVector(2, **make), SyntheticVector(7, **make)
    before = copies(env, env.pool)
    obs = env.reset(seed=5)[0]
    for leaf in flat(env, obs):
        leaf[:] = 0  # the returned array is a copy
    play(env, 30, np.zeros(2, int))
    for mine, now, its in zip(before, flat(env, env.pool), flat(other, other.pool), strict=True):
        np.testing.assert_array_equal(mine, now)
        np.testing.assert_array_equal(mine, its)
    third = SyntheticVector(2, pool_seed=1, **make)
    assert (third.pool["clock"] != env.pool["clock"]).all()
    generated = SyntheticVector(2, obs=UNITS)
    generated.reset(seed=0)
    assert generated.pool is None
    assert generated.rows is None


@pytest.mark.parametrize("data", ["generated", "synthetic"])
def test_returned_arrays_are_never_overwritten(data):
    env = SyntheticVector(3, obs=MANY, data=data, task=True)
    handed = [env.reset(seed=0)[0]]
    kept = [copies(env, handed[0])]
    rows = [env.rows]
    kept_rows = [None if env.rows is None else env.rows.copy()]
    for _ in range(20):
        obs, *_ = env.step(np.zeros(3, int))
        handed.append(obs)
        kept.append(copies(env, obs))
        rows.append(env.rows)
        kept_rows.append(None if env.rows is None else env.rows.copy())
    for obs, copy in zip(handed, kept, strict=True):
        for leaf, was in zip(flat(env, obs), copy, strict=True):
            np.testing.assert_array_equal(leaf, was)
    np.testing.assert_equal(rows, kept_rows)


@pytest.mark.parametrize("data", ["generated", "synthetic"])
@pytest.mark.parametrize("task", [False, True])
def test_the_same_seed_gives_the_same_stream_and_lanes_differ(data, task):
    env = SyntheticVector(4, obs=UNITS, data=data, task=task)
    one, again, other = (play(env, 30, np.zeros(4, int), seed) for seed in (3, 3, 4))
    for first, second, third in zip(one[0], again[0], other[0], strict=True):
        np.testing.assert_array_equal(first, second)
        assert (first != third).any()
        assert all((first[:, 0] != first[:, lane]).any() for lane in (1, 2, 3))
    np.testing.assert_array_equal(one[1], again[1])
    assert (one[1] != other[1]).any()


@pytest.mark.parametrize("data", ["generated", "synthetic"])
@pytest.mark.parametrize("task", [{}, {"task": True}, {"task": True, "delay": 2}])
def test_the_single_environment_equals_a_vector_of_one_lane(data, task):
    make = {"obs": UNITS, "data": data, "length": 5, **task}
    many, one = SyntheticVector(1, **make), gymnasium.make(NAME, **make).unwrapped
    assert one.best_return == many.best_return
    assert isinstance(one, Synthetic)
    obs, lone = many.reset(seed=8)[0], one.reset(seed=8)[0]
    resetting, random, paid = False, np.random.default_rng(0), 0.0
    for _ in range(60):
        np.testing.assert_equal([leaf[0] for leaf in flat(many, obs)], flat(many, lone))
        action = random.integers(4)
        obs, reward, terminated, truncated, _ = many.step(np.array([action]))
        if resetting:
            lone, rest = one.reset()[0], (0.0, False, False)
        else:
            lone, *rest, _ = one.step(action)
        assert (reward[0], terminated[0], truncated[0]) == tuple(rest)
        resetting = terminated[0]
        paid += abs(reward[0])
    assert paid > 0


# ---------------------------------------------------------------- episodes and rewards


@pytest.mark.parametrize("length", [1, 3, 16])
def test_episodes_terminate_after_length_steps_and_reset_rows_pay_0(length):
    env = SyntheticVector(2, length=length)
    _, paid, ended = play(env, 3 * (length + 1), np.zeros(2, int))
    row = np.arange(3 * (length + 1)) % (length + 1)
    np.testing.assert_array_equal(ended, np.repeat((row == length - 1)[:, None], 2, 1))
    assert (paid[row == length] == 0).all()
    assert (paid[row < length] != 0).all()


def test_bad_actions_are_errors_except_on_reset_rows():
    env = SyntheticVector(2, length=1, act="discrete(3)")
    env.reset(seed=0)
    env.step(np.array([0, 2]))
    env.step(np.array([9, -1]))
    for wrong in ([0, 3], [-1, 0], [0], [[0, 0]]):
        with pytest.raises(ValueError, match="are not all in"):
            env.step(np.array(wrong))
    for act, wrong in (("float[1](-1,1)", 1.5), ("float[1]", np.nan), ("multibinary[1]", 2)):
        env = SyntheticVector(1, act=act)
        env.reset(seed=0)
        with pytest.raises(ValueError, match="are not all in"):
            env.step(np.array([[wrong]]))
    made = make_env(NAME)
    made.reset(seed=0)
    with pytest.raises(RunFailed):
        made.step(np.array([7]))


def test_rewards_without_the_task_are_standard_normal():
    env = SyntheticVector(500, length=30)
    _, paid, _ = play(env, 30, np.zeros(500, int))
    assert abs(paid.mean()) < 0.03
    assert abs(paid.std() - 1) < 0.03
    assert abs(np.corrcoef(paid[:-1].flatten(), paid[1:].flatten())[0, 1]) < 0.03
    assert env.best_return == 0


def test_a_time_limit_truncates():
    env = make_env(NAME, EnvOptions(time_limit=3), num_envs=2)
    env.reset(seed=0)
    flags = [[x[0] for x in env.step(np.zeros(2, int))[2:4]] for _ in range(5)]
    assert flags == [[False, False]] * 2 + [[False, True]] + [[False, False]] * 2


# ---------------------------------------------------------------- the task


def pooled_code(kinds, count):
    """Return what a network with max-pooled embeddings of codes [B, N] can read: the code below
    `count` of each observation."""
    embedding = np.zeros((kinds.max() + 1, count))
    embedding[:count] = np.eye(count)[: len(embedding)]
    pooled = embedding[kinds].max(1)
    assert (pooled.sum(1) == 1).all()  # exactly one entity holds a code below count
    return pooled.argmax(1)


@pytest.mark.parametrize("data", ["generated", "synthetic"])
@pytest.mark.parametrize("delay", [0, 3])
def test_a_policy_that_reads_and_remembers_codes_earns_the_best_return(data, delay):
    kwargs = {"obs": "reference", "task": True, "length": 6, "data": data, "delay": delay}
    env = make_env(NAME, EnvOptions(kwargs=kwargs), num_envs=8)
    assert env.unwrapped.best_return == 6 - delay
    obs, _ = env.reset(seed=0)
    shown, scores, seen = [], [], set()
    for t in range(70):
        shown.append(pooled_code(obs["group0"]["kind"], 128))
        seen |= set(shown[-1].tolist())
        late = shown[-1 - delay] if t >= delay else np.zeros(8, int)
        obs, reward, _, _, info = env.step(late)
        row = t % 7
        assert (reward == (1 if delay <= row < 6 else 0)).all()
        if "episode" in info:
            scores += info["episode"]["return"].tolist()
    assert scores == [6 - delay] * 80
    assert len(seen) > 100
    assert max(seen) > 120


def test_policies_that_ignore_or_misplace_the_code_earn_chance():
    """A random policy, and ones that use the code of another step, earn the return of chance."""
    random = np.random.default_rng(0)
    make = {"obs": "discrete(4)", "task": True, "length": 50}
    for delay, lag, earned in (
        (0, None, 0.25),
        (2, 0, 0.25),
        (2, 1, 0.25),
        (2, 2, 1),
        (1, 2, 0.25),
    ):
        env = SyntheticVector(200, delay=delay, **make)
        obs, _ = env.reset(seed=0)
        shown, paid = [], []
        for t in range(50):
            shown.append(obs)
            action = random.integers(4, size=200) if lag is None else shown[max(0, t - lag)]
            obs, reward, *_ = env.step(action)
            paid.append(reward)
        assert abs(np.mean(paid[3:]) - earned) < 0.03
        assert (np.array(paid[:delay]) == 0).all()


def test_the_code_stands_at_any_entity_and_nothing_else_predicts_it():
    env = SyntheticVector(4000, obs=UNITS, act="discrete(8)", task=True)
    plain = SyntheticVector(4000, obs=UNITS, data="synthetic", pool=500)
    tasked = SyntheticVector(4000, obs=UNITS, data="synthetic", pool=500, task=True)
    np.testing.assert_array_equal(plain.pool["clock"], tasked.pool["clock"])
    np.testing.assert_array_equal(plain.pool["units"]["features"], tasked.pool["units"]["features"])
    kind = env.reset(seed=0)[0]["units"]["kind"]
    telling = kind < 8
    assert (telling.sum(1) == 1).all()
    assert (np.abs(telling.sum(0) - 4000 / 6) < 150).all()
    assert (np.abs(np.bincount(kind[telling]) - 500) < 120).all()
    assert set(kind[~telling]) == set(range(8, 50))
    answer = kind[telling]
    obs, reward, *_ = env.step(answer)
    assert (reward == 1).all()
    assert (env.step((pooled_code(obs["units"]["kind"], 8) + 1) % 8)[1] == 0).all()


@pytest.mark.parametrize(
    ("obs", "path", "count", "read"),
    [
        ("discrete(9)", (), 8, lambda x: x),
        ("discrete(5)", (), 5, lambda x: x),
        ("discrete(9)[1]", (), 8, lambda x: x[:, 0]),
        ("multidiscrete[3,10,4]", (), 8, lambda x: x[:, 1]),
        ("discrete(6)[4]", (), 5, lambda x: x.min(1)),
        ("discrete(20)[2,2]", (), 8, lambda x: x.min((1, 2))),
        ("(discrete(4), discrete(12), discrete(30))", (1,), 8, lambda x: x),
        ("(float[3], discrete(3)[2])", (1,), 2, lambda x: x.min(1)),
        ("(discrete(1), float[3])", (1,), 8, lambda x: np.rint((x[:, 0] + 2) / 4 * 7)),
        ("(uint8[4], float[3](0,7))", (1,), 8, lambda x: np.rint(x[:, 0])),
        ("float[5,3]", (), 8, lambda x: np.rint((x[:, :, 0].max(1) + 2) / 4 * 7)),
        ("uint8[4,6,6]", (), 8, lambda x: np.ceil(x[:, 2, 3, 0] / 255 * 7)),
        ("int8[2](-3,2)", (), 6, lambda x: x[:, 0] + 3),
        ("int64[2]", (), 8, lambda x: np.rint((x[:, 0].astype(float) / 2**63 + 1) / 2 * 7)),
        ("multibinary[3]", (), 2, lambda x: x[:, 0]),
    ],
)
def test_the_code_is_in_the_preferred_part_of_the_observation(obs, path, count, read):
    env = SyntheticVector(300, obs=obs, act="discrete(8)", task=True)
    match = env.match
    assert (match.path, match.count) == (path, count)
    shown, _ = env.reset(seed=0)
    for _ in range(3):
        codes = read(part_at(shown, path)).astype(int)
        assert set(codes) == set(range(count))
        # With fewer codes than actions, the rewarded actions are spread evenly over all.
        shown, reward, *_ = env.step(codes * 8 // count)
        assert (reward == 1).all()


def test_each_right_part_of_a_multidiscrete_action_pays_its_share():
    env = SyntheticVector(400, obs="discrete(100)", act="multidiscrete[3,4]", task=True)
    code, _ = env.reset(seed=0)
    assert set(code) == set(range(12))  # every pair has a code
    right = np.stack([code // 4, (11 - code) // 3], 1)
    code, reward, *_ = env.step(right)
    assert (reward == 1).all()
    right = np.stack([code // 4, (11 - code) // 3], 1)
    code, reward, *_ = env.step((right + np.array([1, 0])) % [3, 4])
    assert (reward == 0.5).all()
    right = np.stack([code // 4, (11 - code) // 3], 1)
    assert (env.step((right + 1) % [3, 4])[1] == 0).all()


def test_each_right_bit_pays_its_share():
    env = SyntheticVector(100, obs="discrete(4)", act="multibinary[2]", task=True)
    code, _ = env.reset(seed=0)
    right = np.stack([code // 2, 1 - code // 2], 1)
    assert (env.step(right)[1] == 1).all()
    env.reset(seed=0)
    assert (env.step(1 - right)[1] == 0).all()
    env.reset(seed=0)
    assert (env.step(np.zeros((100, 2), int))[1] == 0.5).all()


@pytest.mark.parametrize(
    ("bounds", "low", "half"), [("(-1,1)", -1, 1), ("(0,40)", 0, 20), ("", -1, 1)]
)
def test_float_actions_pay_by_their_distance_from_the_answer(bounds, low, half):
    env = SyntheticVector(300, obs="discrete(40)[3]", act=f"float[2]{bounds}", task=True)

    def answer(obs):
        code = obs.min(1)
        share = np.stack([code + 0.5, 15 - code + 0.5], 1) / 16
        return (low + 2 * half * share).astype(np.float32)

    obs, _ = env.reset(seed=0)
    assert set(obs.min(1)) == set(range(16))
    assert env.best_return == 16
    obs, reward, *_ = env.step(answer(obs))
    assert (reward == 1).all()
    right = answer(obs)
    inwards = np.where(right > low + half, -1, 1) * np.float32(half)
    obs, reward, *_ = env.step(right + inwards * np.float32([0.25, 0.5]))
    np.testing.assert_allclose(reward, 1 - (0.25 + 0.5) / 2, atol=1e-6)
    right = answer(obs)
    far = np.where(right > low + half, low, low + 2 * half)  # clipped at 0, not below
    reward = env.step(far)[1]
    assert (reward >= 0).all()
    assert (reward < 1e-6).all()


# ---------------------------------------------------------------- the cost of a step


@pytest.mark.parametrize("milliseconds", [0.5, 5.0])
@pytest.mark.parametrize("make", [Synthetic, lambda **k: SyntheticVector(2, **k)])
def test_sleep_ms_sleeps_as_long_as_set_without_processor_time(make, milliseconds):
    env = make(obs="discrete(2)", sleep_ms=milliseconds, length=1000)
    env.reset(seed=0)
    action = np.zeros(getattr(env, "num_envs", ()), int)
    took, worked = [], []
    for _ in range(20):
        work, start = time.thread_time(), time.perf_counter()
        env.step(action)
        took.append(time.perf_counter() - start)
        worked.append(time.thread_time() - work)
    assert min(took) >= milliseconds / 1000
    # The minimum, since other programs may delay this one.
    assert min(took) < 1.1 * milliseconds / 1000 + 1e-4
    if milliseconds > 1:
        assert np.median(worked) < 0.2 * milliseconds / 1000


@pytest.mark.parametrize("make", [Synthetic, lambda **k: SyntheticVector(2, **k)])
def test_busy_ms_computes_as_long_as_set(make):
    env = make(obs="discrete(2)", busy_ms=2, length=3)
    env.reset(seed=0)
    action, worked = np.zeros(getattr(env, "num_envs", ()), int), []
    for _ in range(3):
        start = time.thread_time()
        env.step(action)
        worked.append(time.thread_time() - start)
    assert min(worked) >= 2e-3
    assert min(worked) < 2.6e-3


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("skip", [None, 2])
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"length": 0}, "length must be a whole number >= 1, got 0"),
        ({"pool": 2.5}, "pool must be a whole number >= 1, got 2.5"),
        ({"pool_seed": -1}, "pool_seed must be a whole number >= 0, got -1"),
        ({"delay": True}, "delay must be a whole number >= 0, got True"),
        ({"delay": 2}, "delay=2 has no effect without task=true"),
        ({"delay": 4, "length": 4, "task": True}, "delay must be less than length=4, got 4"),
        ({"sleep_ms": -1}, "sleep_ms must be a number >= 0, got -1"),
        ({"busy_ms": "2"}, "busy_ms must be a number >= 0, got '2'"),
        ({"busy_ms": float("nan")}, "busy_ms must be a number >= 0, got nan"),
        ({"data": "device"}, "data must be one of generated, synthetic, got 'device'"),
        ({"task": "match"}, "task must be true or false, got 'match'"),
        ({"lenght": 4}, f'{NAME} has no setting "lenght". Did you mean "length"?'),
        ({"obs": "float[3"}, "obs: '[' was never closed at the --> in \"float-->[3\""),
        ({"obs": None}, 'obs must be a text such as "float[4]", got None'),
        ({"act": "float"}, 'act: expected a form such as float[4] at the --> in "-->float"'),
        (
            {"act": "uint8[3]"},
            "act must be discrete, multidiscrete, multibinary or a box of floats, got 'uint8[3]'",
        ),
        (
            {"act": "(discrete(2),)"},
            "act must be discrete, multidiscrete, multibinary or a box of floats,"
            " got '(discrete(2),)'",
        ),
        (
            {"obs": "discrete(1)", "task": True},
            "task needs a part of obs with at least two values",
        ),
    ],
)  # fmt: skip
def test_bad_settings_are_errors_with_name_and_value(kwargs, message, skip):
    with pytest.raises(BadInput) as error:
        make_env(NAME, EnvOptions(kwargs=kwargs, frame_skip=skip))
    assert str(error.value) == f"env.kwargs: {message}"


def test_the_default_action_space_depends_on_the_observation():
    actions = {obs: Synthetic(obs=obs).action_space.n for obs in ("reference", "float[2]")}
    assert actions == {"reference": 128, "float[2]": 4}
    assert Synthetic(obs="reference", act="discrete(3)").action_space.n == 3
    assert make_env(NAME).engine == "gymnasium-native"
    assert make_env(NAME, EnvOptions(frame_skip=2)).engine == "for-loop"


@pytest.mark.parametrize("kwargs", [[], ["--env.kwargs", f'{{"obs": "{UNITS}", "task": true}}']])
def test_the_command_line_trains_on_synthetic_data(kwargs, tmp_path, capsys):
    args = ["--env-steps", "200", "--envs", "2", "--threads", "1", "--runs-dir", str(tmp_path)]
    assert main(["train", "vpg", NAME, *args, *kwargs]) == 0
    assert "finished" in capsys.readouterr().out
