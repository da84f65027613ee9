"""Many writers and a reader at once: every window drawn is whole.

What a row holds is a function of its lane and number, so that one that was torn, overwritten or
taken from elsewhere is seen.
"""

import threading
import time

import numpy as np
import pytest
import torch
from scenes import CPU

from rookery.data.steps import Segment, Steps
from rookery.memory.distributions import Prioritized, Uniform
from rookery.memory.limiter import Limiter
from rookery.memory.replay import Replay, Sequences, Transitions
from rookery.memory.ring import Layout, Ring

WRITERS, LANES = 8, 2
ROWS, MOST = 32, 12
N, GAMMA, FRAMES = 3, 0.9, 2
WIDE = 300
"""Numbers in an observation: enough for its copying to be interrupted."""


def period(lane):
    """Return the rows of an episode, including the masked last one."""
    return 5 + lane % 4


def code(lane, row):
    """Return the number that fills an observation."""
    return 1 + lane * 2**20 + row


def masked(lane, row):
    return row % period(lane) == period(lane) - 1


def reward(lane, row):
    return np.where(masked(lane, row), 0, (31 * lane + row) % 17)


def discount(lane, row):
    """Every other episode terminates with its last step."""
    last = row % period(lane) == period(lane) - 2
    return np.where(last & (row // period(lane) % 2 == 0), 0, 1)


def action(lane, row):
    return (7 * row + lane) % 1_000


def segment(writer, first, count):
    lane = writer * LANES + np.arange(LANES)
    row = first + np.arange(count)[:, None]
    obs = torch.from_numpy(code(lane, row)).float().unsqueeze(-1).repeat(1, 1, WIDE)
    parts = (reward(lane, row), discount(lane, row), ~masked(lane, row))
    steps = Steps(
        obs,
        torch.from_numpy(action(lane, row)),
        *(torch.from_numpy(np.asarray(x, np.float32)) for x in parts),
        {},
    )
    state = torch.from_numpy(code(lane, np.full(LANES, first))).float()
    return Segment(steps, (), (state,), (state,), torch.zeros(LANES))


def check_obs(obs, lane, row):
    """Assert observations [B, FRAMES, WIDE] of rows [B]; frames before an episode are zero."""
    start = row // period(lane) * period(lane)
    expected = np.stack([np.where(r >= start, code(lane, r), 0) for r in (row - 1, row)], -1)
    flat = obs.numpy()
    assert np.array_equal(flat[..., 0], expected)
    assert (flat == flat[..., :1]).all(), "a row is torn"


def check_transitions(batch, lane, row):
    steps = batch.steps
    total, factor = np.zeros(len(lane)), np.ones(len(lane))
    last, playing = np.zeros(len(lane), int), np.ones(len(lane), bool)
    assert not masked(lane, row).any()
    for k in range(N):
        playing &= ~masked(lane, row + k)
        total += np.where(playing, factor * reward(lane, row + k), 0)
        factor *= np.where(playing, GAMMA * discount(lane, row + k), 1)
        last += playing
    check_obs(steps.obs[0], lane, row)
    check_obs(steps.obs[1], lane, row + last)
    np.testing.assert_allclose(steps.reward[0].numpy(), total, atol=1e-4)
    np.testing.assert_allclose(steps.discount[0].numpy(), factor, atol=1e-6)
    assert np.array_equal(steps.action[0].numpy(), action(lane, row))


def check_sequences(batch, lane, row):
    steps = batch.steps
    for t in range(len(steps.mask)):
        check_obs(steps.obs[t], lane, row + t)
        assert np.array_equal(steps.reward[t].numpy(), reward(lane, row + t))
        assert np.array_equal(steps.discount[t].numpy(), discount(lane, row + t))
        assert np.array_equal(steps.mask[t].numpy(), ~masked(lane, row + t))
        assert np.array_equal(steps.action[t].numpy(), action(lane, row + t))
    assert np.array_equal(batch.state[0].numpy(), code(lane, row))
    later = steps.extra["later_state"][0]
    assert np.array_equal(later[0].numpy(), code(lane, row + 4))


def a_memory(kind):
    sequences = kind == "sequences"
    windows = Sequences(10, 4, 1, 4) if sequences else Transitions(N, GAMMA)
    layout = Layout(
        obs=torch.empty(WIDE, device="meta"),
        action=torch.empty((), dtype=torch.int16, device="meta"),
        extra={},
        state=(torch.empty((), device="meta"),) if sequences else (),
        frames=FRAMES,
        stride=windows.stride,
    )
    ring = Ring(layout, WRITERS * LANES, ROWS)
    places = ring.lanes * ring.starts
    evenly = kind == "uniform"
    chance = Uniform(ring.lanes, ring.starts) if evenly else Prioritized(places, 0.6, 0.4)
    return Replay(ring, windows, chance, Limiter(None, 400, 0), 32, 0, CPU, WRITERS)


def stress(kind, seconds):
    """Write and read for `seconds`; return the numbers of batches, of windows drawn again, and of
    rows per lane."""
    memory = a_memory(kind)
    over = threading.Event()
    failures, redrawn = [], []
    find = memory.overwritten

    def overwritten(lane, row):
        late = find(lane, row)
        redrawn.append(len(late))
        return late

    memory.overwritten = overwritten

    def write(writer):
        rng = np.random.default_rng(writer)
        row = 0
        while not over.is_set():
            count = 4 if kind == "sequences" else int(rng.integers(1, MOST + 1))
            piece = segment(writer, row, count)
            memory.add(piece if kind == "sequences" else piece._replace(state=()), writer)
            row += count
            if rng.random() < 0.7:
                time.sleep(rng.random() * 4e-3)

    def guarded(writer):
        try:
            write(writer)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(w,), daemon=True) for w in range(WRITERS)]
    for thread in threads:
        thread.start()
    batches, end = 0, time.monotonic() + seconds
    check = check_sequences if kind == "sequences" else check_transitions
    try:
        while time.monotonic() < end and not failures:
            if not memory.wait_until_due(0.05):
                continue
            batch = memory.sample()
            row, lane = np.divmod(batch.keys.numpy(), memory.ring.lanes)
            check(batch, lane, row)
            memory.reweigh(batch.keys, torch.rand(32) * 5)
            batches += 1
    finally:
        over.set()
        for thread in threads:
            thread.join(10)
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads)
    check_distribution(memory)
    return batches, sum(redrawn), int(memory.head.min())


