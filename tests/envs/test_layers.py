"""Episode statistics, one life, clipping and normalisation on scripted environments."""

import numpy as np
import pytest
from gymnasium import spaces
from scripted_envs import Scripted

from rookery.envs import statistics
from rookery.envs.wrappers.episodes import ClipReward, EpisodeStatistics, OneLife
from rookery.envs.wrappers.normalize import NormalizeObservation, NormalizeReward, RunningMoments
from rookery.errors import BadInput


def play(env, steps, action=3):
    """Return rows (reward, terminated, truncated, info) of `steps` steps after a reset."""
    env.reset(seed=0)
    return [env.step(np.full(env.num_envs, action))[1:] for _ in range(steps)]


def column(rows, index, lane=0):
    return [row[index][lane].item() for row in rows]


def test_episode_return_and_length_leave_out_the_reset_row():
    lane = [
        {"reward": 2},
        {"reward": 3, "terminated": True},
        {"reward": 0},
        {"reward": 5},
        {"reward": 7, "truncated": True},
    ]
    other = [{"reward": 1}] * 5
    rows = play(EpisodeStatistics(Scripted([lane, other])), 5)
    episodes = [row[3].get("episode") for row in rows]
    assert [episode is None for episode in episodes] == [True, False, True, True, False]
    assert episodes[1]["done"].tolist() == [True, False]
    assert (episodes[1]["return"][0], episodes[1]["length"][0]) == (5, 2)
    assert (episodes[4]["return"][0], episodes[4]["length"][0]) == (12, 2)
    assert episodes[4]["return"].dtype == np.float64
    assert episodes[4]["length"].dtype == np.int64
    assert [episodes[row]["truncated"].tolist() for row in (1, 4)] == [
        [False, False],
        [True, False],
    ]


def test_terminated_and_truncated_both_pass_through_all_wrappers():
    lane = [{"reward": 1, "terminated": True, "truncated": True, "lives": 1}]
    env = OneLife(EpisodeStatistics(Scripted([lane], lives=[1])))
    env = NormalizeObservation(NormalizeReward(ClipReward(env), 0.9))
    [(_, terminated, truncated, info)] = play(env, 1)
    assert (terminated.item(), truncated.item()) == (True, True)
    assert info["episode"]["truncated"].tolist() == [False]


def lives(*rows):
    """Return rows for Scripted from (lives, reward) or (lives, reward, flag)."""
    return [
        {"lives": row[0], "reward": row[1], **({row[2]: True} if len(row) > 2 else {})}
        for row in rows
    ]


def test_one_life_terminates_at_a_lost_life_and_the_game_goes_on():
    lane = lives(
        (3, 1), (2, 1), (2, 9), (2, 1), (1, 1), (1, 0), (0, 1, "terminated"), (3, 0), (3, 1)
    )
    inner = Scripted([lane], lives=[3])
    rows = play(OneLife(EpisodeStatistics(inner)), 9)
    # Rows 2 and 5 follow a lost life: a no-op, no reward. Row 7 is the game's own reset row.
    assert column(rows, 1) == [False, True, False, False, True, False, True, False, False]
    assert column(rows, 0) == [1, 1, 0, 1, 1, 0, 1, 0, 1]
    assert [a[0] for a in inner.actions] == [3, 3, 0, 3, 3, 0, 3, 3, 3]
    episodes = [row[3]["episode"] for row in rows if "episode" in row[3]]
    assert len(episodes) == 1
    assert (episodes[0]["return"][0], episodes[0]["length"][0]) == (14, 7)


