"""What the actor stores, counts and leaves out."""

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from scenes import CPU, RESET_REWARD, Lanes, Loop, make, spaces_of

from rookery.algorithms.base import Collection
from rookery.algorithms.ppo import PPO
from rookery.data.steps import FinishedEpisode
from rookery.data.tree import tree_map
from rookery.envs import EnvOptions, make_env, pool_of
from rookery.envs.wrappers.episodes import EpisodeStatistics
from rookery.learning.actor import Actor
from rookery.networks.build import NetConfig


def leaves(tree):
    """The arrays of a tree, in order."""
    found = []
    tree_map(found.append, tree)
    return found


def told(lane, episode, t):
    """An observation that says where it was seen."""
    return [lane * 100 + episode * 10 + t]


def an_actor(env, net=None, steps=None, episodes=None, seed=0):
    algorithm = make(PPO, env, net)
    return Actor(env, algorithm, Collection(steps, episodes), CPU, seed)


LANES = [[(2, "terminated"), (3, "truncated")], [(4, "both")]]
ENDED = [
    FinishedEpisode(2, 2, truncated=False),
    FinishedEpisode(4, 4, truncated=False),
    FinishedEpisode(3, 3, truncated=True),
]


def test_rows_masks_and_discounts_by_hand():
    segment = an_actor(Lanes(LANES, told), steps=8).collect()
    steps = segment.steps
    assert steps.obs[:, 0, 0].tolist() == [0, 1, 2, 10, 11, 12, 13, 20]
    assert steps.mask[:, 0].tolist() == [1, 1, 0, 1, 1, 1, 0, 1]
    assert steps.discount[:, 0].tolist() == [1, 0, 1, 1, 1, 1, 1, 1]
    assert steps.reward[:, 0].tolist() == [1, 1, 0, 1, 1, 1, 0, 1]
    # Both flags: termination wins.
    assert steps.obs[:, 1, 0].tolist() == [100, 101, 102, 103, 104, 110, 111, 112]
    assert steps.mask[:, 1].tolist() == [1, 1, 1, 1, 0, 1, 1, 1]
    assert steps.discount[:, 1].tolist() == [1, 1, 1, 0, 1, 1, 1, 1]
    assert segment.next_obs[:, 0].tolist() == [21, 113]


def test_the_next_segment_goes_on_where_the_last_one_ended():
    one = an_actor(Lanes(LANES, told), steps=12).collect()
    actor = an_actor(Lanes(LANES, told), steps=4)
    parts = [actor.collect() for _ in range(3)]
    for name in ("obs", "mask", "discount", "reward", "action"):
        joined = torch.cat([getattr(part.steps, name) for part in parts])
        assert torch.equal(joined, getattr(one.steps, name))
    assert torch.equal(parts[0].next_obs, parts[1].steps.obs[0])


def test_reset_rows_count_as_no_step_and_pay_nothing():
    actor = an_actor(Lanes(LANES, told), steps=8)
    steps = actor.collect().steps
    assert actor.env_steps == 13 == steps.mask.sum()
    assert RESET_REWARD not in steps.reward


def test_stored_rows_do_not_change_when_the_environment_reuses_its_buffers():
    actor = an_actor(Lanes(LANES, told, pay=lambda lane, t, action: lane * 10 + t + 1), steps=8)
    segment = actor.collect()
    assert segment.steps.reward[:, 0].tolist() == [1, 2, 0, 1, 2, 3, 0, 1]
    assert segment.steps.reward[:, 1].tolist() == [11, 12, 13, 14, 0, 11, 12, 13]
    before = tree_map(torch.clone, segment)
    actor.collect()
    actor.env.obs[:] = actor.env.reward[:] = 1234
    for x, y in zip(leaves(segment), leaves(before), strict=True):
        assert torch.equal(x, y)
    assert len(segment.steps.obs.unique()) > 8


class Nested(Lanes):
    """The same story told in a Dict of a Tuple, in buffers that are reused."""

    def __init__(self):
        super().__init__(LANES, told)
        one = self.single_observation_space
        self.single_observation_space = spaces.Dict({"x": one, "y": spaces.Tuple([one, one])})
        self.twice = self.obs.copy()

    def dressed(self):
        self.twice[:] = 2 * self.obs
        return {"x": self.obs, "y": (self.twice, self.obs)}

    def reset(self, **options):
        super().reset(**options)
        return self.dressed(), {}

    def step(self, actions):
        _, *rest = super().step(actions)
        return self.dressed(), *rest


def test_nested_observations_are_stored_leaf_by_leaf():
    nested = Nested()
    actor = an_actor(nested, steps=8)
    obs = actor.collect().steps.obs
    actor.collect()
    assert torch.equal(obs["y"][0], 2 * obs["x"])
    assert torch.equal(obs["y"][1], obs["x"])
    assert obs["x"].shape == (8, 2, 1)


def test_the_environment_gets_the_action_its_space_asks_for():
    got = []
    space = spaces.Box(np.float32([-3, 0]), np.float32([5, 1]))
    env = Lanes(
        LANES, told, pay=lambda b, t, a: got.append((b, a.copy())) or 0.0, action_space=space
    )
    steps = an_actor(env, steps=2).collect().steps
    first = np.stack([a for _, a in got[:2]])
    assert first.dtype == np.float32
    scaled = steps.action[0].numpy() * [4, 0.5] + [1, 0.5]
    np.testing.assert_allclose(first, np.clip(scaled, space.low, space.high), rtol=1e-6)


