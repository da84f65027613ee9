"""One update: accumulated, clipped, annealed, counted, and refused when it is not finite."""

import copy
import math
from itertools import pairwise

import pytest
import torch
from scenes import CPU, FLAT, Lanes, Loop, a_batch, make, ppo
from torch import nn

from rookery.algorithms.base import Algorithm, OptimizerConfig
from rookery.algorithms.ppo import PPO
from rookery.algorithms.vpg import VPG
from rookery.data.steps import Loss
from rookery.errors import BadInput, Diverged
from rookery.learning.learner import Learner, LearnerConfig, check_network_matches
from rookery.learning.reduce import Reducer
from rookery.networks.build import NetConfig


def a_learner(algorithm, **settings):
    return Learner(algorithm, LearnerConfig(**settings), Reducer(), CPU)


class Regression(Algorithm):
    """A network fitted to stored returns; it does not act."""

    device = CPU

    def __init__(self, **settings):
        torch.manual_seed(0)
        self.config = OptimizerConfig(**settings)
        self.network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.priority = None

    def draw(self, explore, generator):
        raise NotImplementedError

    def choose(self, obs, reward, state, draw, explain=False):
        raise NotImplementedError

    def prepare(self, segment):
        raise NotImplementedError

    def memory(self, lanes, writers, seed):
        raise NotImplementedError

    def statistics(self, batch):
        return batch.steps.mask.double().sum().unsqueeze(0)

    def loss(self, batch, statistics):
        error = self.network(batch.steps.obs).squeeze(-1) - batch.steps.extra["return"]
        total = (error.square() * batch.steps.mask).sum() / statistics[0].float()
        return Loss(total, {"error": total}, error.detach().abs().sum(0))


