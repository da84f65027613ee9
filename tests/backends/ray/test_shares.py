"""What a learner draws from several replay shards is what it would draw from one memory."""

import numpy as np
import pytest
import torch
from in_process import Handle, Here
from scenes import CPU

from rookery.backends.ray.remote_replay import (
    MAX_BATCHES_TOGETHER,
    RemoteReplay,
    draw_shard_sizes,
    split_charge,
)
from rookery.backends.ray.workers import ShardWorker
from rookery.data.steps import Segment, Steps
from rookery.memory.distributions import Prioritized, Uniform
from rookery.memory.limiter import Limiter
from rookery.memory.replay import Replay, Transitions
from rookery.memory.ring import Layout, Ring

BATCH, ALPHA, BETA = 16, 0.6, 0.4
SMALL, LARGE = [0.01, 0.03, 0.02, 0.5, 0.2, 0.1], [4.0, 1.0, 9.0, 2.5]
WARM_UP = 3


def a_shard(first, priorities, alpha=ALPHA, ratio=None, seed=0):
    """A shard whose windows are told by their observations, `first` and those that follow."""
    rows = len(priorities) + 1
    kind = torch.empty((), device="meta")
    layout = Layout(kind, torch.empty((), dtype=torch.int16, device="meta"), {})
    chance = Prioritized(rows, alpha, 1.0) if alpha else Uniform(1, rows)
    limiter = Limiter(ratio, WARM_UP, 10**9)
    memory = Replay(Ring(layout, 1, rows), Transitions(1, 1.0), chance, limiter, BATCH, seed, CPU)
    ones = torch.ones(rows, 1)
    obs = torch.arange(first, first + rows, dtype=torch.float32)[:, None]
    memory.add(Segment(Steps(obs, ones, ones, ones, ones, {}), (), (), (), ones[0]))
    memory.reweigh(torch.arange(rows - 1), torch.tensor(priorities))
    shard = ShardWorker.__new__(ShardWorker)
    shard.memory = memory
    return shard


@pytest.fixture
def here(monkeypatch):
    return Here(monkeypatch)


def replay_of(here, *shards, ahead=2, beta=BETA):
    """A learner's view of shards, numbered from 3 on."""
    replay = RemoteReplay(CPU, ahead, BATCH, 0, beta)
    replay.shards = {number: Handle(here, shard) for number, shard in enumerate(shards, 3)}
    return replay


def drawn(replay, count):
    for _ in range(count):
        assert any(replay.wait_until_due(1.0) for _ in range(100))
        yield replay.sample()


def windows(batch):
    return batch.steps.obs[0].long()


def chi_square_fits(counts, expected):
    """True if counts are those of a distribution, with a margin of six standard deviations."""
    assert expected.min() >= 5
    statistic, freedom = ((counts - expected) ** 2 / expected).sum(), len(expected) - 1
    return statistic < freedom + 6 * np.sqrt(2 * freedom)


def test_windows_are_drawn_by_their_priority_among_those_of_all_shards(here):
    replay = replay_of(here, a_shard(0, SMALL), a_shard(len(SMALL), LARGE, seed=1))
    scaled = np.array(SMALL + LARGE) ** ALPHA
    probability = scaled / scaled.sum()
    weight = (len(scaled) * probability) ** -BETA
    counts = np.zeros(len(scaled))
    for batch in drawn(replay, 400):
        index = windows(batch).numpy()
        np.add.at(counts, index, 1)
        np.testing.assert_allclose(batch.weight, weight[index] / weight[index].max(), rtol=1e-6)
    assert chi_square_fits(counts, counts.sum() * probability)


def test_beta_rises_over_the_run(here):
    replay = replay_of(here, a_shard(0, SMALL), a_shard(len(SMALL), LARGE, seed=1), ahead=1)
    replay.beta_end = 1.0
    next(drawn(replay, 1))
    replay.set_progress(0.5)
    probability = np.array(SMALL + LARGE) ** ALPHA
    for batch in drawn(replay, 3):
        weight = probability[windows(batch).numpy()] ** -0.7
        np.testing.assert_allclose(batch.weight, weight / weight.max(), rtol=1e-6)


def test_without_priorities_every_window_of_all_shards_is_drawn_alike(here):
    shards = a_shard(0, [1.0] * 5, alpha=0), a_shard(5, [1.0] * 40, alpha=0, seed=1)
    replay = replay_of(here, *shards, beta=0.0)
    counts = np.zeros(45)
    for batch in drawn(replay, 400):
        np.add.at(counts, windows(batch).numpy(), 1)
        assert (batch.weight == 1).all()
    assert chi_square_fits(counts, np.full(45, counts.sum() / 45))


def test_weights_are_by_the_probability_that_totals_of_the_last_message_gave(here):
    small, large = a_shard(0, [1.0, 1.0]), a_shard(2, [1.0, 1.0, 1.0], seed=1)
    replay = replay_of(here, small, large, ahead=1)
    next(drawn(replay, 1))
    large.memory.reweigh(torch.arange(3), torch.tensor([1.0, 50.0, 8.0]))
    (batch,) = drawn(replay, 1)
    # 2 of 5 windows were to come from the first, and 3 of 5 from the second as it is now.
    scaled = np.array([1.0, 50.0, 8.0]) ** ALPHA
    probability = np.concatenate([[0.2, 0.2], 0.6 * scaled / scaled.sum()])
    index = windows(batch).numpy()
    assert (index < 2).sum() in (6, 7)
    weight = probability[index] ** -BETA
    np.testing.assert_allclose(batch.weight, weight / weight.max(), rtol=1e-6)


