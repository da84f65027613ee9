"""What DQN, Ape-X and R2D2 share: TD errors, first priorities, target networks, checks."""

from types import SimpleNamespace

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from scenes import CPU, FLAT, Lanes, Loop, Spy, every_window, filled, make, shaken
from torch import nn

import rookery
from rookery.algorithms.apex import ApeX, ApeXConfig
from rookery.algorithms.base import Spaces
from rookery.algorithms.dqn import DQN, DQNConfig
from rookery.algorithms.off_policy import chosen_value, cost, recorded_errors, transition_td
from rookery.algorithms.r2d2 import R2D2, R2D2Config
from rookery.algorithms.replay_config import ReplayConfig
from rookery.backends.factory import make_backend
from rookery.backends.serial import learn_from
from rookery.data.steps import Batch, Steps
from rookery.envs import EnvOptions, frame_stack_of, make_env, register_env
from rookery.errors import BadInput
from rookery.learning.learner import Learner, LearnerConfig
from rookery.learning.reduce import Reducer
from rookery.memory.distributions import Prioritized
from rookery.networks.build import NetConfig
from rookery.runs import checkpoint

KINDS = [DQN, ApeX, R2D2]
SMALL = {"capacity": 2_000, "warm_up": 0, "batch_size": 16}
SHORT = {"burn_in": 2, "unroll": 4, "n_step": 2}
MIXED = [[(3, "terminated"), (5, "truncated")], [(9, "truncated")], [(4, "both")]]
SEEN = spaces.Box(-1, 1, (2,), np.float32)


def see(lane, episode, t):
    return np.sin([lane + 3 * episode + t, 2 * lane + episode + 5 * t])


def pay(lane, t, action):
    return np.cos(lane + 2 * t + 3 * action)


def an_env(actions=3):
    return Lanes(MIXED, see, pay, obs_space=SEEN, action_space=spaces.Discrete(actions))


def an_algorithm(kind, where, **settings):
    net = NetConfig(hidden=(8,), core="lstm" if kind is R2D2 else "none", core_size=6)
    more = SHORT if kind is R2D2 else {}
    return make(kind, where, net, **(SMALL | more | settings))


class Table(nn.Module):
    """Action values by the number that is observed."""

    def __init__(self, *rows):
        super().__init__()
        self.q = nn.Parameter(torch.tensor(rows, dtype=torch.float32))

    def forward(self, obs):
        return self.q[obs.long().squeeze(-1)]


def transitions(now, action, reward, discount, later, weight=None):
    """n-step transitions between numbered observations, each argument a list [B]."""
    obs = torch.tensor([now, later], dtype=torch.float32).unsqueeze(-1)
    row = [torch.tensor([x]).float() for x in (reward, discount, [1] * len(now))]
    steps = Steps(obs, torch.tensor([action], dtype=torch.int16), *row, {})
    weight = torch.ones(len(now)) if weight is None else torch.tensor(weight)
    return Batch(steps, (), torch.arange(len(now)), weight)


# ---------------------------------------------------------------- TD errors


NETWORK = Table([1.0, 2.0, 3.0], [5.0, 1.0, 0.0], [0.0, 0.0, 0.5])
TARGET = Table([7.0, 8.0, 9.0], [10.0, 20.0, 30.0], [-2.0, 4.0, -6.0])
THREE = transitions([0, 0, 1], [2, 0, 1], [1.0, 2.0, -1.0], [0.5, 0.0, 0.9], [1, 1, 2])


def test_values_and_their_goals_by_hand():
    q, double = transition_td(NETWORK, TARGET, THREE, double=True)
    assert q.tolist() == [3, 1, 1]
    # The network prefers action 0 at 1 and action 2 at 2; the target says 10 and -6.
    assert double.tolist() == pytest.approx([1 + 5, 2, -1 - 5.4])
    _, single = transition_td(NETWORK, TARGET, THREE, double=False)
    assert single.tolist() == pytest.approx([1 + 15, 2, -1 + 3.6])


@pytest.mark.parametrize("double", [True, False])
def test_only_the_value_of_the_action_taken_gets_a_gradient(double):
    network = Table([1.0, 2.0, 3.0], [5.0, 1.0, 0.0], [0.0, 0.0, 0.5])
    target = Table([7.0, 8.0, 9.0], [10.0, 20.0, 30.0], [-2.0, 4.0, -6.0])
    q, goal = transition_td(network, target, THREE, double)
    (goal - q).sum().backward()
    assert network.q.grad.tolist() == [[-1, 0, -1], [0, -1, 0], [0, 0, 0]]
    assert target.q.grad is None