def check_distribution(memory):
    """Assert that exactly the complete windows in the ring can be drawn."""
    distribution = memory.distribution
    if isinstance(distribution, Uniform):
        present = distribution.present
    else:
        distribution.tree.check()
        present = distribution.tree.weights > 0
    assert distribution.count == np.count_nonzero(present)
    expected = set()
    stride, length = memory.windows.stride, memory.windows.length
    for lane in range(memory.ring.lanes):
        head = int(memory.head[lane // LANES])
        for row in range(max(0, head - ROWS + FRAMES - 1), head - length + 1):
            if row % stride == 0 and (stride > 1 or not masked(lane, row)):
                expected.add((lane, row))
    places = np.flatnonzero(present)
    lanes = places // memory.ring.starts
    assert {(int(a), int(b)) for a, b in zip(lanes, memory.row_at[places], strict=True)} == expected


@pytest.mark.parametrize("kind", ["prioritized", "uniform", "sequences"])
def test_windows_are_consistent_with_concurrent_writers(kind):
    batches, redrawn, rows = stress(kind, seconds=3)
    assert batches >= 3
    assert redrawn > 0  # writers did overwrite drawn windows
    assert rows > 2 * ROWS


@pytest.mark.long
@pytest.mark.parametrize("kind", ["prioritized", "uniform", "sequences"])
def test_windows_are_consistent_with_concurrent_writers_for_long(kind):
    batches, redrawn, rows = stress(kind, seconds=30)
    print(f"{kind}: {batches} batches, {redrawn} windows drawn again, {rows // ROWS} times around")
    assert batches > 50
    assert redrawn > 10
    assert rows > 20 * ROWS