def test_new_priorities_go_to_the_shard_a_window_came_from(here):
    small, large = a_shard(0, [1.0] * 3, alpha=1.0), a_shard(3, [1.0] * 3, alpha=1.0, seed=1)
    replay = replay_of(here, small, large, ahead=1)
    (batch,) = drawn(replay, 1)
    assert windows(batch).unique().tolist() == [0, 1, 2, 3, 4, 5]
    replay.reweigh(batch.keys, windows(batch) + 10.0)
    assert small.memory.distribution.tree.weights.tolist() == [10, 11, 12, 0]
    assert large.memory.distribution.tree.weights.tolist() == [13, 14, 15, 0]


def test_a_shard_is_drawn_from_once_its_warm_up_is_over(here):
    young = a_shard(0, [1.0] * 3)
    replay = replay_of(here, young, a_shard(3, [1.0] * 3, seed=1), ahead=1)
    young.memory.limiter.started_at = None
    assert all((windows(batch) >= 3).all() for batch in drawn(replay, 20))
    young.memory.limiter.started_at = 0
    rest = list(drawn(replay, 40))
    asked_before = 3 * MAX_BATCHES_TOGETHER  # with totals from before it
    assert all((windows(batch) < 3).any() for batch in rest[asked_before:])


def test_batches_with_windows_of_a_lost_shard_are_dropped_and_others_come(here):
    replay = replay_of(here, a_shard(0, [1.0] * 3), a_shard(3, [1.0] * 3, seed=1))
    for batch in drawn(replay, 5):
        assert windows(batch).max() >= 3
    here.kill(replay.shards[4])
    rest = list(drawn(replay, 40))
    assert replay.lost == {4}
    assert all(len(windows(batch)) == BATCH for batch in rest)
    given_before = 3 * MAX_BATCHES_TOGETHER  # the rest of one order, and two that were under way
    assert all((windows(batch) < 3).all() for batch in rest[given_before:])


@pytest.mark.parametrize("shares", [[0.3, 0.7], [0.0, 1.0, 0.0], [0.05, 0.05, 0.9], [1.0]])
def test_a_batch_is_dealt_out_by_the_shares(shares):
    random = np.random.default_rng(0)
    counts = np.array([draw_shard_sizes(np.array(shares), 10, random) for _ in range(2_000)])
    assert (counts.sum(1) == 10).all()
    assert (abs(counts - 10 * np.array(shares)) <= 1).all()
    np.testing.assert_allclose(counts.mean(0), 10 * np.array(shares), atol=0.05)


def test_nobody_is_charged_with_more_than_its_credit():
    random = np.random.default_rng(0)
    for _ in range(2_000):
        credits = random.integers(0, 50, random.integers(1, 5)).tolist()
        count = int(random.integers(0, sum(credits) + 1))
        if sum(credits):
            charges = split_charge(credits, count)
            assert sum(charges) == count
            assert all(0 <= c <= most for c, most in zip(charges, credits, strict=True))


def test_no_more_is_drawn_than_is_due_over_all_shards(here):
    shards = a_shard(0, SMALL, ratio=8.0), a_shard(6, LARGE, ratio=8.0)
    replay = replay_of(here, *shards)
    for shard, rows in zip(shards, (5, 2), strict=True):
        shard.memory.limiter.note_inserted(rows)
    assert len(list(drawn(replay, 3))) == 3  # 40 and 16 are due, in batches of 16
    for _ in range(5):
        assert not replay.wait_until_due(0.01)
    left = [shard.memory.limiter.due for shard in shards]
    assert sum(left) == 8
    assert min(left) >= 0


def test_shards_that_are_drawn_from_unequally_all_go_on(drive):
    """Rows of the second have a ten-thousandth of the priority: its writer still keeps up."""
    algo = {"capacity": 2_000, "warm_up": 100, "batch_size": 8, "rollout_steps": 5}
    algo |= {"alpha": 1.0, "samples_per_insert": 2.0}
    here, driver, told = drive(
        "apex", "CartPole-v1", actors=2, envs=2, ray={"replay_shards": 2}, algo=algo
    )
    first, second = (shard.memory for shard in here.workers(ShardWorker))
    weights_of = second.distribution.weights_of
    second.distribution.weights_of = lambda priority: 1e-4 * weights_of(priority)
    for _ in range(2_000):
        driver.advance(0)
        if min(first.limiter.inserted, second.limiter.inserted) >= 400:
            break
    for memory in (first, second):
        limiter = memory.limiter
        assert limiter.inserted >= 400
        assert 0 <= limiter.due <= limiter.tolerance + 2 * 5 * 2 * limiter.samples_per_insert
    assert second.trained < 0.05 * first.trained
    assert told == []
