"""Windows drawn from a replay memory against the episodes stored in it."""

import collections
import time

import numpy as np
import pytest
import torch
from scenes import CPU
from streams import a_replay, a_stream, chi_square_fits, drawn, feed, layout, state_before

from rookery.algorithms.base import Collection
from rookery.algorithms.replay_config import ReplayConfig, build_replay
from rookery.data.tree import tree_map
from rookery.errors import Diverged
from rookery.memory.distributions import Prioritized
from rookery.memory.limiter import Limiter
from rookery.memory.replay import Replay, Sequences, Transitions
from rookery.memory.ring import Ring

GAMMA = 0.9


def reference(stream, lane, row, n):
    """Return n-step reward, discount and row of the bootstrap value from the planned episode."""
    number, step = stream.at(lane, row)
    episode = stream.episodes[lane][number]
    count = min(n, episode.length - step)
    total = sum(GAMMA**k * episode.rewards[step + k] for k in range(count))
    over = episode.terminated and step + count == episode.length
    return total, 0.0 if over else GAMMA**count, [lane + 1, number, step + count]


def unmasked(stream, lane, first, last):
    """Return (lane, row) of the unmasked rows in [first, last)."""
    return {(lane, row) for row in range(first, last) if not stream.masked(lane, row)}


def check_transition(stream, lane, row, batch, b, n, frames=1):
    steps = batch.steps
    total, factor, last = reference(stream, lane, row, n)
    where = steps.obs["where"]
    newest = (where[:, b] if frames == 1 else where[:, b, -1]).tolist()
    assert stream.row_of(newest[0]) == row
    assert newest[0][0] == lane + 1
    assert newest[1] == last
    assert abs(steps.reward[0, b] - total) < 1e-4
    assert abs(steps.discount[0, b] - factor) < 1e-6
    assert steps.action[0, b] == stream.arrays.action[row, lane]
    assert steps.mask[0, b] == 1


# ---------------------------------------------------------------- n-step transitions


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("head", [6, 30, 41, 200])
def test_every_unmasked_row_is_drawn_with_the_n_step_sums_of_its_episode(n, head):
    lanes, rows = 3, 40
    stream = a_stream(n, 210, lanes)
    memory = a_replay(Transitions(n, GAMMA), lanes, rows)
    feed(memory, stream, 0, head)
    expected = set()
    for lane in range(lanes):
        expected |= unmasked(stream, lane, max(0, head - rows), head - n)
    seen = set()
    for lane, row, batch, b in drawn(memory, 50):
        check_transition(stream, lane, row, batch, b, n)
        seen.add((lane, row))
    assert seen == expected
    assert memory.distribution.count == len(expected)


def test_the_last_steps_of_an_episode_appear_with_shortened_sums():
    stream = a_stream(0, 200, 2)
    memory = a_replay(Transitions(5, GAMMA), 2, 200)
    feed(memory, stream, 0, 200)
    shortened, over = collections.Counter(), collections.Counter()
    for lane, row, _, _ in drawn(memory, 100):
        number, step = stream.at(lane, row)
        episode = stream.episodes[lane][number]
        left = episode.length - step
        shortened[min(left, 5)] += 1
        over[episode.terminated and left <= 5] += 1
    assert set(shortened) == {1, 2, 3, 4, 5}
    assert min(over[True], over[False]) > 100


def test_n_step_transitions_by_hand():
    # Rewards 1, 2, 4, then truncation, a reset row, and an episode with the reward 8.
    stream = a_stream(0, 6, 1)
    steps = stream.steps
    steps.reward[:, 0] = torch.tensor([1.0, 2, 4, 0, 8, 16])
    steps.mask[:, 0] = torch.tensor([1.0, 1, 1, 0, 1, 1])
    steps.discount[:, 0] = torch.tensor([1.0, 1, 1, 1, 0, 1])
    memory = a_replay(Transitions(2, 0.5), 1, 10)
    feed(memory, stream, 0, 6)
    got = {
        row: (batch.steps.reward[0, b].item(), batch.steps.discount[0, b].item())
        for _, row, batch, b in drawn(memory, 5)
    }
    # Row 4 needs rows 5 and 6, and there is no row 6.
    assert got == {0: (2.0, 0.25), 1: (4.0, 0.25), 2: (4.0, 0.5)}


