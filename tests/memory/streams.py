"""Streams of rows that contain their own position, and replay memories to store them."""

from __future__ import annotations

import bisect
from typing import NamedTuple

import numpy as np
import torch
from scenes import CPU

from rookery.data.steps import Segment, Steps
from rookery.data.tree import tree_map
from rookery.memory.distributions import Prioritized, Uniform
from rookery.memory.limiter import Limiter
from rookery.memory.replay import Replay
from rookery.memory.ring import Layout, Ring


class Episode(NamedTuple):
    """A planned episode of a lane; the stream may end before it does."""

    start: int
    """Row of its first step; its final observation is on the masked row start + length."""
    rewards: list[float]
    terminated: bool

    @property
    def length(self):
        return len(self.rewards)


class Stream(NamedTuple):
    """Rows [T, B] of several lanes in NEXT_STEP mode, and the episodes of each lane."""

    steps: Steps
    episodes: list[list[Episode]]
    arrays: Steps
    """The same rows as numpy arrays, for faster access."""

    def row_of(self, where):
        """Return the row whose observation `where` is (lane + 1, episode, step)."""
        lane, episode, step = (int(x) for x in where)
        return self.episodes[lane - 1][episode].start + step

    def at(self, lane, row):
        """Return the episode of a row and the row's step in it."""
        episodes = self.episodes[lane]
        number = bisect.bisect_right(episodes, row, key=lambda episode: episode.start) - 1
        return number, row - episodes[number].start

    def masked(self, lane, row):
        number, step = self.at(lane, row)
        return step == self.episodes[lane][number].length


def a_stream(seed, rows, lanes, longest=12):
    """Return a stream of episodes of 1 to `longest` steps, half of them truncated.

    An observation says (lane + 1, episode, step), so that no observation is zero.
    """
    rng = np.random.default_rng(seed)
    where = np.zeros((rows, lanes, 3), np.int16)
    reward = np.zeros((rows, lanes), np.float32)
    discount, mask = np.ones((rows, lanes), np.float32), np.ones((rows, lanes), np.float32)
    episodes = [[] for _ in range(lanes)]
    for lane in range(lanes):
        row = 0
        while row < rows:
            length, terminated = int(rng.integers(1, longest + 1)), bool(rng.integers(2))
            rewards = [float(x) for x in rng.integers(-9, 10, length)]
            for t in range(min(length + 1, rows - row)):
                where[row + t, lane] = lane + 1, len(episodes[lane]), t
                mask[row + t, lane] = t < length
                reward[row + t, lane] = rewards[t] if t < length else 0
                discount[row + t, lane] = not (terminated and t == length - 1)
            episodes[lane].append(Episode(row, rewards, terminated))
            row += length + 1
    number = np.arange(rows * lanes).reshape(rows, lanes)
    obs = {"where": torch.from_numpy(where), "shade": torch.from_numpy(number % 251 / 256).float()}
    extra = {
        "q": torch.from_numpy(rng.normal(size=(rows, lanes))).float(),
        "value": torch.from_numpy(rng.normal(size=(rows, lanes))).float(),
    }
    small = (torch.from_numpy(x) for x in (reward, discount, mask))
    steps = Steps(obs, torch.from_numpy(number % 18), *small, extra)
    return Stream(steps, episodes, tree_map(torch.Tensor.numpy, steps))


def state_before(lanes, row):
    """Return the recurrent state before a row, [B, 2] and [B]; it contains lane + 1 and row."""
    lane = torch.as_tensor(lanes) + 1.0
    row = torch.as_tensor(row).expand_as(lane).float()
    return torch.stack([lane, row], -1), lane * 1000 + row


def layout(frames=1, stride=1, state=False):
    return Layout(
        obs={
            "where": torch.empty(3, dtype=torch.int16, device="meta"),
            "shade": torch.empty((), device="meta"),
        },
        action=torch.empty((), dtype=torch.int16, device="meta"),
        extra={name: torch.empty((), device="meta") for name in ("q", "value")},
        state=tree_map(lambda x: x[0].to("meta"), state_before([0], 0)) if state else (),
        frames=frames,
        stride=stride,
    )


def a_replay(
    windows, lanes, rows, *, kind=None, writers=1, batch_size=64, alpha=0.0, beta=0.4, **more
):
    """Return a memory of `rows` rows per lane, uniform without alpha, without a rate limit."""
    ring = Ring(kind or layout(), lanes, rows)
    places = lanes * ring.starts
    uniform = Uniform(lanes, ring.starts)
    distribution = Prioritized(places, alpha, beta) if alpha else uniform
    limiter = Limiter(None, 0, 0)
    return Replay(ring, windows, distribution, limiter, batch_size, 0, CPU, writers, **more)


def feed(memory, stream, first, last, writer=0, sizes=(1, 2, 3, 5, 8), lanes=slice(None)):
    """Add the rows [first, last) of a stream's lanes, in segments of various lengths."""
    at, turn = first, 0
    while at < last:
        count = min(sizes[turn % len(sizes)], last - at)
        steps = tree_map(lambda x, a=at, n=count: x[a : a + n, lanes], stream.steps)
        numbers = np.arange(memory.ring.lanes)[writer_lanes(memory, writer)]
        state = state_before(numbers, at) if memory.ring.layout.state != () else ()
        memory.add(Segment(steps, (), state, state, torch.zeros(())), writer)
        at, turn = at + count, turn + 1


def writer_lanes(memory, writer):
    return slice(writer * memory.lanes_per_writer, (writer + 1) * memory.lanes_per_writer)


def drawn(memory, batches):
    """Yield (lane, row) of the windows in some batches, with the batch as arrays and the index in
    it."""
    for _ in range(batches):
        batch = tree_map(torch.Tensor.numpy, memory.sample())
        for b, key in enumerate(batch.keys.tolist()):
            yield key % memory.ring.lanes, key // memory.ring.lanes, batch, b


def chi_square_fits(counts, expected):
    """True if counts fit a distribution, with a margin of six standard deviations."""
    assert min(expected) >= 5
    statistic = float(((np.asarray(counts) - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    return statistic < freedom + 6 * np.sqrt(2 * freedom)