def test_costs_by_hand():
    error = torch.tensor([0.0, 0.5, -1.0, 3.0, -3.0])
    assert cost(error, torch.zeros_like(error), "huber").tolist() == [0, 0.125, 0.5, 2.5, 2.5]
    assert cost(error, torch.zeros_like(error), "mse").tolist() == [0, 0.125, 0.5, 4.5, 4.5]


def test_chosen_values():
    q = torch.arange(12.0).view(2, 2, 3)
    action = torch.tensor([[0, 2], [1, 1]], dtype=torch.int16)
    assert chosen_value(q, action).tolist() == [[0, 5], [7, 10]]


@pytest.mark.parametrize("kind", [DQN, ApeX])
@pytest.mark.parametrize("loss", ["huber", "mse"])
@pytest.mark.parametrize("double", [True, False])
def test_weights_multiply_costs_and_priorities_are_absolute_errors(kind, loss, double):
    algorithm = an_algorithm(kind, FLAT, double=double, loss=loss, alpha=0.5)
    algorithm.network, algorithm.target = NETWORK, TARGET
    batch = THREE._replace(weight=torch.tensor([0.5, 1.0, 0.25]))
    errors = [3, 1, -7.4] if double else [13, 1, 1.6]
    out = algorithm.loss(batch, algorithm.statistics(batch))
    costs = cost(torch.tensor(errors).float(), torch.zeros(len(errors)), loss).tolist()
    by_hand = sum(w * c for w, c in zip([0.5, 1.0, 0.25], costs, strict=True)) / 3
    assert out.total.item() == pytest.approx(by_hand, rel=1e-5)
    assert out.priorities.tolist() == pytest.approx([abs(e) for e in errors])
    assert not out.priorities.requires_grad
    assert out.metrics["td_error"].item() == pytest.approx(sum(map(abs, errors)) / 3)
    assert out.metrics["q_mean"].item() == pytest.approx(5 / 3)


# ---------------------------------------------------------------- first priorities


def random_columns(rows, lanes, seed):
    """Streams of random episodes, terminated or truncated, the row after each masked."""
    random = np.random.default_rng(seed)
    mask, discount = np.ones((rows, lanes)), np.ones((rows, lanes))
    for lane in range(lanes):
        row = int(random.integers(5))
        while row < rows:
            discount[row, lane] = random.integers(2)
            if row + 1 < rows:
                mask[row + 1, lane] = 0
            row += 2 + int(random.integers(6))
    reward = random.normal(size=(rows, lanes)) * mask
    recorded = {name: random.normal(size=(rows, lanes)) for name in ("q", "value")}
    rows = (torch.from_numpy(x) for x in (reward, discount, mask))
    extra = {name: torch.from_numpy(x) for name, x in recorded.items()}
    return Steps((), torch.zeros(0), *rows, extra)


def error_by_loop(columns, start, lane, gamma, n):
    total, factor, at = 0.0, 1.0, start
    while at < start + n and columns.mask[at, lane]:
        total += factor * columns.reward[at, lane]
        factor *= gamma * columns.discount[at, lane]
        at += 1
    value = total + factor * columns.extra["value"][at, lane]
    return abs(value - columns.extra["q"][start, lane])


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_recorded_errors_are_those_of_a_loop(n, seed):
    rows, lanes, gamma = 40, 4, 0.9
    columns = random_columns(rows, lanes, seed)
    starts = np.array([0, 3, 4, 11, 17, rows - n - 1])
    errors = recorded_errors(columns, starts, gamma, n)
    assert errors.shape == (len(starts), lanes)
    for i, start in enumerate(starts):
        for lane in range(lanes):
            if columns.mask[start, lane]:
                expected = error_by_loop(columns, start, lane, gamma, n)
                assert errors[i, lane].item() == pytest.approx(float(expected))