def test_a_game_that_a_time_limit_ends_is_truncated_whatever_lives_were_lost():
    lane = lives((2, 1), (1, 1), (1, 0), (1, 1, "truncated"))
    rows = play(OneLife(EpisodeStatistics(Scripted([lane], lives=[2]))), 4)
    assert column(rows, 1) == [False, True, False, False]
    [episode] = [row[3]["episode"] for row in rows if "episode" in row[3]]
    assert episode["truncated"].tolist() == [True]


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_a_no_op_that_ends_the_game_is_followed_by_a_real_reset_row(flag):
    lane = lives((2, 1), (1, 1), (0, 4, flag), (2, 0), (1, 1), (1, 0))
    rows = play(OneLife(EpisodeStatistics(Scripted([lane], lives=[2]))), 6)
    done = [bool(a or b) for a, b in zip(column(rows, 1), column(rows, 2), strict=True)]
    # Row 1 loses a life; row 2 (masked) ends the game, so row 3 is masked too; row 4 plays.
    assert done == [False, True, True, False, True, False]
    assert column(rows, 0) == [1, 1, 0, 0, 1, 0]
    assert rows[2][3]["episode"]["return"][0] == 6


def test_a_life_lost_by_the_no_op_does_not_terminate_and_other_lanes_play_on():
    lane = lives((2, 1), (1, 1), (1, 1))
    other = lives((3, 1), (3, 1), (3, 1))
    inner = Scripted([lives((3, 1), (2, 1), (1, 1)), other, lane], lives=[4, 3, 2])
    rows = play(OneLife(inner), 3)
    assert column(rows, 1, 0) == [True, False, True]
    assert column(rows, 1, 1) == [False] * 3
    assert inner.actions[1] == [0, 3, 3]
    assert inner.actions[2] == [3, 3, 0]


def test_zero_lives_or_a_new_game_with_fewer_lives_does_not_terminate():
    lane = lives((1, 1), (0, 1), (0, 1, "terminated"), (2, 0), (3, 1), (3, 1, "truncated"), (2, 0))
    rows = play(OneLife(Scripted([lane], lives=[1])), 7)
    assert column(rows, 1) == [False, False, True, False, False, False, False]


def test_one_life_without_lives_in_info_is_an_error():
    with pytest.raises(BadInput, match=r"env\.one_life"):
        OneLife(Scripted([[{}]])).reset()


def test_reward_clipping_leaves_the_score_raw():
    lane = [{"reward": 7}, {"reward": -4, "terminated": True}]
    rows = play(ClipReward(EpisodeStatistics(Scripted([lane]))), 2)
    assert column(rows, 0) == [1, -1]
    assert rows[1][3]["episode"]["return"][0] == 3


def test_moments_equal_numpy_on_all_data():
    rng = np.random.default_rng(0)
    parts = [rng.normal(1e4, [1, 5, 1e-2], (n, 3)) for n in (1, 7, 64, 2)]
    moments = RunningMoments((3,))
    for part in parts:
        moments.update(part)
    everything = np.concatenate(parts)
    assert moments.count == 74
    np.testing.assert_allclose(moments.mean, everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.var, everything.var(0), rtol=1e-6)


def test_merged_moments_are_bitwise_equal_on_all_ranks_and_cover_all_data():
    rng = np.random.default_rng(1)
    data = rng.normal(3, 2, (3, 2, 50, 4))
    ranks = [RunningMoments((4,)), RunningMoments((4,))]
    for round_ in data:
        for rank, part in zip(ranks, round_, strict=True):
            rank.update(part)
        pendings = [rank.take_pending() for rank in ranks]
        for rank in ranks:
            rank.merge(pendings)
    assert ranks[0].mean.tobytes() == ranks[1].mean.tobytes()
    assert ranks[0].var.tobytes() == ranks[1].var.tobytes()
    np.testing.assert_allclose(ranks[0].mean, data.reshape(-1, 4).mean(0))
    np.testing.assert_allclose(ranks[0].var, data.reshape(-1, 4).var(0))
    ranks[0].update(data[0, 0] + 9)
    assert (ranks[0].mean > ranks[1].mean).all()  # its own pending counts at once


