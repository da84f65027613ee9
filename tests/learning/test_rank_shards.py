"""K ranks on shards of a batch make the update one rank makes on the whole of it."""

import pytest
import torch
from scenes import CPU, FLAT, FakeRanks, a_batch, make, ppo

from rookery.algorithms.apex import ApeX
from rookery.algorithms.dqn import DQN
from rookery.algorithms.ppo import PPO
from rookery.algorithms.r2d2 import R2D2
from rookery.algorithms.vpg import VPG
from rookery.data.steps import Batch
from rookery.learning.learner import Learner, LearnerConfig
from rookery.learning.reduce import Reducer
from rookery.networks.build import NetConfig

LANES, UPDATES = 9, 4
NOISE = 7
"""Seed of the noise that ranks share."""
SHARDS = {
    "even": [range(3), range(3, 6), range(6, 9)],
    "uneven": [range(6), range(6, 7), range(7, 9)],
    "one empty": [range(5), range(5, 9), range(0)],
}
SGD = {"optimizer": "sgd", "learning_rate": 0.2, "anneal": False}


def rollout(algorithm, seed):
    return a_batch(algorithm, 5, LANES, seed=seed)


def alone(build, batch_of=rollout, **settings):
    """The learner of one rank after its updates on whole batches."""
    learner = Learner(build(0), LearnerConfig(**settings), Reducer(), CPU)
    learner.generator.manual_seed(NOISE)
    for i in range(UPDATES):
        learner.update(batch_of(learner.algorithm, i))
    return learner


def together(build, shards, batch_of=rollout, **settings):
    """The learners of ranks that each see a shard of every batch; they start differently."""
    algorithms = [build(seed) for seed in range(len(shards))]
    group = FakeRanks(len(shards))

    def work(reducer):
        learner = Learner(algorithms[reducer.rank], LearnerConfig(**settings), reducer, CPU)
        seeds = reducer.gather(learner.generator.initial_seed())
        assert len(set(seeds)) == 1
        learner.generator.manual_seed(NOISE)
        lanes = torch.tensor(list(shards[reducer.rank]), dtype=torch.long)
        for i in range(UPDATES):
            learner.update(batch_of(learner.algorithm, i).lanes(lanes))
        return learner

    learners = group.run(work)
    assert all(calls == group.calls[0] for calls in group.calls)
    return learners


def digest(learner):
    return learner.digest()


def builder(kind=PPO, core="none", **settings):
    net = NetConfig(hidden=(8,), core=core, core_size=4)
    return lambda seed: make(kind, FLAT, net, seed, **({"entropy_coef": 0.01} | SGD | settings))


def assert_same(learners, reference):
    assert len({digest(learner) for learner in learners}) == 1
    torch.testing.assert_close(learners[0].flat.values, reference.flat.values, atol=1e-6, rtol=1e-5)
    expected = reference.take_metrics()
    for learner in learners:
        assert learner.take_metrics() == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert learner.updates == reference.updates == UPDATES


@pytest.mark.parametrize("shards", SHARDS.values(), ids=SHARDS)
@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("kind", [PPO, VPG])
def test_ranks_on_shards_are_one_rank_on_the_whole(shards, core, kind):
    build = builder(kind, core)
    assert_same(together(build, shards), alone(build))


@pytest.mark.parametrize("core", ["none", "gru"])
def test_ranks_with_micro_batches_are_one_rank_on_the_whole(core):
    build = builder(core=core)
    assert_same(together(build, SHARDS["uneven"], micro_batches=2), alone(build))


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_ranks_agree_with_one_rank_under_every_optimizer(optimizer):
    build = builder(optimizer=optimizer, learning_rate=1e-3)
    learners, reference = together(build, SHARDS["uneven"]), alone(build)
    assert len({digest(learner) for learner in learners}) == 1
    difference = learners[0].flat.values - reference.flat.values
    assert float(difference.detach().abs().max()) < 1e-4


@pytest.mark.parametrize("shards", SHARDS.values(), ids=SHARDS)
def test_clipping_comes_after_the_reduction(shards):
    build = builder(max_grad_norm=0.02)
    reference = alone(build)
    assert reference.sums[0] / UPDATES > 0.04  # every update is clipped, by much
    assert_same(together(build, shards), reference)


@pytest.mark.parametrize("limit", [0.0, 0.02])
def test_broadcast_is_allreduce(limit):
    build = builder(max_grad_norm=limit, optimizer="adam", learning_rate=0.01)
    summed = together(build, SHARDS["uneven"], sync="allreduce")
    sent = together(build, SHARDS["uneven"], sync="broadcast")
    assert len({digest(learner) for learner in summed + sent}) == 1
    expected = summed[0].take_metrics()
    for learner in sent:
        assert learner.take_metrics() == pytest.approx(expected, rel=1e-5)


def test_broadcast_ranks_do_no_steps_of_their_own():
    learners = together(builder(optimizer="adam"), SHARDS["even"], sync="broadcast")
    assert int(learners[0].optimizer.state["step"]) > 0
    assert int(learners[1].optimizer.state["step"]) == 0