@pytest.mark.parametrize("kind", [DQN, ApeX])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("double", [True, False])
def test_first_priorities_are_the_td_errors_of_real_play(kind, n, double):
    env = make_env("CartPole-v1", EnvOptions(time_limit=14), num_envs=4)
    more = {"alpha": 1.0, "n_step": n, "rollout_steps": 16, "double": double}
    algorithm = an_algorithm(kind, env, **more)
    shaken(algorithm.network)
    algorithm.target.load_state_dict(algorithm.network.state_dict())
    memory, _ = filled(algorithm, env, rounds=6)
    found = every_window(memory)
    played = memory.ring.mask[:-1].reshape(4, -1)[:, : 6 * 16 - n]
    assert 0 < (played == 0).sum() < played.size / 5
    assert len(found.row) == played.sum()
    q, goal = transition_td(algorithm.network, algorithm.target, found.batch, double)
    error = goal - q
    assert error.abs().mean() > 0.1
    torch.testing.assert_close(
        found.priority.float(), error.detach().abs().clamp(min=1e-6), atol=1e-4, rtol=1e-4
    )


def test_without_priorities_dqn_records_nothing():
    assert an_algorithm(DQN, FLAT).records is False
    memory, spy = filled(an_algorithm(DQN, an_env()), an_env(), rounds=6)
    assert memory.ring.extra == {}
    assert spy.rows[0][-1].extra == {}


# ---------------------------------------------------------------- observations


def blinking():
    import gymnasium as gym

    class Image(gym.Env):
        observation_space = spaces.Box(0, 255, (5, 5), np.uint8)
        action_space = spaces.Discrete(2)
        episode = 0

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t, self.episode = 0, self.episode + 1
            return self.image(), {}

        def image(self):
            return np.full((5, 5), 20 * self.episode + self.t + 1, np.uint8)

        def step(self, action):
            self.t += 1
            return self.image(), 1.0, self.t == 4 and self.episode % 2 == 0, self.t == 6, {}

    return Image


@pytest.mark.parametrize("kind", KINDS)
def test_stacks_of_frames_are_rebuilt_as_the_actor_saw_them(kind):
    register_env("Blinking", blinking(), replace=True)
    env = make_env("Blinking", EnvOptions(frame_stack=3), num_envs=2)
    where = Spaces(env.single_observation_space, env.single_action_space, frame_stack_of(env))
    net = NetConfig(encoder="mlp", hidden=(4,), core="gru" if kind is R2D2 else "none", core_size=4)
    more = SHORT if kind is R2D2 else {"n_step": 2, "rollout_steps": 4}
    algorithm = make(kind, where, net, **(SMALL | more | {"capacity": 2 * 20, "batch_size": 8}))
    memory, spy = filled(algorithm, env, rounds=7)
    assert memory.ring.obs.shape[1:] == (5, 5)
    found = every_window(memory)
    assert len(found.row) > 2
    for i, (lane, row) in enumerate(zip(found.lane, found.row, strict=True)):
        obs = found.batch.steps.obs[:, i]
        if kind is R2D2:
            rows = range(row, row + 8)
        else:
            ends = [row + k for k in (1, 2) if spied_mask(memory, lane, row, k)]
            rows = [row, ends[-1]]
        for got, at in zip(obs, rows, strict=True):
            assert torch.equal(got, spy.at(lane, at)[0])


def spied_mask(memory, lane, row, k):
    """Whether an n-step transition from `row` reaches its k-th row."""
    return all(memory.ring.mask[memory.ring.places(lane, row + j)] for j in range(k))


def test_actions_are_counted_from_the_spaces_start():
    where = Spaces(FLAT.obs, spaces.Discrete(3, start=-1))
    for kind in KINDS:
        algorithm = an_algorithm(kind, where)
        state = algorithm.initial_state(200)
        obs, nothing = torch.randn(200, 3), torch.zeros(200)
        rng = torch.Generator().manual_seed(0)
        decision = algorithm.act(obs, nothing, state, rng, torch.ones(200))
        assert decision.action.unique().tolist() == [0, 1, 2]
        assert torch.equal(decision.env_action, decision.action - 1)


@pytest.mark.parametrize(
    ("actions", "kind"),
    [(3, torch.int16), (1 << 15, torch.int16), ((1 << 15) + 1, torch.int32), (40_000, torch.int32)],
)
def test_every_action_can_be_stored(actions, kind):
    env = Lanes(MIXED, see, lambda *_: 0.0, SEEN, spaces.Discrete(actions))
    algorithm = an_algorithm(DQN, env, epsilon_end=1.0)
    memory, _ = filled(algorithm, env, rounds=30)
    assert torch.from_numpy(memory.ring.action).dtype == kind
    memory.ring.action[: 3 * 30] = actions - 1
    batch = memory.sample()
    assert batch.steps.action.max() == actions - 1
    learner = Learner(algorithm, LearnerConfig(), Reducer(), CPU)
    learner.update(batch)
    learner.check_finite()


