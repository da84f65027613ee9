"""DQN in worlds whose values can be worked out by hand."""

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from scenes import CPU, FLAT, Lanes, Loop, every_window, filled, make, shaken

from rookery.algorithms.dqn import DQN, noisy_layers
from rookery.algorithms.off_policy import transition_td
from rookery.data.steps import Batch, Steps
from rookery.errors import BadInput
from rookery.learning.learner import Learner, LearnerConfig
from rookery.learning.reduce import Reducer
from rookery.networks.build import NetConfig
from rookery.networks.q import expected_value, project_onto_atoms

GAMMA, LIMIT = 0.8, 4
LINEAR = NetConfig(hidden=())
BASE = {"gamma": GAMMA, "capacity": 1_000, "warm_up": 64, "batch_size": 64, "max_grad_norm": 0.0}
BASE |= {"rollout_steps": 4, "epsilon_end": 0.5, "epsilon_steps": 0, "target_period": 4}
SGD = {"optimizer": "sgd", "learning_rate": 1.0, "loss": "mse", "samples_per_insert": 8.0}
ADAM = {"learning_rate": 0.03, "epsilon": 1e-8, "samples_per_insert": 8.0}
RAINBOW = {"double": True, "dueling": True, "n_step": 3, "alpha": 0.6}
C51 = {"atoms": 33, "value_min": 0.0, "value_max": 8.0}
VARIANTS = {
    "plain": SGD | {"double": False},
    "improved": SGD | RAINBOW | {"learning_rate": 0.5},
    "c51": ADAM | RAINBOW | C51,
    "noisy": ADAM | {"noisy": True, "loss": "mse", "learning_rate": 0.02},
}
CLOSE = {"plain": 0.02, "improved": 0.02, "c51": 0.1, "noisy": 0.15}


class Chain(Lanes):
    """States 0 to 4 on a line; 0 goes left, 1 right; reaching 4 pays 1 and is the end."""

    END = 4

    def __init__(self, lanes):
        hot = np.eye(self.END + 1, dtype=np.float32)
        box = spaces.Box(0, 1, (self.END + 1,), np.float32)
        self.state = np.zeros(lanes, int)
        super().__init__([None] * lanes, lambda lane, e, t: hot[self.state[lane]], obs_space=box)

    def begin(self, lane):
        self.state[lane] = (self.episode[lane] + 1 + lane) % self.END
        super().begin(lane)

    def step(self, actions):
        for lane, action in enumerate(actions):
            if self.terminated[lane]:
                self.terminated[lane] = False
                self.reward[lane] = 99.0
                self.begin(lane)
                continue
            self.state[lane] = max(0, self.state[lane] + (1 if action else -1))
            self.obs[lane] = self.see(lane, 0, 0)
            self.terminated[lane] = self.state[lane] == self.END
            self.reward[lane] = float(self.terminated[lane])
        return self.obs, self.reward, self.terminated, self.truncated, {}


def values(algorithm, obs):
    """Values by the network without noise."""
    for layer in noisy_layers(algorithm.network):
        layer.zero_noise()
    with torch.no_grad():
        return algorithm.q_values(obs, None, ())[0]


def learned(env, variant, rounds, **more):
    algorithm = make(DQN, env, LINEAR, **(BASE | VARIANTS[variant] | more))
    Loop(algorithm, env).run(rounds)
    return algorithm


ROUNDS = {"plain": 100, "improved": 130, "c51": 100, "noisy": 150}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_reward_of_1_for_ever_is_worth_its_endless_sum(variant):
    env = Lanes([[(3, "truncated")], [(5, "truncated"), (2, "truncated")]] * 4)
    algorithm = learned(env, variant, ROUNDS[variant])
    q = values(algorithm, torch.ones(1, 1))
    endless = 1 / (1 - GAMMA)
    assert q.max().item() == pytest.approx(endless, rel=CLOSE[variant])
    if variant != "noisy":  # its noise may die down before all actions are known
        assert q.min().item() == pytest.approx(endless, rel=CLOSE[variant])


@pytest.mark.parametrize(
    ("variant", "ending"), [("plain", "both"), *((name, "terminated") for name in VARIANTS)]
)
def test_a_reward_of_1_to_the_end_is_worth_its_finite_sum(variant, ending):
    hot = np.eye(LIMIT + 1, dtype=np.float32)
    box = spaces.Box(0, 1, (LIMIT + 1,), np.float32)
    env = Lanes([[(LIMIT, ending)]] * 8, lambda lane, e, t: hot[t], obs_space=box)
    algorithm = learned(env, variant, ROUNDS[variant])
    q = values(algorithm, torch.eye(LIMIT + 1))[:LIMIT]
    by_hand = torch.tensor([sum(GAMMA**k for k in range(LIMIT - t)) for t in range(LIMIT)])
    close = {"rtol": CLOSE[variant], "atol": CLOSE[variant]}
    torch.testing.assert_close(q.amax(-1), by_hand, **close)
    if variant != "noisy":
        torch.testing.assert_close(q.amin(-1), by_hand, **close)


def test_the_chain_is_solved_exactly():
    env = Chain(8)
    algorithm = learned(env, "plain", 100)
    q = values(algorithm, torch.eye(5))[:4]
    best = [GAMMA ** (3 - s) for s in range(4)]
    left = [GAMMA * best[max(0, s - 1)] for s in range(4)]
    torch.testing.assert_close(q, torch.tensor([left, best]).T, atol=0.02, rtol=0.02)