@pytest.mark.parametrize("head", [30, 60, 61, 200])
def test_first_and_last_observations_stack_frames_of_their_episode(head):
    n, frames, rows, lanes = 3, 4, 60, 2
    stream = a_stream(7, 210, lanes)
    memory = a_replay(Transitions(n, GAMMA), lanes, rows, kind=layout(frames))
    feed(memory, stream, 0, head)
    expected, seen = set(), set()
    for lane in range(lanes):
        first = max(0, head - rows + frames - 1)
        expected |= unmasked(stream, lane, first, head - n)
    for lane, row, batch, b in drawn(memory, 50):
        check_transition(stream, lane, row, batch, b, n, frames)
        for end in (0, 1):
            stack = batch.steps.obs["where"][end, b].tolist()
            _, number, step = stack[-1]
            assert stack == [
                [lane + 1, number, step - back] if step >= back else [0, 0, 0]
                for back in (3, 2, 1, 0)
            ]
        seen.add((lane, row))
    assert seen == expected
    assert memory.distribution.count == len(expected) > 0


def test_windows_are_drawn_equally_often():
    stream = a_stream(2, 100, 2)
    memory = a_replay(Transitions(3, GAMMA), 2, 50)
    feed(memory, stream, 0, 100)
    counts = collections.Counter((lane, row) for lane, row, _, _ in drawn(memory, 400))
    even = 400 * 64 / len(counts)
    assert chi_square_fits(list(counts.values()), np.full(len(counts), even))


# ---------------------------------------------------------------- sequences


def check_sequence(stream, lane, row, batch, b, length, origin=0):
    """Assert that rows and masks are those of the stream."""
    part = slice(row - origin, row - origin + length)
    got, expected = batch.steps, stream.arrays
    assert np.array_equal(got.obs["where"][:, b], expected.obs["where"][part, lane])
    assert np.array_equal(got.obs["shade"][:, b], expected.obs["shade"][part, lane])
    for name in ("action", "reward", "discount", "mask"):
        assert np.array_equal(getattr(got, name)[:, b], getattr(expected, name)[part, lane])


@pytest.mark.parametrize(("length", "stride"), [(10, 4), (8, 4), (9, 3), (5, 5)])
@pytest.mark.parametrize("head", [24, 60, 240])
def test_sequences_are_rows_of_the_stream_with_the_stored_states(length, stride, head):
    lanes, rows, later = 3, 60, stride
    stream = a_stream(5, 250, lanes)
    windows = Sequences(length, stride, samples=7, later=later)
    kind = layout(stride=stride, state=True)
    memory = a_replay(windows, lanes, rows, kind=kind, batch_size=32)
    head = head // stride * stride
    feed(memory, stream, 0, head, sizes=(stride,))
    expected = {
        (lane, row)
        for lane in range(lanes)
        for row in range(0, head, stride)
        if row >= head - rows and row + length <= head
    }
    seen = set()
    for lane, row, batch, b in drawn(memory, 40):
        check_sequence(stream, lane, row, batch, b, length)
        # If the length is one stride, the state after the window is stored with the next segment.
        ends = (batch.state, row), (batch.steps.extra["later_state"], row + later)
        for state, at in ends if length > later else ends[:1]:
            vector, number = state_before([lane], at)
            assert state[0].reshape(-1, 2)[b].tolist() == vector[0].tolist()
            assert state[1].reshape(-1)[b] == number[0]
        assert batch.steps.extra["later_state"][0].shape == (1, 32, 2)
        seen.add((lane, row))
    assert seen == expected
    assert memory.distribution.count == len(expected)


@pytest.mark.parametrize("head", [40, 240])
def test_sequences_of_stacks_do_not_mix_episodes(head):
    lanes, rows, frames, length, stride = 2, 40, 4, 10, 4
    stream = a_stream(6, 250, lanes)
    kind = layout(frames, stride, state=True)
    memory = a_replay(Sequences(length, stride, 1, stride), lanes, rows, kind=kind, batch_size=32)
    feed(memory, stream, 0, head, sizes=(stride,))
    seen = set()
    for lane, row, batch, b in drawn(memory, 30):
        seen.add((lane, row))
        for t in range(length):
            number, step = stream.at(lane, row + t)
            assert batch.steps.obs["where"][t, b].tolist() == [
                [lane + 1, number, step - back] if step >= back else [0, 0, 0]
                for back in (3, 2, 1, 0)
            ]
    oldest = max(0, head - rows + frames - 1)
    starts = [row for row in range(0, head - length + 1, stride) if row >= oldest]
    assert seen == {(lane, row) for lane in range(lanes) for row in starts}