# ---------------------------------------------------------------- target network


def values_of(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_is_copied_at_multiples_of_the_period_and_only_then(kind):
    algorithm = an_algorithm(kind, FLAT, target_period=3)
    assert torch.equal(values_of(algorithm.target), values_of(algorithm.network))
    expected = values_of(algorithm.network)
    for update in range(1, 10):
        shaken(algorithm.network, seed=update)
        algorithm.after_update(update)
        if update in (3, 6, 9):
            expected = values_of(algorithm.network)
        assert torch.equal(values_of(algorithm.target), expected)
    shaken(algorithm.network)
    assert torch.equal(values_of(algorithm.target), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_soft_update_is_a_step_of_tau(kind):
    algorithm = an_algorithm(kind, FLAT, target_tau=0.125, target_period=2)
    shaken(algorithm.network)
    before, new = values_of(algorithm.target), values_of(algorithm.network)
    algorithm.after_update(2)
    torch.testing.assert_close(values_of(algorithm.target), 0.875 * before + 0.125 * new)
    assert torch.equal(values_of(algorithm.network), new)


@pytest.mark.parametrize("kind", KINDS)
def test_the_learner_follows_with_the_target_and_gives_it_no_gradient(kind):
    env = an_env()
    algorithm = an_algorithm(kind, env, target_period=4, samples_per_insert=None)
    loop = Loop(algorithm, env)
    start = values_of(algorithm.target)
    while loop.learner.updates < 3:
        loop.run(1)
    assert torch.equal(values_of(algorithm.target), start)
    loop.run(1)
    assert loop.learner.updates == 4
    assert torch.equal(values_of(algorithm.target), values_of(algorithm.network))
    assert not torch.equal(values_of(algorithm.target), start)
    for parameter in algorithm.target.parameters():
        assert parameter.grad is None
        assert not parameter.requires_grad


TINY = {
    "dqn": {"n_step": 2, "alpha": 0.5},
    "apex": {"n_step": 2, "rollout_steps": 4},
    "r2d2": SHORT,
}


def train(folder, name, **settings):
    algo = TINY[name] | SMALL | {"warm_up": 32, "samples_per_insert": 4.0, "target_period": 10**9}
    algo |= settings.pop("algo", {})
    core = {"core": "lstm", "core_size": 8} if name == "r2d2" else {}
    config = {"env_steps": 120, "envs": 2, "threads": 1, "use_preset": False, "seed": 3}
    config["checkpoint_steps"] = 10**6
    config |= {"algo": algo, "net": {"hidden": (8,), **core}} | settings
    return rookery.train(name, "CartPole-v1", runs_dir=folder, **config)


@pytest.mark.parametrize("name", sorted(TINY))
def test_the_target_is_saved_and_gone_on_from(name, tmp_path):
    first = train(tmp_path, name, algo={"target_period": 7})
    weights, target = (first.saved.tensors[part] for part in ("weights", "target"))
    assert set(weights) == set(target)
    assert any(not torch.equal(weights[key], target[key]) for key in weights)
    backend = make_backend(first.settings, Reducer(), CPU, first.saved)
    for part, module in (("target", "target"), ("weights", "network")):
        for key, value in getattr(backend.learner.algorithm, module).named_parameters():
            assert torch.equal(value, first.saved.tensors[part][key])
    backend.close()
    # A target that is never copied is what it was at first, through a resumed run too.
    run = train(tmp_path, name)
    early = run.saved
    late = rookery.resume(run.path, env_steps=240).saved
    assert late.step > early.step
    assert late.meta["updates"] > early.meta["updates"] > 0
    for key, value in early.tensors["target"].items():
        assert torch.equal(late.tensors["target"][key], value)
        assert not torch.equal(late.tensors["weights"][key], value)


def test_a_checkpoint_without_a_target_is_refused(tmp_path):
    run = train(tmp_path, "dqn")
    saved = run.saved
    tensors = {name: part for name, part in saved.tensors.items() if name != "target"}
    checkpoint.save_checkpoint(run.checkpoints, saved.step, tensors, saved.meta)
    with pytest.raises(BadInput, match="no target"):
        rookery.resume(run.path, env_steps=300)


@pytest.mark.parametrize("name", sorted(TINY))
def test_one_seed_is_one_run(name, tmp_path):
    one, two, other = (train(tmp_path, name, seed=seed).saved for seed in (1, 1, 2))
    assert one.meta["updates"] == two.meta["updates"] > 3
    for part in ("weights", "target", "optimizer", "random"):
        for key, value in one.tensors[part].items():
            assert torch.equal(two.tensors[part][key], value)
    same = [torch.equal(other.tensors["weights"][k], v) for k, v in one.tensors["weights"].items()]
    assert not all(same)


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_beta_rises_over_a_run(backend, tmp_path, monkeypatch):
    betas = []

    def spied(self, count, generator, draw=Prioritized.draw):
        betas.append(self.beta)
        return draw(self, count, generator)

    monkeypatch.setattr(Prioritized, "draw", spied)
    settings = {"alpha": 0.5, "beta": 0.4, "beta_end": 1.0, "samples_per_insert": 1.0}
    algo = SMALL | settings | {"warm_up": 32}
    train(tmp_path, "dqn", backend=backend, env_steps=600, algo=algo)
    assert betas == sorted(betas)
    assert betas[0] < 0.6
    assert 0.9 < betas[-1] <= 1.0


# ---------------------------------------------------------------- micro batches


@pytest.mark.parametrize(
    ("kind", "settings"), [*((kind, {}) for kind in KINDS), (DQN, {"noisy": True, "atoms": 5})]
)
@pytest.mark.parametrize("micro_batches", [2, 3])
def test_micro_batches_make_the_same_update(kind, settings, micro_batches):
    outcomes = []
    for parts in (1, micro_batches):
        env = an_env()
        more = {"optimizer": "sgd", "learning_rate": 0.1, "alpha": 0.5, "beta": 1.0}
        algorithm = an_algorithm(kind, env, **more, **settings)
        shaken(algorithm.target)
        memory, _ = filled(algorithm, env, rounds=20)
        batch = memory.sample()._replace(weight=torch.linspace(0.1, 1, 16))
        learner = Learner(algorithm, LearnerConfig(micro_batches=parts), Reducer(), CPU)
        before = learner.flat.values.detach().clone()
        outcome = learner.update(batch)
        change = learner.flat.values.detach() - before
        outcomes.append((change, outcome.priorities, learner.take_metrics()))
    (one, first, metrics), (cut, second, cut_metrics) = outcomes
    assert one.norm() > 1e-3
    torch.testing.assert_close(cut, one, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(second, first, atol=1e-6, rtol=1e-4)
    assert cut_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-6)


# ---------------------------------------------------------------- refusals


WRONG = [
    (ReplayConfig, "gamma", 0.0),
    (ReplayConfig, "gamma", 1.1),
    (ReplayConfig, "n_step", 0),
    (ReplayConfig, "batch_size", 0),
    (ReplayConfig, "target_period", 0),
    (ReplayConfig, "alpha", -0.1),
    (ReplayConfig, "alpha", 1.1),
    (ReplayConfig, "beta", -0.1),
    (ReplayConfig, "beta", 1.1),
    (ReplayConfig, "beta_end", 1.1),
    (ReplayConfig, "beta_end", 0.3),
    (ReplayConfig, "target_tau", 0.0),
    (ReplayConfig, "target_tau", 1.5),
    (ReplayConfig, "samples_per_insert", 0.0),
    (ReplayConfig, "warm_up", -1),
    (ReplayConfig, "capacity", 0),
    (DQNConfig, "epsilon_start", 1.1),
    (DQNConfig, "epsilon_end", -0.1),
    (DQNConfig, "epsilon_steps", -1),
    (DQNConfig, "atoms", 0),
    (DQNConfig, "rollout_steps", 0),
    (ApeXConfig, "epsilon_base", 0.0),
    (ApeXConfig, "epsilon_base", 1.1),
    (ApeXConfig, "epsilon_power", -1.0),
    (ApeXConfig, "rollout_steps", 0),
    (R2D2Config, "epsilon_base", 0.0),
    (R2D2Config, "epsilon_power", -1.0),
    (R2D2Config, "unroll", 0),
    (R2D2Config, "burn_in", -1),
    (R2D2Config, "stride", 0),
    (R2D2Config, "eta", 1.1),
]


@pytest.mark.parametrize(("config", "field", "value"), WRONG)
def test_a_value_out_of_range_is_named_with_its_field(config, field, value):
    with pytest.raises(BadInput, match=rf"algo\.{field} .*got {value}"):
        config(**{field: value})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3])], ids=["Box", "MultiDiscrete"]
)
def test_only_discrete_actions_have_values(kind, space):
    with pytest.raises(BadInput, match=f"Discrete.*{type(space).__name__}"):
        an_algorithm(kind, Spaces(FLAT.obs, space))