# ---------------------------------------------------------------- distributions


@pytest.mark.parametrize("double", [True, False])
def test_the_cost_of_a_distribution_by_hand(double):
    env = Lanes([[(3, "terminated")], [(4, "truncated")]], lambda b, e, t: [np.sin(b + 2 * t + e)])
    more = {"atoms": 7, "value_min": -2.0, "value_max": 2.0, "double": double, "alpha": 0.5}
    algorithm = make(DQN, env, **(BASE | more))
    shaken(algorithm.network, 1)
    shaken(algorithm.target, 2)
    memory, _ = filled(algorithm, env, rounds=5)
    batch = every_window(memory).batch
    count = len(batch.weight)
    batch = batch._replace(weight=torch.linspace(0.2, 1, count))
    steps = batch.steps
    with torch.no_grad():
        now = algorithm.network(steps.obs[0])
        later = algorithm.target(steps.obs[1])
        judge = algorithm.network(steps.obs[1]) if double else later
    costs = []
    for b in range(count):
        means = [float(expected_value(judge[b, a], algorithm.atoms)) for a in range(2)]
        best = later[b, int(np.argmax(means))].softmax(-1)
        reward, discount = steps.reward[0, b, None], steps.discount[0, b, None]
        goal = project_onto_atoms(best.unsqueeze(0), reward, discount, algorithm.atoms)
        costs.append(-(goal[0] * now[b, int(steps.action[0, b])].log_softmax(-1)).sum())
    costs = torch.stack(costs)
    out = algorithm.loss(batch, algorithm.statistics(batch))
    torch.testing.assert_close(out.total, (costs * batch.weight).mean())
    torch.testing.assert_close(out.priorities, costs)
    assert memory.ring.extra == {}


def test_the_target_distribution_gets_no_gradient():
    algorithm = make(DQN, FLAT, **(BASE | {"atoms": 5}))
    obs = torch.randn(2, 6, 3).requires_grad_()
    row = torch.full((1, 6), 0.5)
    steps = Steps(obs, torch.ones(1, 6).long(), row, row, torch.ones(1, 6), {})
    batch = Batch(steps, (), torch.arange(6), torch.ones(6))
    algorithm.loss(batch, algorithm.statistics(batch)).total.backward()
    assert bool((obs.grad[0] != 0).any())
    assert bool((obs.grad[1] == 0).all())


# ---------------------------------------------------------------- noise


def test_both_networks_have_new_noise_in_every_update():
    env = Lanes([[(3, "terminated")]] * 2)
    algorithm = make(DQN, env, **(BASE | {"noisy": True}))
    memory, _ = filled(algorithm, env, rounds=5)
    batch = every_window(memory).batch
    learner = Learner(algorithm, LearnerConfig(micro_batches=2), Reducer(), CPU)
    seen = []
    for _ in range(2):
        learner.update(batch)
        layers = noisy_layers(algorithm.network) + noisy_layers(algorithm.target)
        assert len(layers) == 4
        seen += [layer.column.clone() for layer in layers]
    for i, one in enumerate(seen):
        assert bool((one != 0).all())
        assert all(not torch.equal(one, other) for other in seen[:i])


def test_sigmas_are_learned():
    env = Lanes([[(3, "terminated")]] * 2)
    algorithm = make(DQN, env, **(BASE | {"noisy": True, "warm_up": 0}))
    before = algorithm.network.head.advantage.out.weight_sigma.detach().clone()
    loop = Loop(algorithm, env).run(30)
    assert loop.learner.updates > 0
    assert not torch.equal(algorithm.network.head.advantage.out.weight_sigma, before)


# ---------------------------------------------------------------- memory


def test_new_priorities_reach_the_memory():
    env = Lanes([[(3, "terminated")], [(5, "truncated")]], lambda b, e, t: [np.sin(b + t)])
    more = {"alpha": 1.0, "n_step": 2, "learning_rate": 1e-12, "warm_up": 0, "batch_size": 32}
    algorithm = make(DQN, env, **(BASE | more))
    loop = Loop(algorithm, env).run(20)
    shaken(algorithm.network)
    batch = loop.memory.sample()
    q, goal = transition_td(algorithm.network, algorithm.target, batch, True)
    error = goal - q
    outcome = loop.learner.update(batch)
    torch.testing.assert_close(outcome.priorities, error.detach().abs())
    loop.memory.reweigh(batch.keys, outcome.priorities)
    found = every_window(loop.memory)
    kept = {int(key): float(p) for key, p in zip(found.batch.keys, found.priority, strict=True)}
    for key, priority in zip(batch.keys.tolist(), outcome.priorities.tolist(), strict=True):
        assert kept[key] == pytest.approx(max(priority, 1e-6), rel=1e-5)


def test_a_core_is_refused():
    with pytest.raises(BadInput, match=r"net\.core=gru.*r2d2"):
        make(DQN, FLAT, NetConfig(core="gru"))


def test_an_empty_support_is_refused():
    with pytest.raises(BadInput, match=r"algo\.value_min=1.*algo\.value_max=1"):
        make(DQN, FLAT, value_min=1.0, value_max=1.0)