SMALLEST = [
    # (length, stride, frames): Transitions with stride 1; the others as in R2D2.
    *((4, 1, 1), (4, 1, 4), (10, 4, 1), (10, 4, 2), (11, 5, 4), (9, 4, 4)),
    (123, 40, 4),
]


@pytest.mark.parametrize(("length", "stride", "frames"), SMALLEST)
def test_the_smallest_memory_that_is_accepted_always_has_a_window(length, stride, frames):
    # The reader may draw while a writer is about to overwrite the oldest rows.
    count = stride if stride > 1 else 8
    least = -(-(length + stride + frames + count) // stride) * stride
    memory = build_replay(
        ReplayConfig(capacity=least, batch_size=4, warm_up=0, samples_per_insert=None),
        layout(frames, stride),
        Transitions(length - 1, GAMMA) if stride == 1 else Sequences(length, stride, 1, stride),
        Collection(count),
        CPU,
        first_priorities=None,
        lanes=1,
        writers=1,
        seed=0,
    )
    assert memory.ring.rows == least
    stream = one_long_episode(5 * least)
    left = []
    write = memory.ring.write

    def watched(*rows):
        left.append(memory.distribution.count)
        write(*rows)

    feed(memory, stream, 0, least // count * count, sizes=(count,))
    memory.ring.write = watched
    feed(memory, stream, least // count * count, 4 * least, sizes=(count,))
    assert min(left) > 0


# ---------------------------------------------------------------- writers and cuts


def test_writers_fill_only_their_own_lanes():
    streams = [a_stream(seed, 300, 2) for seed in range(3)]
    memory = a_replay(Transitions(3, GAMMA), 6, 30, writers=3)
    heads = (100, 17, 230)
    order = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [100, 17, 230]))
    at = [0, 0, 0]
    for writer in order:
        feed(memory, streams[writer], at[writer], at[writer] + 1, writer)
        at[writer] += 1
    expected, seen = set(), set()
    for writer, head in enumerate(heads):
        for lane in (0, 1):
            rows = unmasked(streams[writer], lane, max(0, head - 30), head - 3)
            expected |= {(2 * writer + lane, row) for lane, row in rows}
    for lane, row, batch, b in drawn(memory, 60):
        writer, own = divmod(lane, 2)
        check_transition(streams[writer], own, row, batch, b, 3)
        seen.add((lane, row))
    assert seen == expected


@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize("cut_at", [20, 29, 50, 75])
def test_no_transition_and_no_stack_reaches_across_a_cut(cut_at, frames):
    n, rows, lanes = 3, 30, 2
    before, after = a_stream(1, 100, lanes), a_stream(2, 100, lanes)
    memory = a_replay(Transitions(n, GAMMA), lanes, rows, kind=layout(frames))
    feed(memory, before, 0, cut_at)
    memory.cut(0)
    more = 14
    feed(memory, after, 0, more)
    head = cut_at + more
    oldest = max(0, head - rows + frames - 1)
    expected, seen = set(), set()
    for lane in range(lanes):
        expected |= unmasked(before, lane, oldest, cut_at - n)
        expected |= {(lane, cut_at + row) for lane, row in unmasked(after, lane, 0, more - n)}
    for lane, row, batch, b in drawn(memory, 60):
        stream, at = (before, row) if row < cut_at else (after, row - cut_at)
        check_transition(stream, lane, at, batch, b, n, frames)
        if frames > 1:
            for end in (0, 1):
                stack = batch.steps.obs["where"][end, b].tolist()
                _, number, step = stack[-1]
                assert stack == [
                    [lane + 1, number, step - back] if step >= back else [0, 0, 0]
                    for back in (3, 2, 1, 0)
                ]
        seen.add((lane, row))
    assert seen == expected


@pytest.mark.parametrize("cut_at", [16, 18, 30, 41])
def test_no_sequence_reaches_across_a_cut(cut_at):
    length, stride, rows, lanes = 9, 4, 32, 2
    before, after = a_stream(1, 100, lanes), a_stream(2, 100, lanes)
    memory = a_replay(Sequences(length, stride, 1, stride), lanes, rows, kind=layout(stride=4))
    feed(memory, before, 0, cut_at, sizes=(4,))
    memory.cut(0)
    begin = -(-cut_at // stride) * stride  # windows start at multiples of the stride
    more = 16
    feed(memory, after, 0, more, sizes=(4,))
    oldest = max(0, begin + more - rows)
    expected = {
        (lane, row)
        for lane in range(lanes)
        for row in range(0, begin + more, stride)
        if row >= oldest
        and (row + length <= cut_at or (row >= begin and row + length <= begin + more))
    }
    seen = set()
    for lane, row, batch, b in drawn(memory, 30):
        if row < begin:
            check_sequence(before, lane, row, batch, b, length)
        else:
            check_sequence(after, lane, row, batch, b, length, origin=begin)
        seen.add((lane, row))
    assert seen == expected


def test_a_cut_of_one_writer_does_not_change_the_others():
    streams = [a_stream(seed, 60, 1) for seed in range(2)]
    memory = a_replay(Transitions(3, GAMMA), 2, 30, writers=2)
    feed(memory, streams[0], 0, 20, 0)
    feed(memory, streams[1], 0, 20, 1)
    memory.cut(0)
    feed(memory, streams[1], 20, 30, 1)
    seen = {row for lane, row, _, _ in drawn(memory, 30) if lane == 1}
    assert {(0, row) for row in seen} == unmasked(streams[1], 0, 0, 27)


def test_cuts_before_the_first_row_and_in_succession_work():
    memory = a_replay(Transitions(2, GAMMA), 1, 20)
    memory.cut(0)
    memory.cut(0)
    stream = a_stream(0, 60, 1, longest=4)
    expected, start = set(), 0
    for piece in range(12):  # five rows each, with a cut after every one
        feed(memory, stream, 5 * piece, 5 * piece + 5)
        memory.cut(0)
        start = 5 * piece
        expected |= unmasked(stream, 0, start, start + 3)
    seen = {(lane, row) for lane, row, _, _ in drawn(memory, 20)}
    assert seen == {(lane, row) for lane, row in expected if row >= 40}


# ---------------------------------------------------------------- priorities


def prioritized(lanes=1, rows=20, n=1, **more):
    return a_replay(Transitions(n, GAMMA), lanes, rows, alpha=1.0, beta=0.5, **more)


def weight_at(memory, lane, row):
    return memory.distribution.tree.weights[memory.place_of(np.array(lane), np.array(row))]


def one_long_episode(rows, lanes=1):
    stream = a_stream(0, rows, lanes, longest=1)
    stream.steps.mask.fill_(1)
    stream.steps.discount.fill_(1)
    return stream


def test_a_priority_that_comes_in_time_is_applied():
    memory = prioritized(lanes=2)
    feed(memory, one_long_episode(40, 2), 0, 30)
    batch = memory.sample()
    memory.reweigh(batch.keys, batch.keys.float() + 1)
    for key in set(batch.keys.tolist()):
        assert weight_at(memory, key % 2, key // 2) == key + 1
    memory.distribution.tree.check()


@pytest.mark.parametrize("windows", [Transitions(3, GAMMA), Sequences(10, 4, 1, 4)])
def test_later_rows_do_not_change_priorities(windows):
    memory = a_replay(windows, 1, 80, kind=layout(stride=windows.stride), alpha=1.0)
    stream = one_long_episode(80)
    feed(memory, stream, 0, 40, sizes=(4,))
    rows = list(range(0, 41 - windows.length, windows.stride))
    memory.reweigh(torch.tensor(rows), torch.full((len(rows),), 0.25))
    feed(memory, stream, 40, 60, sizes=(4,))
    assert [weight_at(memory, 0, row) for row in rows] == [0.25] * len(rows)


def test_a_priority_for_an_overwritten_window_is_dropped():
    memory = prioritized()
    stream = one_long_episode(60)
    feed(memory, stream, 0, 30, sizes=(10,))
    keys = torch.arange(10, 29)
    assert {row for _, row, _, _ in drawn(memory, 10)} == set(keys.tolist())
    feed(memory, stream, 30, 35)  # overwrites rows 10 to 14 and adds the windows 29 to 33
    memory.reweigh(keys, torch.full((19,), 7.0))
    weights = [weight_at(memory, 0, row) for row in range(15, 35)]
    # Row 34 is in the slot of row 14, and its window is not complete yet.
    assert weights == [7.0] * 14 + [1.0] * 5 + [0.0]
    assert memory.distribution.count == 19


def test_a_late_priority_never_revives_a_window():
    memory = prioritized()
    stream = one_long_episode(60)
    feed(memory, stream, 0, 20)
    keys = memory.sample().keys
    feed(memory, stream, 20, 60)
    before = memory.distribution.tree.weights.copy()
    memory.reweigh(keys, torch.full((64,), 7.0))
    assert np.array_equal(memory.distribution.tree.weights, before)


def test_a_priority_for_a_place_whose_new_row_is_masked_is_dropped():
    memory = prioritized()
    stream = one_long_episode(60)
    feed(memory, stream, 0, 20)
    stream.steps.mask[20:40] = 0
    stream.steps.mask[39] = 1
    keys = memory.sample().keys
    feed(memory, stream, 20, 41)
    memory.reweigh(keys, torch.full((64,), 7.0))
    assert {row for _, row, _, _ in drawn(memory, 5)} == {39}
    assert memory.distribution.count == 1


def test_frequencies_follow_the_priorities_that_were_given():
    memory = prioritized(rows=10)
    feed(memory, one_long_episode(10), 0, 10)
    keys = torch.arange(9)
    memory.reweigh(keys, keys.float() + 1)
    counts = collections.Counter(row for _, row, _, _ in drawn(memory, 500))
    expected = np.arange(1, 10) / 45 * 500 * 64
    assert chi_square_fits([counts[row] for row in range(9)], expected)


def test_importance_weights_are_divided_by_the_largest_of_the_batch():
    memory = prioritized(rows=12)
    feed(memory, one_long_episode(12), 0, 12)
    priorities = torch.arange(11).float() + 1
    memory.reweigh(torch.arange(11), priorities)
    for _ in range(5):
        batch = memory.sample()
        chance = priorities[batch.keys] / priorities.sum()
        weight = (11 * chance) ** -0.5
        torch.testing.assert_close(batch.weight, weight / weight.max())
        assert batch.weight.max() == 1
        assert batch.weight.dtype == torch.float32


def test_uniform_weights_are_1_and_priorities_have_no_effect():
    memory = a_replay(Transitions(1, GAMMA), 1, 20)
    feed(memory, one_long_episode(20), 0, 20)
    batch = memory.sample()
    memory.reweigh(batch.keys, torch.rand(64))
    assert batch.weight.tolist() == [1.0] * 64
    assert memory.distribution.count == 19


def test_a_non_finite_priority_raises_diverged():
    memory = prioritized()
    feed(memory, one_long_episode(20), 0, 20)
    with pytest.raises(Diverged):
        memory.reweigh(memory.sample().keys, torch.full((64,), torch.nan))


@pytest.mark.parametrize("sizes", [(1,), (1, 2, 3, 5, 8), (16,)])
def test_first_priorities_depend_on_the_rows_of_their_window_only(sizes):
    n, lanes, rows = 2, 3, 40

    def first(columns, starts):
        """Return priorities that encode the rows: the first action value and the value n later."""
        assert len(columns.reward) == starts[-1] + n + 1
        assert columns.extra["q"].shape == columns.mask.shape == columns.discount.shape
        q, value = columns.extra["q"], columns.extra["value"]
        return torch.stack([abs(q[s]) + 10 * abs(value[s + n]) + columns.mask[s] for s in starts])

    stream = a_stream(4, 150, lanes)
    memory = a_replay(Transitions(n, GAMMA), lanes, rows, alpha=1.0, first_priorities=first)
    for head in (16, 32, 48, 150):
        feed(memory, stream, {16: 0, 32: 16, 48: 32, 150: 48}[head], head, sizes=sizes)
        q, value = stream.steps.extra["q"].double(), stream.steps.extra["value"].double()
        for lane in range(lanes):
            for lane_, row in unmasked(stream, lane, max(0, head - rows), head - n):
                expected = abs(q[row, lane_]) + 10 * abs(value[row + n, lane_]) + 1
                assert weight_at(memory, lane_, row) == pytest.approx(expected.item(), rel=1e-6)


def test_first_priorities_of_sequences():
    length, stride, lanes = 6, 3, 2

    def first(columns, starts):
        q = columns.extra["q"]
        return torch.stack([abs(q[s : s + length]).sum(0) for s in starts])

    stream = a_stream(4, 60, lanes)
    windows = Sequences(length, stride, 1, 3)
    kind = layout(stride=stride)
    memory = a_replay(windows, lanes, 30, kind=kind, alpha=1.0, first_priorities=first)
    feed(memory, stream, 0, 60, sizes=(3, 6))
    for lane in range(lanes):
        for row in range(30, 55, stride):
            expected = stream.steps.extra["q"][row : row + length, lane].abs().sum().item()
            assert weight_at(memory, lane, row) == pytest.approx(expected, rel=1e-5)


# ---------------------------------------------------------------- what is due, and the report


def limited(ratio, warm_up, batch_size=4, lanes=2, rows=50, samples=1):
    windows = Sequences(3, 1, samples, 1) if samples > 1 else Transitions(1, GAMMA)
    ring = Ring(layout(), lanes, rows)
    tree = Prioritized(lanes * rows, 1.0, 0.4)
    return Replay(ring, windows, tree, Limiter(ratio, warm_up, 10**9), batch_size, 0, CPU)


def test_batches_yields_as_many_as_are_due():
    memory, stream = limited(ratio=2.0, warm_up=20), one_long_episode(60, 2)
    feed(memory, stream, 0, 9, sizes=(9,))
    assert not list(memory.batches())  # 18 rows of 20
    feed(memory, stream, 9, 10)
    assert not list(memory.batches())  # the warm-up ends, nothing is due yet
    feed(memory, stream, 10, 15, sizes=(5,))
    assert len(list(memory.batches())) == 5  # 10 rows, 20 samples
    assert not list(memory.batches())
    feed(memory, stream, 15, 16)
    assert len(list(memory.batches())) == 1
    assert not memory.wait_until_due(0.01)
    feed(memory, stream, 16, 17)
    assert memory.wait_until_due(0.01)


@pytest.mark.parametrize("state", [False, True])
def test_batches_drawn_together_contain_correct_windows(state):
    length, stride, lanes, rows = 10, 4, 3, 80
    stream = a_stream(5, 250, lanes)
    kind = layout(stride=stride, state=True) if state else layout()
    windows = Sequences(length, stride, 1, stride) if state else Transitions(3, GAMMA)
    memory = a_replay(windows, lanes, rows, kind=kind, batch_size=8)
    memory.limiter = Limiter(2.0, 1, 10**9)
    feed(memory, stream, 0, 4, sizes=(4,))
    feed(memory, stream, 4, 200, sizes=(4,))
    batches = list(memory.batches())
    assert len(batches) == 2 * 196 * lanes // 8
    assert memory.limiter.sampled == 8 * len(batches)
    seen = collections.Counter()
    for torch_batch in batches:
        batch = tree_map(torch.Tensor.numpy, torch_batch)
        assert batch.keys.shape == batch.weight.shape == (8,)
        for b, key in enumerate(batch.keys.tolist()):
            row, lane = divmod(key, lanes)
            seen[row, lane] += 1
            if not state:
                check_transition(stream, lane, row, batch, b, 3)
                continue
            check_sequence(stream, lane, row, batch, b, length)
            vector, _ = state_before([lane], row)
            later, _ = state_before([lane], row + stride)
            assert batch.state[0][b].tolist() == vector[0].tolist()
            assert batch.steps.extra["later_state"][0][0, b].tolist() == later[0].tolist()
    assert batches[0].keys.tolist() != batches[1].keys.tolist()
    assert len(seen) > 50 or state
    assert not list(memory.batches())


def test_new_priorities_apply_to_the_next_batch():
    memory, stream = limited(ratio=2.0, warm_up=0, batch_size=4), one_long_episode(60, 2)
    feed(memory, stream, 0, 5, sizes=(5,))
    feed(memory, stream, 5, 20, sizes=(5,))
    largest = torch.arange(38) == 7
    for number, batch in enumerate(memory.batches()):
        if number:
            assert batch.keys.tolist() == [7] * 4
        memory.reweigh(torch.arange(38), torch.where(largest, 1e12, 0.0))
    assert number == 14  # 30 rows, 60 samples


def test_a_sequence_counts_as_several_samples():
    memory, stream = limited(ratio=1.0, warm_up=0, samples=5), one_long_episode(60, 2)
    feed(memory, stream, 0, 10, sizes=(10,))
    feed(memory, stream, 10, 30, sizes=(20,))
    batches = list(memory.batches())
    assert len(batches) == 2  # 40 rows, batches of 4 x 5
    memory.reweigh(batches[0].keys, torch.ones(4))
    report = memory.take_report(seconds=1.0)
    assert (report["sampled_per_second"], report["trained_per_second"]) == (40, 20)


def test_without_a_ratio_batches_yields_one():
    memory = a_replay(Transitions(1, GAMMA), 1, 20)
    assert not list(memory.batches())
    stream = one_long_episode(20)
    feed(memory, stream, 0, 1)
    assert not list(memory.batches())  # no window is complete yet
    feed(memory, stream, 1, 20)
    assert len(list(memory.batches())) == 1
    assert len(list(memory.batches())) == 1


@pytest.mark.parametrize(
    ("windows", "count"), [(Transitions(3, GAMMA), 1), (Transitions(10, GAMMA), 1)]
)
@pytest.mark.parametrize("warm_up", [0, 20])
def test_writers_do_not_wait_before_a_window_can_be_drawn(windows, count, warm_up):
    # Otherwise both sides would wait for each other forever.
    memory = build_replay(
        ReplayConfig(capacity=100, batch_size=4, warm_up=warm_up, samples_per_insert=8.0),
        layout(),
        windows,
        Collection(count),
        CPU,
        first_priorities=None,
        lanes=1,
        writers=1,
        seed=0,
    )
    stream, row = one_long_episode(100), 0
    while memory.limiter.may_insert():
        feed(memory, stream, row, row + count, sizes=(count,))
        row += count
    assert memory.due() > 0


def test_a_reader_waits_for_the_first_window():
    memory = a_replay(Transitions(5, GAMMA), 1, 20)
    feed(memory, one_long_episode(5), 0, 5)  # the limiter would let it draw
    start = time.monotonic()
    assert not memory.wait_until_due(0.2)
    assert time.monotonic() - start > 0.15


def test_report_by_hand():
    memory, stream = limited(ratio=None, warm_up=0, batch_size=8), one_long_episode(200, 2)
    feed(memory, stream, 0, 25, sizes=(25,))
    batches = [memory.sample() for _ in range(3)]
    memory.reweigh(batches[0].keys, torch.ones(8))
    rows = torch.cat([batch.keys for batch in batches]) // 2
    assert memory.take_report(seconds=2.0) == {
        "added_per_second": 25.0,
        "sampled_per_second": 12.0,
        "trained_per_second": 4.0,
        "replay_fill": 0.5,
        "replay_age_mean": pytest.approx((25 - rows.double()).mean().item() * 2),
    }
    feed(memory, stream, 25, 100, sizes=(25,))
    assert memory.take_report(seconds=1.0) == {
        "added_per_second": 150.0,
        "sampled_per_second": 0.0,
        "trained_per_second": 0.0,
        "replay_fill": 1.0,
        "replay_age_mean": 0.0,
    }


def test_the_description_names_rows_and_memory():
    memory = a_replay(Transitions(1, GAMMA), 4, 250_000)
    # where 6, shade 4, action 2, q and value 8, reward 4, discount and mask 2: 26 bytes, and 9 of
    # a window: the number of its first row, and a flag.
    assert memory.describe().startswith("replay: 1,000,000 rows, 35.0 MB of the machine's ")


def test_the_same_seed_draws_the_same_windows():
    def keys(seed):
        memory = a_replay(Transitions(1, GAMMA), 2, 20)
        memory.generator.manual_seed(seed)
        feed(memory, one_long_episode(20, 2), 0, 20)
        return memory.sample().keys.tolist()

    assert keys(1) == keys(1) != keys(2)


def test_stored_rows_are_copies():
    stream = one_long_episode(10)
    memory = a_replay(Transitions(1, GAMMA), 1, 20)
    feed(memory, stream, 0, 10)
    for part in (*stream.steps.obs.values(), stream.steps.action, stream.steps.reward):
        part.fill_(0)
    batch = memory.sample()
    assert (batch.steps.obs["where"][..., 0] == 1).all()
    before = batch.steps.obs["where"].clone()
    feed(memory, stream, 0, 10)
    assert torch.equal(batch.steps.obs["where"], before)