def test_spying_changes_nothing():
    """The helper these tests stand on."""
    memories = []
    for spied in (False, True):
        env = an_env()
        algorithm = an_algorithm(ApeX, env)
        if spied:
            Spy(algorithm)
        memories.append(Loop(algorithm, env).run(3).memory)
    assert np.array_equal(memories[0].ring.reward, memories[1].ring.reward)


@pytest.mark.parametrize("kind", [DQN, ApeX, R2D2])
def test_what_is_computed_ahead_changes_no_loss(kind):
    env = make_env("CartPole-v1", num_envs=2)
    net = NetConfig(hidden=(4,), core="gru" if kind is R2D2 else "none", core_size=4)
    algorithm = make(kind, env, net, **(SMALL | (SHORT if kind is R2D2 else {"n_step": 2})))
    shaken(algorithm.network)
    memory, _ = filled(algorithm, env, rounds=40)
    batch = memory.sample()
    known = algorithm.precompute_targets(batch)
    assert "target_q" in known.steps.extra
    plain, ahead = (algorithm.loss(b, algorithm.statistics(batch)) for b in (batch, known))
    assert plain.total.item() == ahead.total.item()
    # It is used: with other values there, another loss comes out.
    known.steps.extra["target_q"].add_(1.0)
    assert algorithm.loss(known, algorithm.statistics(batch)).total.item() != plain.total.item()