def test_moments_resume_bitwise():
    rng = np.random.default_rng(2)
    a, b = RunningMoments((2,)), RunningMoments((2,))
    a.update(rng.normal(size=(5, 2)))
    a.merge([a.take_pending()])
    a.update(rng.normal(size=(5, 2)))
    b.load({key: value.copy() for key, value in a.state().items()})
    batch = rng.normal(size=(5, 2))
    a.update(batch)
    b.update(batch)
    assert a.mean.tobytes() == b.mean.tobytes()
    assert a.var.tobytes() == b.var.tobytes()


def test_every_observation_counts_once_and_is_scaled():
    lane = [{"obs": 4}, {"obs": 8, "terminated": True}, {"obs": -2}, {"obs": 6}]
    env = NormalizeObservation(Scripted([lane]))
    env.reset()
    last = [env.step(np.zeros(1, int))[0].item() for _ in lane][-1]
    seen = np.array([0, 4, 8, -2, 6])  # the reset's own, the final one, the next episode's first
    moments = statistics(env)["obs"]
    np.testing.assert_allclose([moments.mean[0], moments.var[0]], [seen.mean(), seen.var()])
    assert last == pytest.approx((6 - seen.mean()) / seen.std(), rel=1e-5)


def test_frozen_observation_statistics_do_not_change():
    env = NormalizeObservation(Scripted([[{"obs": 500}, {"obs": 9}]]), frozen=True)
    moments = statistics(env)["obs"]
    moments.update(np.array([[0.0], [2.0]]))
    env.reset()
    assert env.step(np.zeros(1, int))[0].item() == 10  # clipped
    assert env.step(np.zeros(1, int))[0].item() == pytest.approx(8)
    assert moments.count == 2


def test_frozen_reward_statistics_do_not_change():
    lane = [{"reward": 3}, {"reward": 500, "terminated": True}, {"reward": 0}, {"reward": -4}]
    env = NormalizeReward(EpisodeStatistics(Scripted([lane])), gamma=0.5, frozen=True)
    moments = statistics(env)["reward"]
    assert column(play(env, 4), 0) == pytest.approx([3, 10, 0, -4])  # a variance of 1; clipped
    assert moments.count == 0
    moments.update(np.array([0.0, 4.0]))
    rows = play(env, 4)
    assert column(rows, 0) == pytest.approx([1.5, 10, 0, -2])
    assert rows[1][3]["episode"]["return"][0] == 503
    assert moments.count == 2


def test_only_float_boxes_are_normalised():
    space = spaces.Dict(
        a=spaces.Box(-1, 1, (2,), np.float32),
        image=spaces.Box(0, 255, (4, 4, 3), np.uint8),
        pair=spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 9, (), np.float64)]),
    )
    env = NormalizeObservation(Scripted([[{}]], obs_space=space))
    assert sorted(statistics(env)) == ["obs.a", "obs.pair.1"]
    assert env.single_observation_space["image"] == space["image"]
    assert env.single_observation_space["pair"][1].dtype == np.float32
    obs = {
        "a": np.zeros((1, 2), np.float32),
        "image": np.full((1, 4, 4, 3), 9, np.uint8),
        "pair": (np.array([2]), np.array([5.0])),
    }
    given = env.normalized(obs)
    assert given["image"] is obs["image"]
    assert given["pair"][0].tolist() == [2]
    assert statistics(env)["obs.pair.1"].mean == 5


def test_rewards_are_divided_by_the_deviation_of_the_discounted_return():
    rewards = [1.0, 2.0, 4.0, 0.0, 3.0, 5.0]
    lane = [{"reward": r} for r in rewards]
    lane[2]["truncated"] = True  # so row 3 is a reset row
    env = NormalizeReward(EpisodeStatistics(Scripted([lane])), gamma=0.5)
    got = column(play(env, 6), 0)
    returns = [1, 2.5, 5.25, 3, 6.5]
    moments = statistics(env)["reward"]
    assert moments.count == 5
    assert moments.var == pytest.approx(np.var(returns))
    assert got[3] == 0
    assert got[5] == pytest.approx(5 / np.std(returns), rel=1e-6)
    assert got[2] == pytest.approx(4 / np.std(returns[:3]), rel=1e-6)
