"""Actions that an observation's mask rules out are never taken, never drawn and never looked
forward to."""

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from scenes import Loop, make, shaken
from torch import nn

import rookery
from rookery.algorithms.apex import ApeX
from rookery.algorithms.base import Spaces
from rookery.algorithms.dqn import DQN
from rookery.algorithms.off_policy import (
    EpsilonDraw,
    chosen_value,
    epsilon_greedy,
    sequence_td,
    transition_td,
)
from rookery.algorithms.ppo import PPO
from rookery.algorithms.r2d2 import R2D2, mixed_priority
from rookery.algorithms.vpg import VPG
from rookery.data.steps import Batch, Steps
from rookery.data.tree import tree_map
from rookery.envs import EnvOptions, make_env, register_env
from rookery.envs.factory import server_factory
from rookery.errors import BadInput
from rookery.networks.build import NetConfig
from rookery.networks.encoders import legal_actions_of, without_action_mask
from rookery.training.trained import evaluate_random

ACTIONS = 4
MASK = spaces.MultiBinary(ACTIONS)
DISCRETE = spaces.Discrete(ACTIONS)
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))]


def masks(*rows):
    return {"action_mask": torch.tensor(rows, dtype=torch.int8)}


# ---------------------------------------------------------------- masks


def test_where_nothing_is_legal_nothing_is_ruled_out():
    legal = legal_actions_of(spaces.Dict(obs=MASK, action_mask=MASK), DISCRETE)
    assert legal(masks([1, 0, 0, 1], [0, 0, 0, 0])).tolist() == [
        [True, False, False, True],
        [True, True, True, True],
    ]


def test_of_stacked_masks_the_newest_counts():
    stacked = spaces.Box(0, 1, (2, ACTIONS), np.int8)
    legal = legal_actions_of(spaces.Dict(obs=MASK, action_mask=stacked), DISCRETE)
    assert legal(masks([[1, 1, 1, 1], [0, 1, 0, 0]])).tolist() == [[False, True, False, False]]


def test_the_mask_does_not_describe_the_state():
    space = spaces.Dict(b=MASK, action_mask=MASK, a=DISCRETE)
    assert without_action_mask(space) == spaces.Dict(b=MASK, a=DISCRETE)
    assert without_action_mask(MASK) is MASK
    with pytest.raises(BadInput, match="add a key for the state"):
        without_action_mask(spaces.Dict(action_mask=MASK))


def test_a_board_beside_a_mask_is_seen_cell_by_cell():
    """Not as a set of rows, whose order would not matter."""
    where = Spaces(spaces.Dict(board=spaces.Box(-1, 1, (3, 3)), action_mask=MASK), DISCRETE)
    network = make(DQN, where, capacity=100).network
    board = torch.arange(9.0).view(1, 3, 3)
    mask = torch.ones(1, ACTIONS, dtype=torch.int8)
    q, other = (network({"board": x, "action_mask": mask}) for x in (board, board.flip(1)))
    assert not torch.allclose(q, other)


@pytest.mark.parametrize(
    ("mask", "action", "told"),
    [
        (MASK, spaces.Box(0, 1, (ACTIONS,)), "Discrete"),
        (spaces.MultiBinary(3), DISCRETE, r"MultiBinary\(4\)"),
        (spaces.Box(0, 1, (ACTIONS,), np.float32), DISCRETE, "integer Box"),
        (spaces.Discrete(2), DISCRETE, "one number per action"),
    ],
)
def test_masks_that_do_not_fit_are_refused(mask, action, told):
    with pytest.raises(BadInput, match=f"action_mask.*{told}"):
        legal_actions_of(spaces.Dict(obs=MASK, action_mask=mask), action)


def test_observations_without_a_mask_allow_everything():
    assert legal_actions_of(spaces.Dict(obs=MASK), DISCRETE) is None
    assert legal_actions_of(MASK, DISCRETE) is None


# ---------------------------------------------------------------- choosing


def test_random_actions_are_drawn_evenly_from_the_legal_ones():
    count = 30_000
    legal = torch.tensor([[False, True, False, True, True]]).expand(count, -1)
    draw = torch.rand(2, count, generator=torch.Generator().manual_seed(0))
    q = torch.zeros(count, 5)
    action = epsilon_greedy(q, EpsilonDraw(torch.ones(count), draw), legal)
    seen = action.bincount(minlength=5).double()
    assert seen[[0, 2]].tolist() == [0, 0]
    chi_square = ((seen[[1, 3, 4]] - count / 3) ** 2 / (count / 3)).sum()
    assert chi_square < 13.8  # 0.1 % of fair draws are beyond