def test_a_target_that_changes_with_every_update_is_not_computed_ahead():
    env = make_env("CartPole-v1", num_envs=2)
    algorithm = make(ApeX, env, target_tau=0.1, **SMALL)
    memory, _ = filled(algorithm, env, rounds=2)
    assert "target_q" not in algorithm.precompute_targets(memory.sample()).steps.extra


def test_a_new_target_leaves_the_old_one_whole():
    env = make_env("CartPole-v1", num_envs=2)
    algorithm = make(ApeX, env, target_period=3, **SMALL)
    old = algorithm.target
    before = [p.clone() for p in old.parameters()]
    shaken(algorithm.network)
    algorithm.after_update(2)
    assert algorithm.target is old
    algorithm.after_update(3)
    assert algorithm.target is not old
    assert all(torch.equal(a, b) for a, b in zip(old.parameters(), before, strict=True))
    pairs = zip(algorithm.target.parameters(), algorithm.network.parameters(), strict=True)
    assert all(torch.equal(a, b) and not a.requires_grad for a, b in pairs)


def learn_together(shared, settings):
    """What DQN has learnt of a picture after 7 rounds, four batches drawn together in each, and
    whether each of them came with its target's values."""
    register_env("Blinking", blinking(), replace=True)
    env = make_env("Blinking", EnvOptions(frame_stack=3), num_envs=2)
    where = Spaces(env.single_observation_space, env.single_action_space, frame_stack_of(env))
    more = {"rollout_steps": 4, "samples_per_insert": 8.0, "target_period": 6}
    algorithm = make(DQN, where, NetConfig(encoder="mlp", hidden=(4,)), **(SMALL | more | settings))
    loop = Loop(algorithm, env)
    known, update = [], loop.learner.update

    def spied(batch):
        known.append("target_q" in batch.steps.extra)
        return update(batch)

    loop.learner.update = spied
    if not shared:
        loop.learner.precompute = lambda batch, updates: batch
    torch.manual_seed(1)
    for _ in range(7):
        loop.memory.add(algorithm.prepare(loop.actor.collect(0)))
        learn_from(loop.memory, loop.learner)
    return loop.learner.flat.values.detach().clone(), known


@pytest.mark.parametrize("settings", [{}, {"atoms": 5}, {"noisy": True}, {"target_tau": 0.1}])
def test_batches_drawn_together_share_their_targets_values_and_learn_the_same(settings):
    (apart, none), (together, known) = (learn_together(x, settings) for x in (False, True))
    torch.testing.assert_close(together, apart)
    assert not any(none)
    # A new target comes after every sixth update: in the midst of every third four.
    expected = [number // 4 % 3 != 1 for number in range(len(known))]
    assert known == (expected if not settings else [False] * len(known))
    assert len(known) >= 20


def test_values_of_small_networks_are_left_to_the_update():
    algorithm = make(DQN, make_env("CartPole-v1"), target_period=5, **SMALL)
    batch = SimpleNamespace()
    assert algorithm.precompute_targets(batch, range(2)) is batch