def moves(limit, **settings):
    """How far the first update goes, and its gradient norm."""
    build = builder(max_grad_norm=limit)
    start = Learner(build(0), LearnerConfig(), Reducer(), CPU).flat.values.detach().clone()
    group, algorithms = FakeRanks(3), [build(seed) for seed in range(3)]

    def work(reducer):
        learner = Learner(algorithms[reducer.rank], LearnerConfig(**settings), reducer, CPU)
        lanes = torch.tensor(list(SHARDS["uneven"][reducer.rank]))
        learner.update(a_batch(learner.algorithm, 5, LANES).lanes(lanes))
        return learner

    learner = group.run(work)[1]
    return learner.flat.values.detach() - start, learner.take_metrics()["grad_norm"]


@pytest.mark.parametrize("sync", ["allreduce", "broadcast"])
def test_sum_is_world_times_mean_before_clipping(sync):
    mean, mean_norm = moves(0.0, reduce="mean", sync=sync)
    total, total_norm = moves(0.0, reduce="sum", sync=sync)
    torch.testing.assert_close(total, 3 * mean, atol=1e-6, rtol=1e-5)
    assert total_norm == pytest.approx(3 * mean_norm, rel=1e-5)
    # A limit between the two leaves the mean alone and cuts the sum.
    limit = 2 * mean_norm
    torch.testing.assert_close(moves(limit, reduce="mean", sync=sync)[0], mean)
    cut = moves(limit, reduce="sum", sync=sync)[0]
    torch.testing.assert_close(cut, 2 * mean, atol=1e-6, rtol=1e-4)


def test_every_rank_stops_where_the_kl_of_all_ranks_says():
    def build(seed):
        return ppo(seed=seed, max_kl=1e-3)

    for learner in together(build, SHARDS["uneven"]):
        assert learner.updates == 0
    for sync in ("allreduce", "broadcast"):
        learners = together(lambda seed: ppo(seed=seed, max_kl=0.06), SHARDS["uneven"], sync=sync)
        reference = alone(lambda seed: ppo(seed=seed, max_kl=0.06))
        assert [learner.updates for learner in learners] == [reference.updates] * 3
        assert len({digest(learner) for learner in learners}) == 1


# ---------------------------------------------------------------- with a replay memory


def replayed(algorithm, seed):
    """Windows as a replay memory hands them out, with importance weights."""
    rng = torch.Generator().manual_seed(seed)
    if isinstance(algorithm, R2D2):
        config = algorithm.config
        rows = config.burn_in + config.unroll + config.n_step
        batch = a_batch(algorithm, rows, LANES, seed)
        state = (*batch.state, torch.randn(LANES, 1, generator=rng))
        later = tuple(torch.randn(1, *part.shape, generator=rng) for part in state)
        steps = batch.steps._replace(
            reward=torch.randn(rows, LANES, generator=rng), extra={"later_state": later}
        )
    else:
        steps = a_batch(algorithm, 2, LANES, seed).steps
        ends = (torch.rand(1, LANES, generator=rng) < 0.3).float()
        steps = steps._replace(
            action=steps.action[:1],
            reward=torch.randn(1, LANES, generator=rng),
            discount=0.9 * (1 - ends),
            mask=torch.ones(1, LANES),
            extra={},
        )
        state = ()
    return Batch(steps, state, torch.arange(LANES), torch.rand(LANES, generator=rng) + 0.1)


SEQUENCES = {"burn_in": 2, "unroll": 4, "n_step": 2}
REPLAYED = {
    "dqn": (DQN, "none", {}),
    "dqn noisy": (DQN, "none", {"noisy": True, "dueling": True}),
    "dqn distributional": (DQN, "none", {"atoms": 5, "alpha": 0.5}),
    "dqn, soft target": (DQN, "none", {"target_tau": 0.1}),
    "dqn, new target": (DQN, "none", {"target_period": 2}),
    "apex": (ApeX, "none", {}),
    "r2d2": (R2D2, "lstm", SEQUENCES),
    "r2d2, soft target": (R2D2, "lstm", {**SEQUENCES, "target_tau": 0.1}),
}


def replay_builder(name):
    kind, core, settings = REPLAYED[name]
    net = NetConfig(hidden=(8,), core=core, core_size=4)
    return lambda seed: make(kind, FLAT, net, seed, **({"max_grad_norm": 0} | SGD | settings))


def target_values(learner):
    return torch.cat([p.detach().flatten() for p in learner.algorithm.target.parameters()])


@pytest.mark.parametrize("shards", SHARDS.values(), ids=SHARDS)
@pytest.mark.parametrize("name", REPLAYED)
def test_replay_ranks_on_shards_are_one_rank_on_the_whole(name, shards):
    build = replay_builder(name)
    learners = together(build, shards, replayed)
    reference = alone(build, replayed)
    assert_same(learners, reference)
    for learner in learners:
        torch.testing.assert_close(
            target_values(learner), target_values(reference), atol=1e-6, rtol=1e-5
        )


def test_ranks_start_with_the_target_of_the_first():
    build = replay_builder("dqn")
    algorithms = [build(seed) for seed in range(2)]

    def work(reducer):
        learner = Learner(algorithms[reducer.rank], LearnerConfig(), reducer, CPU)
        return target_values(learner), learner.digest()

    (first, digest_first), (second, digest_second) = FakeRanks(2).run(work)
    assert torch.equal(first, second)
    assert digest_first == digest_second


def test_a_digest_tells_targets_apart():
    learner = Learner(replay_builder("dqn")(0), LearnerConfig(), Reducer(), CPU)
    before = learner.digest()
    with torch.no_grad():
        next(learner.algorithm.target.parameters()).add_(1e-3)
    assert learner.digest() != before