def test_the_largest_draw_is_legal_too():
    legal = torch.tensor([[True, True, False, False]])
    numbers = torch.tensor([[0.0], [np.nextafter(np.float32(1), np.float32(0))]])
    draw = EpsilonDraw(torch.ones(1), numbers)
    assert epsilon_greedy(torch.zeros(1, 4), draw, legal).tolist() == [1]


class Fixed(nn.Module):
    """The same values for every observation."""

    def __init__(self, *q):
        super().__init__()
        self.q = torch.tensor(q)

    def forward(self, obs):
        return self.q.expand(len(obs), -1)


@pytest.mark.parametrize(("double", "goal"), [(True, 1 + 0.5 * 7), (False, 1 + 0.5 * 8)])
def test_targets_look_at_legal_actions_only(double, goal):
    """Of actions 1 and 2 the network prefers 1, worth 7 to the target, which prefers 2."""
    network, target = Fixed(9.0, 5.0, 4.0), Fixed(99.0, 7.0, 8.0)
    row = [torch.tensor([[x]]) for x in (1.0, 0.5, 1.0)]
    steps = Steps(torch.zeros(2, 1, 1), torch.zeros(1, 1, dtype=torch.int16), *row, {})
    legal = torch.tensor([[False, True, True]])
    q, found = transition_td(network, target, Batch(steps, ()), double, legal)
    assert q.tolist() == [9.0]
    assert found.tolist() == [goal]


# ---------------------------------------------------------------- whole algorithms


class Moves(gymnasium.Env):
    """Two of the actions 1 to 3 are legal at a time, and taking another raises. The smaller pays
    1, the larger -1. Ten moves make an episode; after the last, nothing is legal."""

    observation_space = spaces.Dict(seen=spaces.Box(-1, 1, (2,), np.float32), action_mask=MASK)
    action_space = DISCRETE

    def __init__(self, beside=False):
        self.beside = beside
        if beside:
            self.observation_space = Moves.observation_space["seen"]

    def look(self):
        self.legal = np.zeros(ACTIONS, np.int8)
        if self.left:
            self.legal[self.np_random.choice([1, 2, 3], 2, replace=False)] = 1
        seen = np.ones(2, np.float32)
        return seen if self.beside else {"seen": seen, "action_mask": self.legal.copy()}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        return self.look(), {"action_mask": self.legal.copy()}

    def step(self, action):
        assert self.legal[action], f"{action} is illegal"
        reward = 1.0 if action == self.legal.argmax() else -1.0
        self.left -= 1
        return self.look(), reward, not self.left, False, {"action_mask": self.legal.copy()}


register_env("moves", Moves, replace=True)
REPLAY = {"capacity": 2_000, "warm_up": 100, "batch_size": 16, "learning_rate": 1e-3}
REPLAY |= {"samples_per_insert": 4.0, "target_period": 50, "gamma": 0.5}
LADDER = {"epsilon_base": 0.8, "epsilon_power": 1.0}
SEQUENCES = {"burn_in": 2, "unroll": 8, "n_step": 2}
POLICY = {"learning_rate": 0.01, "anneal": False, "gamma": 0.5}
CASES = {
    "ppo": (PPO, POLICY | {"rollout_steps": 32}),
    "vpg": (VPG, POLICY | {"episodes": 32}),
    "dqn": (DQN, REPLAY | {"epsilon_steps": 1_000}),
    "rainbow": (
        DQN,
        REPLAY
        | {"epsilon_steps": 1_000, "atoms": 11, "value_min": -2.0, "value_max": 2.0, "alpha": 0.5},
    ),
    "apex": (ApeX, REPLAY | LADDER | {"rollout_steps": 4}),
    "r2d2": (R2D2, REPLAY | LADDER | SEQUENCES),
}


def net(kind):
    return NetConfig(hidden=(16,), core="lstm" if kind is R2D2 else "none", core_size=8)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", SEEDS)
def test_legal_actions_are_learned_and_no_other_is_taken(name, seed, tmp_path):
    """A legal policy at random scores 0 on average; the best one 10 in every episode."""
    kind, settings = CASES[name]
    run = rookery.train(
        name if name != "rainbow" else "dqn",
        "moves",
        backend="serial",
        envs=4,
        env_steps=4_000,
        seed=seed,
        algo=settings,
        net={"hidden": (16,)} | ({"core_size": 8} if kind is R2D2 else {}),
        use_preset=False,
        runs_dir=tmp_path,
    )
    assert run.evaluate(episodes=20)["return_mean"] >= 9
    assert run.evaluate(episodes=20, greedy=False)["return_mean"] > 0
    # Half of the actions are drawn among the legal ones, and half of those pay -1.
    assert 0 < run.evaluate(episodes=40, epsilon=0.5)["return_mean"] < 9