def test_the_seed_decides_the_actions():
    def actions(seed):
        return an_actor(Lanes(LANES, told), steps=30, seed=seed).collect().steps.action.tolist()

    assert actions(1) == actions(1) != actions(2)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_exactly_so_many_episodes_with_each_lanes_share_fixed(count):
    lengths = [2, 9, 30]
    env = EpisodeStatistics(Lanes([[(n, "terminated")] for n in lengths], told))
    actor = an_actor(env, episodes=count)
    for _ in range(2):  # the second batch starts afresh
        segment = actor.collect()
        share = [count // 3 + (lane < count % 3) for lane in range(3)]
        played = actor.take_played().episodes
        assert len(played) == count
        expected = sorted(n for n, k in zip(lengths, share, strict=True) for _ in range(k))
        assert sorted(episode.length for episode in played) == expected
        assert sorted(episode.episode_return for episode in played) == expected
        assert not any(episode.truncated for episode in played)
        steps = segment.steps
        rows = [n * k for n, k in zip(lengths, share, strict=True)]
        assert steps.mask.sum(0).tolist() == rows
        assert (steps.reward * steps.mask).sum(0).tolist() == rows
        assert (steps.reward * (1 - steps.mask)).sum() == 0
        ended = ((steps.discount == 0) & (steps.mask > 0)).sum(0)
        assert ended.tolist() == share
        # No row is collected beyond the last episode's end.
        assert len(steps.mask) == max(
            (n + 1) * k - 1 for n, k in zip(lengths, share, strict=True) if k
        )


def test_every_collected_episode_starts_at_its_start():
    actor = an_actor(Lanes([[(3, "truncated")], [(5, "terminated")]], told), episodes=3)
    actor.collect()
    segment = actor.collect()
    assert (segment.steps.obs[0, :, 0] % 10).tolist() == [0, 0]


def test_recurrent_state_is_cleared_where_an_episode_starts():
    net = NetConfig(hidden=(8,), core="lstm", core_size=4)
    env = Lanes(LANES, lambda b, e, t: [t + 1.0])
    algorithm = make(PPO, env, net)
    actor = Actor(env, algorithm, Collection(steps=1), CPU, 0)
    cleared = []
    for _ in range(8):
        segment = actor.collect()
        zero = [bool((segment.state[0][b] == 0).all()) for b in range(2)]
        cleared.append(zero)
    assert [z[0] for z in cleared] == [True, False, False, True, False, False, False, True]
    assert [z[1] for z in cleared] == [True, False, False, False, False, True, False, False]


def test_the_state_after_a_segment_is_the_state_before_the_next():
    net = NetConfig(hidden=(8,), core="gru", core_size=4)
    env = Lanes(LANES, told)
    actor = an_actor(env, net, steps=5)
    one, two = actor.collect(), actor.collect()
    assert all(torch.equal(a, b) for a, b in zip(one.next_state, two.state, strict=True))


def test_what_was_collected_can_be_learned_from():
    net = NetConfig(hidden=(8,), core="gru", core_size=4)
    segment = an_actor(Lanes(LANES, told), net, steps=5).collect()
    assert not any(leaf.is_inference() for leaf in leaves(segment))
    assert not any(leaf.requires_grad for leaf in leaves(segment))


def test_take_played_returns_each_episode_once():
    env = EpisodeStatistics(Lanes(LANES, told))
    loop = Loop(make(PPO, spaces_of(env), rollout_steps=8), env)
    loop.actor.collect()
    assert loop.actor.take_played().episodes == ENDED
    assert loop.actor.take_played().episodes == []


@pytest.mark.parametrize("wrapped", [False, True])
def test_observations_of_a_pool_are_gathered_where_the_pool_is(wrapped):
    """The same rows as the environment hands out, without a copy of them; a wrapper that changes
    observations forbids it."""
    kwargs = {"obs": "{code: discrete(9), numbers: float[3]}", "data": "synthetic", "pool": 7}
    options = EnvOptions(kwargs=kwargs, normalize_obs=wrapped)
    env = make_env("rookery/Synthetic-v1", options, num_envs=4)
    assert (pool_of(env) is None) == wrapped
    if wrapped:
        return
    segments = []
    for pooled in (None, pool_of(env)):
        algorithm = PPO(spaces_of(env), PPO.Config(), NetConfig(), CPU)
        torch.manual_seed(0)
        for parameter in algorithm.network.parameters():
            torch.nn.init.normal_(parameter)
        actor = Actor(env, algorithm, Collection(20), CPU, 5, 11, None, pooled)
        segments.append(actor.collect())
    plain, gathered = segments
    for name in ("code", "numbers"):
        assert torch.equal(gathered.steps.obs[name], plain.steps.obs[name])
        assert torch.equal(gathered.next_obs[name], plain.next_obs[name])
    assert torch.equal(gathered.steps.action, plain.steps.action)
    assert len(plain.steps.obs["numbers"].flatten(0, 1).unique(dim=0)) == 7