@pytest.mark.parametrize("name", ["adam", "rmsprop", "sgd"])
def test_updates_are_those_of_torch_with_clip_grad_norm(name):
    algorithm = Regression(optimizer=name, learning_rate=0.01, max_grad_norm=0.3)
    plain = copy.deepcopy(algorithm)
    learner = a_learner(algorithm)
    kinds = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop, "sgd": torch.optim.SGD}
    options = {
        "adam": {"eps": 1e-5},
        "rmsprop": {"eps": 1e-5, "alpha": 0.95, "centered": True},
        "sgd": {},
    }
    optimizer = kinds[name](plain.network.parameters(), lr=0.01, **options[name])
    norms = []
    for i in range(8):
        batch = a_batch(algorithm, 4, 5, seed=i)
        learner.update(batch)
        optimizer.zero_grad()
        plain.loss(batch, plain.statistics(batch)).total.backward()
        norms.append(float(nn.utils.clip_grad_norm_(plain.network.parameters(), 0.3)))
        optimizer.step()
        assert learner.take_metrics()["grad_norm"] == pytest.approx(norms[-1], rel=1e-3)
    assert max(norms) > 0.3
    for a, b in zip(algorithm.network.parameters(), plain.network.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_a_gradient_norm_limit_of_0_never_clips():
    free, wide, tight = (
        Regression(optimizer="sgd", max_grad_norm=limit, learning_rate=0.1)
        for limit in (0, 1e9, 1e-3)
    )
    moves = []
    for algorithm in (free, wide, tight):
        learner = a_learner(algorithm)
        before = learner.flat.values.detach().clone()
        learner.update(a_batch(algorithm, 4, 5))
        moves.append(learner.flat.values.detach() - before)
    assert torch.equal(moves[0], moves[1])
    assert float(moves[2].norm()) == pytest.approx(1e-4, rel=1e-2)


@pytest.mark.parametrize("micro_batches", [2, 3, 7, 12])
@pytest.mark.parametrize("kind", [PPO, VPG])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_micro_batches_make_the_same_update(micro_batches, kind, core):
    net = NetConfig(hidden=(8,), core=core, core_size=4)
    settings = {"optimizer": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.1}
    learners = [
        a_learner(make(kind, FLAT, net, **settings), micro_batches=k) for k in (1, micro_batches)
    ]
    for i in range(3):
        for learner in learners:
            learner.update(
                a_batch(learner.algorithm, 6, 7, seed=i)
            )  # at times more parts than lanes
    one, cut = (learner.flat.values.detach() for learner in learners)
    torch.testing.assert_close(cut, one, atol=1e-6, rtol=1e-5)
    one, cut = (learner.take_metrics() for learner in learners)
    assert cut == pytest.approx(one, rel=1e-4, abs=1e-6)


def test_micro_batches_hand_back_the_priorities_in_order():
    one, cut = (a_learner(Regression(), micro_batches=k) for k in (1, 3))
    batch = a_batch(one.algorithm, 2, 7)
    expected = one.update(batch).priorities
    assert expected.shape == (7,)
    torch.testing.assert_close(cut.update(batch).priorities, expected)


def test_the_learning_rate_starts_full_and_ends_near_zero():
    learner = a_learner(Regression(learning_rate=0.4, optimizer="sgd"))
    updates, rates = 50, []
    for i in range(updates):
        learner.set_progress(i / updates)
        rates.append(learner.optimizer.learning_rate)
    assert rates[0] == 0.4
    assert rates[25] == pytest.approx(0.2)
    assert rates[-1] == pytest.approx(0.4 / updates)
    assert all(b < a for a, b in pairwise(rates))
    learner.set_progress(1.2)  # the last rollout may overshoot
    assert learner.optimizer.learning_rate == 0


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_the_learning_rate_is_the_one_steps_are_made_with(name):
    def move(progress):
        learner = a_learner(Regression(learning_rate=0.4, optimizer=name))
        before = learner.flat.values.detach().clone()
        learner.set_progress(progress)
        learner.update(a_batch(learner.algorithm, 4, 5))
        return learner.flat.values.detach() - before

    torch.testing.assert_close(move(0.75), move(0.0) / 4, atol=1e-6, rtol=1e-4)
    assert not bool(move(1.0).any())


def test_without_annealing_the_rate_stays():
    learner = a_learner(Regression(learning_rate=0.4, anneal=False))
    learner.set_progress(0.9)
    assert learner.optimizer.learning_rate == 0.4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_run(bad):
    learner = a_learner(ppo())
    good, wrong = (a_batch(learner.algorithm, 3, 4, masked=0) for _ in range(2))
    wrong.steps.extra["advantage"][1, 2] = bad
    learner.update(good)
    learner.check_finite()
    with pytest.raises(Diverged, match=r"training diverged: .* after 1 updates"):
        learner.update(wrong)
    with pytest.raises(Diverged):
        learner.take_metrics()
    with pytest.raises(Diverged):
        learner.check_finite()


def test_metrics_are_means_over_the_updates_since_the_last_call():
    learner = a_learner(ppo(learning_rate=1e-9))
    batches = [a_batch(learner.algorithm, 3, 4, seed=i) for i in range(3)]
    single = []
    for batch in batches:
        learner.update(batch)
        single.append(learner.take_metrics())
    for batch in batches:
        learner.update(batch)
    together = learner.take_metrics()
    assert set(together) >= {"grad_norm", "loss", "policy_loss", "value_loss", "entropy", "kl"}
    for name, value in together.items():
        assert value == pytest.approx(sum(s[name] for s in single) / 3, rel=1e-4, abs=1e-6)
    assert learner.updates == 6


def test_updates_leave_no_history_behind():
    """A metric that kept its graph would tie every update to the one before, for ever."""
    learner = a_learner(ppo())
    for _ in range(3):
        learner.update(a_batch(learner.algorithm, 3, 4))
    assert learner.flat.buffer.grad_fn is None
    assert not learner.flat.buffer.requires_grad
    assert not learner.sums.requires_grad


def test_the_gradient_of_the_last_update_does_not_linger():
    once, twice = (a_learner(ppo(learning_rate=0.1)) for _ in range(2))
    first, second = (a_batch(once.algorithm, 3, 4, seed=i) for i in range(2))
    twice.optimizer.learning_rate = 0.0
    twice.update(first)
    twice.optimizer.learning_rate = 0.1
    twice.update(second)
    once.update(second)
    assert torch.equal(once.flat.values, twice.flat.values)


@pytest.mark.parametrize("name", ["adam", "rmsprop", "sgd"])
def test_a_loaded_optimizer_goes_on_as_if_never_stopped(name):
    batches = [a_batch(Regression(), 4, 5, seed=i) for i in range(6)]
    going = a_learner(Regression(optimizer=name, learning_rate=0.01))
    for batch in batches[:3]:
        going.update(batch)
    values = going.flat.values.detach().clone()
    saved = {key: value.clone() for key, value in going.optimizer.state.items()}
    resumed = a_learner(Regression(optimizer=name, learning_rate=0.01))
    resumed.flat.copy_from(values)
    resumed.load(resumed.tensors() | {"optimizer": saved}, {"updates": 0})
    for batch in batches[3:]:
        going.update(batch)
        resumed.update(batch)
    assert torch.equal(going.flat.values, resumed.flat.values)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_large_core_learns_in_bfloat16_too(core):
    """Beyond some size torch takes another implementation, which may not know bfloat16."""
    net = NetConfig(hidden=(16,), core=core, core_size=512)
    full, _ = one_update("fp32", net)
    half, _ = one_update("bf16", net)
    assert torch.nn.functional.cosine_similarity(full, half, 0) > 0.99


def one_update(precision, net=None, compile=False):
    algorithm = ppo(net or NetConfig(hidden=(16,)), entropy_coef=0.01)
    torch.nn.init.normal_(algorithm.network.head.linear.weight, std=0.1)
    learner = Learner(algorithm, LearnerConfig(), Reducer(), CPU, precision, compile)
    before = learner.flat.values.detach().clone()
    learner.update(a_batch(algorithm, 4, 6))
    return learner.flat.values.detach() - before, learner.take_metrics()


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_bfloat16_makes_nearly_the_same_update(core):
    net = NetConfig(hidden=(16,), core=core, core_size=8)
    full, metrics = one_update("fp32", net)
    half, half_metrics = one_update("bf16", net)
    assert full.dtype == half.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(full, half, 0) > 0.99
    assert not torch.equal(full, half)
    for name, value in metrics.items():
        assert half_metrics[name] == pytest.approx(value, rel=0.05, abs=0.02)


@pytest.mark.long
def test_a_compiled_loss_makes_the_same_update():
    plain, metrics = one_update("fp32")
    compiled, compiled_metrics = one_update("fp32", compile=True)
    torch.testing.assert_close(compiled, plain, atol=1e-5, rtol=1e-4)
    assert compiled_metrics == pytest.approx(metrics, rel=1e-3, abs=1e-5)


def test_two_runs_with_one_seed_are_the_same_run():
    def weights():
        env = Lanes([[(3, "truncated")], [(5, "terminated")]], pay=lambda b, t, a: float(a))
        loop = Loop(make(PPO, env, rollout_steps=16), env, seed=3).run(3)
        return loop.learner.flat.values.detach()

    assert torch.equal(weights(), weights())


def test_micro_batches_out_of_range_are_refused():
    with pytest.raises(BadInput, match=r"learner\.micro_batches must be at least 1, got 0"):
        LearnerConfig(micro_batches=0)


def test_lanes_of_a_batch_take_the_state_along():
    algorithm = ppo(NetConfig(core="lstm", core_size=4))
    batch = a_batch(algorithm, 3, 5)
    part = batch.lanes(slice(1, 3))
    assert torch.equal(part.steps.obs, batch.steps.obs[:, 1:3])
    assert torch.equal(part.state[1], batch.state[1][1:3])


def test_checkpoint_of_a_different_network_names_the_first_difference():
    weights = {"policy.0.weight": torch.zeros(64, 4), "policy.0.bias": torch.zeros(64)}
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    check_network_matches(weights, shapes)

    def refusal(wanted: dict[str, torch.Size]) -> str:
        with pytest.raises(BadInput) as caught:
            check_network_matches(weights, wanted)
        return str(caught.value).removeprefix("the checkpoint is of a different network: ")

    wider = {**shapes, "policy.0.weight": torch.Size([64, 8])}
    assert refusal(wider) == "policy.0.weight is [64, 4], this network has [64, 8]"
    assert refusal({**shapes, "v": torch.Size([1])}) == "it has no v, which has shape [1] here"
    fewer = {"policy.0.weight": shapes["policy.0.weight"]}
    assert refusal(fewer) == "its policy.0.bias does not exist in this network"