def test_the_random_baseline_makes_legal_moves():
    assert abs(evaluate_random("moves", EnvOptions(), episodes=100)["return_mean"]) < 1.5


@pytest.mark.parametrize("settings", [{}, {"double": False}], ids=["double", "single"])
@pytest.mark.parametrize("name", ["dqn", "rainbow", "apex", "r2d2"])
def test_what_is_never_legal_is_never_looked_forward_to(name, settings):
    """Action 0 is never legal: losses and priorities are the same however much it is valued, as
    they are not where the masks say that it is."""
    kind, chosen = CASES[name]
    env = make_env("moves", num_envs=4)
    algorithm = make(kind, env, net(kind), **(chosen | settings | {"alpha": 0.6}))
    shaken(algorithm.network, 1)
    shaken(algorithm.target, 2)
    loop = Loop(algorithm, env)
    for _ in range(40):
        loop.memory.add(algorithm.prepare(loop.actor.collect()))
    batch = loop.memory.sample()
    open_steps = batch.steps._replace(
        obs=batch.steps.obs | {"action_mask": torch.ones_like(batch.steps.obs["action_mask"])}
    )
    modest = [judged(algorithm, part) for part in (batch, batch._replace(steps=open_steps))]
    tempt(algorithm)
    tempted = [judged(algorithm, part) for part in (batch, batch._replace(steps=open_steps))]
    torch.testing.assert_close(tempted[0], modest[0], rtol=1e-3, atol=1e-3)
    assert (tempted[1] - modest[1]).abs().max() > 0.1
    first = loop.actor.collect().steps
    playing = first.obs["action_mask"].any(-1)
    assert (first.extra.get("value", first.reward)[playing] < 10).all()


@pytest.mark.parametrize("double", [True, False])
def test_each_row_of_a_sequence_has_its_own_legal_actions(double):
    kind, chosen = CASES["r2d2"]
    env = make_env("moves", num_envs=4)
    algorithm = make(kind, env, net(kind), **(chosen | {"double": double}))
    loop = Loop(algorithm, env).run(10)
    config, batch = algorithm.config, loop.memory.sample()
    inputs = algorithm.inputs_of(batch)
    q = algorithm.unrolled(algorithm.network, batch, inputs).detach()
    target_q = algorithm.unrolled(algorithm.target, batch, inputs).detach()
    value = torch.zeros(q.shape[:2])
    for t in range(q.shape[0]):
        for b in range(q.shape[1]):
            mask = batch.steps.obs["action_mask"][config.burn_in + t, b]
            legal = mask.nonzero().flatten().tolist() or range(ACTIONS)
            best = max(legal, key=lambda a, t=t, b=b: (q if double else target_q)[t, b, a])
            value[t, b] = target_q[t, b, best]
    steps = tree_map(lambda x: x[config.burn_in :], batch.steps._replace(obs=(), extra={}))
    taken = chosen_value(q[: config.unroll], steps.action[: config.unroll])
    error = sequence_td(taken, value, steps, config.gamma, config.n_step, config.rescale)
    expected = mixed_priority(error, steps.mask[: config.unroll], config.eta)
    loss = algorithm.loss(batch, algorithm.statistics(batch))
    torch.testing.assert_close(loss.priorities, expected)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("core", ["none", "gru"])
def test_policies_act_and_learn_with_the_same_masks(core, shared):
    """Before the first update, what the loss computes is what the actor did."""
    env = make_env("moves", num_envs=4)
    layers = NetConfig(hidden=(16,), core=core, core_size=8, shared=shared)
    algorithm = make(PPO, env, layers, rollout_steps=32)
    loop = Loop(algorithm, env)
    segment = loop.actor.collect()
    legal = segment.steps.obs["action_mask"] > 0
    playing = legal.any(-1)
    params = segment.steps.extra["params"][playing]
    torch.testing.assert_close(params.softmax(-1)[~legal[playing]].max().item(), 0.0)
    loop.memory.add(algorithm.prepare(segment))
    batch = next(loop.memory.batches())
    loss = algorithm.loss(batch, algorithm.statistics(batch))
    assert loss.metrics["kl"].item() == pytest.approx(0, abs=1e-6)
    # Two of four actions are legal where anything is, and the first policy is even.
    share = batch.steps.obs["action_mask"].any(-1)[batch.steps.mask > 0].float().mean()
    entropy = share * np.log(2) + (1 - share) * np.log(4)
    assert loss.metrics["entropy"].item() == pytest.approx(entropy.item(), rel=1e-4)


def judged(algorithm, batch):
    """Loss and priorities."""
    loss = algorithm.loss(batch, algorithm.statistics(batch))
    return torch.cat([loss.total.detach()[None], loss.priorities])


def tempt(algorithm):
    """Have the networks value action 0 above all, and the others as before."""
    for network in (algorithm.network, algorithm.target):
        atoms = getattr(algorithm.config, "atoms", 1)
        network.head.advantage.out.bias.data[atoms - 1] += 1_000
        if algorithm.config.dueling:  # advantages lose their mean
            network.head.value.out.bias.data[-1] += 1_000 / ACTIONS


# ---------------------------------------------------------------- environments


def test_masks_told_beside_observations_are_put_into_them():
    register_env("moves-beside", lambda: Moves(beside=True), replace=True)
    env = make_env("moves-beside", EnvOptions(action_mask=True), num_envs=3)
    plain = make_env("moves", num_envs=3)
    assert env.single_observation_space == spaces.Dict(
        obs=Moves.observation_space["seen"], action_mask=MASK
    )
    obs, _ = env.reset(seed=3)
    same, _ = plain.reset(seed=3)
    for _ in range(25):
        assert env.observation_space.contains(obs)
        np.testing.assert_array_equal(obs["action_mask"], same["action_mask"])
        np.testing.assert_array_equal(obs["obs"], same["seen"])
        action = obs["action_mask"].argmax(-1)
        obs, same = env.step(action)[0], plain.step(action)[0]


def test_taxis_masks_are_those_of_its_states():
    name = next(name for name in gymnasium.registry if name.startswith("Taxi-"))
    env = make_env(name, EnvOptions(action_mask=True, time_limit=7), num_envs=2)
    taxi = gymnasium.make(name).unwrapped
    obs, _ = env.reset(seed=0)
    for step in range(30):
        expected = [taxi.action_mask(int(state)) for state in obs["obs"]]
        np.testing.assert_array_equal(obs["action_mask"], expected)
        obs, *_ = env.step(np.array([step % 6, (step * 5) % 6]))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("CartPole-v1", r'needs info\["action_mask"\] at every reset and step'),
        ("Pendulum-v1", "needs a Discrete action space"),
        ("moves", 'already has the key "action_mask"'),
        ("tcp://127.0.0.1:9", "give it to 'rookery serve'"),
    ],
)
def test_environments_that_tell_no_masks_are_refused(name, told):
    with pytest.raises(BadInput, match=rf"env\.action_mask.*{told}"):
        make_env(name, EnvOptions(action_mask=True)).reset(seed=0)


def test_one_life_and_masks_are_refused_together():
    with pytest.raises(BadInput, match=r"env\.one_life.*action_mask"):
        make_env("moves", EnvOptions(one_life=True))


def test_a_lane_that_tells_no_mask_is_named():
    class Silent(Moves):
        def step(self, action):
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, terminated, truncated, info if self.left > 8 else {}

    made = iter([Moves(beside=True), Silent(beside=True)])
    register_env("moves-silent", lambda: next(made), replace=True)
    env = make_env("moves-silent", EnvOptions(action_mask=True), num_envs=2)
    obs, _ = env.reset(seed=0)
    obs, *_ = env.step(obs["action_mask"].argmax(-1))
    with pytest.raises(BadInput, match="got none from environment 1"):
        env.step(obs["action_mask"].argmax(-1))


def test_served_environments_observe_their_masks():
    register_env("moves-beside", lambda: Moves(beside=True), replace=True)
    env = server_factory("moves-beside", EnvOptions(action_mask=True), threads=1)(2, False)
    assert env.single_observation_space["action_mask"] == MASK
    assert env.reset(seed=0)[0]["action_mask"].sum(-1).tolist() == [2, 2]


def test_policies_refuse_masks_of_other_action_spaces():
    where = Spaces(spaces.Dict(obs=MASK, action_mask=MASK), spaces.MultiDiscrete([2, 2]))
    with pytest.raises(BadInput, match="action_mask"):
        make(PPO, where)
