"""Replay memory for off-policy algorithms: batches of windows of stored rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from rookery.data.steps import Batch, Segment, Steps
from rookery.data.tree import Tree, tree_map, tree_split
from rookery.memory.base import Memory, PrecomputeTargets, no_precomputation
from rookery.memory.budget import gigabytes, machine_bytes
from rookery.memory.distributions import Distribution, Floats, Indices
from rookery.memory.limiter import Limiter
from rookery.memory.returns import n_step
from rookery.memory.ring import Ring

FirstPriorities = Callable[[Steps, Indices], Tensor]
"""Function from rows [T, B] without observations, in double precision, and the first rows of
windows in them to priorities [windows, B]."""


class Transitions:
    """n-step transitions: row 0 holds observation, action, n-step reward and the discount of the
    bootstrap value; row 1 of the observations is the one that value is computed from."""

    stride = 1
    """Rows between the starts of windows."""
    samples = 1
    """Number of samples that a window counts as for the rate limiter."""
    settings = "algo.n_step"
    """Names of the settings that determine `length`, for messages."""

    def __init__(self, n: int, gamma: float):
        self.n, self.gamma = n, gamma
        self.length = n + 1
        """Rows in a window."""

    def assemble(self, ring: Ring, lane: Indices, row: Indices) -> tuple[Steps, Tree]:
        """Return the windows that start at the rows [B] and the recurrent state before them."""
        rows = row + np.arange(self.length)[:, None]
        places = ring.places(lane, rows)
        mask = ring.mask[places].astype(np.float32)
        sums = n_step(
            ring.scaled_reward(ring.reward[places]), ring.discount[places], mask, self.gamma, self.n
        )
        ends = np.array([row, row + sums.last[0].astype(np.int64)])
        steps = Steps(
            obs=ring.take_obs(lane, ends),
            action=torch.from_numpy(ring.action[places[:1]]),
            reward=torch.from_numpy(sums.reward.astype(np.float32, copy=False)),
            discount=torch.from_numpy(sums.discount.astype(np.float32, copy=False)),
            mask=torch.from_numpy(mask[:1]),
            extra={},
        )
        return steps, ()


class Sequences:
    """Sequences of rows with the stored recurrent state before the first row, and the one before
    row `later`, a multiple of the stride, as `extra["later_state"]`.

    Where rows are normalised, the last part of a stored state is the reward before its row.
    """

    settings = "algo.burn_in, algo.unroll and algo.n_step"

    def __init__(self, length: int, stride: int, samples: int, later: int):
        self.length = length
        self.stride = stride
        self.samples = samples
        self.later = later

    def assemble(self, ring: Ring, lane: Indices, row: Indices) -> tuple[Steps, Tree]:
        rows = row + np.arange(self.length)[:, None]
        places = ring.places(lane, rows)
        later = self.state(ring, lane, row + self.later)
        steps = Steps(
            obs=ring.take_obs(lane, rows),
            action=torch.from_numpy(ring.action[places]),
            reward=torch.from_numpy(ring.scaled_reward(ring.reward[places])),
            discount=torch.from_numpy(ring.discount[places].astype(np.float32)),
            mask=torch.from_numpy(ring.mask[places].astype(np.float32)),
            extra={"later_state": tree_map(lambda x: x.unsqueeze(0), later)},
        )
        return steps, self.state(ring, lane, row)

    def state(self, ring: Ring, lane: Indices, row: Indices) -> Tree:
        """Return the stored state before rows [B], with the reward in it scaled."""
        stored = ring.take_state(lane, row)
        if ring.layout.normalizer is None:
            return stored
        *state, reward = stored
        return (*state, torch.from_numpy(ring.scaled_reward(reward.numpy())))


Windows = Transitions | Sequences
"""The kind of windows in a replay: their length and how a batch is built from stored rows."""
MOST_TOGETHER = 16
"""Most batches that are drawn together."""


def split_batch(batch: Batch, parts: int) -> Iterator[Batch]:
    """Yield the `parts` batches of one that were drawn together."""
    if parts == 1:
        yield batch
        return
    steps = tree_split(batch.steps, parts, lambda x: x.chunk(parts, 1))
    rest = tree_split((batch.state, batch.keys, batch.weight), parts, lambda x: x.chunk(parts))
    for part, others in zip(steps, rest, strict=True):
        yield Batch(part, *others)


class Replay(Memory):
    """Windows of the rows in a ring, drawn at the rate that the limiter allows.

    Several writers, each with its own lanes, and one reader. Rows are copied outside of the lock.
    Invariant: a writer removes the windows that it will overwrite from the distribution before it
    writes, and the reader draws a window again if a writer began to overwrite it meanwhile.
    """

    def __init__(
        self,
        ring: Ring,
        windows: Windows,
        distribution: Distribution,
        limiter: Limiter,
        batch_size: int,
        seed: int,
        device: torch.device,
        writers: int = 1,
        first_priorities: FirstPriorities | None = None,
    ):
        self.ring = ring
        self.windows = windows
        self.distribution = distribution
        self.limiter = limiter
        self.batch_size = batch_size
        self.device = device
        self.first_priorities = first_priorities
        self.generator = torch.Generator().manual_seed(seed)
        self.lanes_per_writer = ring.lanes // writers
        self.lock = threading.Lock()
        self.head = np.zeros(writers, np.int64)
        """Number of rows that each writer has written to its lanes."""
        self.oldest = np.zeros(writers, np.int64)
        """Windows of a writer's lanes that start before this row are overwritten."""
        self.origin = np.zeros(writers, np.int64)
        """Row at which a writer was restarted: no window reaches across."""
        self.row_at = np.full(ring.lanes * ring.starts, -1)
        """The first row of the window in each place of the distribution."""
        self.age_sum = 0.0
        self.drawn = 0
        self.trained = 0
        self.last_totals = (0, 0, 0)

    def set_progress(self, done: float) -> None:
        """Set the finished part of the run, 0 to 1, on which beta may depend."""
        self.distribution.set_progress(done)

    # ---------------------------------------------------------------- writing

    def add(self, segment: Segment, writer: int = 0) -> None:
        """Store the rows of a segment and add the windows that they complete."""
        steps, state = segment.steps, segment.state
        if steps.mask.device.type != "cpu":
            steps, state = tree_map(lambda x: x.cpu(), (steps, state))
        count = len(steps.mask)
        head = int(self.head[writer])
        lanes = slice(writer * self.lanes_per_writer, (writer + 1) * self.lanes_per_writer)
        with self.lock:
            self.retire(writer, head + count)
        self.ring.write(lanes, head, steps, state)
        first = max(int(self.origin[writer]), head - self.windows.length + 1)
        rows = self.aligned(first, head + count - self.windows.length + 1)
        with self.lock:
            self.head[writer] = head + count
            if len(rows):
                self.admit(self.lanes_of(writer), rows)
        self.limiter.note_inserted(count * self.lanes_per_writer)

    def retire(self, writer: int, head: int) -> None:
        """Remove the windows that rows up to `head` will overwrite, stacked frames included."""
        oldest = head - self.ring.rows + self.ring.layout.frames - 1
        before = int(self.oldest[writer])
        if oldest > before:
            self.oldest[writer] = oldest
            rows = self.aligned(before, oldest)
            if len(rows):
                index = self.place_of(self.lanes_of(writer)[:, None], rows).reshape(-1)
                self.distribution.drop(index)
                self.row_at[index] = -1

    def aligned(self, first: int, last: int) -> Indices:
        """Return the rows in [first, last) where windows start: multiples of the stride."""
        stride = self.windows.stride
        return np.arange(-(-first // stride) * stride, last, stride)

    def lanes_of(self, writer: int) -> Indices:
        """Return the lanes of a writer."""
        return np.arange(writer * self.lanes_per_writer, (writer + 1) * self.lanes_per_writer)

    def admit(self, lane: Indices, rows: Indices) -> None:
        """Add the windows at `rows` of the lanes to the distribution; with stride 1, windows that
        start at a reset row are left out."""
        priority = self.priorities(lane, rows)
        index = self.place_of(lane[:, None], rows)
        self.row_at[index] = rows
        if self.windows.stride == 1:
            # With stride 1 every row starts a window, at the same index in ring and distribution.
            played = self.ring.mask[index] > 0
            self.row_at[index[~played]] = -1
            index, priority = index[played], None if priority is None else priority[played]
        self.distribution.put(index.reshape(-1), None if priority is None else priority.reshape(-1))

    def priorities(self, lane: Indices, rows: Indices) -> Floats | None:
        """Return initial priorities [B, windows] from the values recorded while acting."""
        if self.first_priorities is None:
            return None
        span = np.arange(rows[0], rows[-1] + self.windows.length)
        places = self.ring.places(lane, span[:, None])
        steps = Steps(
            obs=(),
            action=torch.from_numpy(self.ring.action[places]),
            reward=torch.from_numpy(self.ring.scaled_reward(self.ring.reward[places])).double(),
            discount=torch.from_numpy(self.ring.discount[places]).double(),
            mask=torch.from_numpy(self.ring.mask[places]).double(),
            extra={k: torch.from_numpy(x[places]).double() for k, x in self.ring.extra.items()},
        )
        return self.first_priorities(steps, rows - rows[0]).numpy().T

    def cut(self, writer: int) -> None:
        """Separate the writer's next rows from its last ones, after a restart of its actor."""
        with self.lock:
            stride = self.windows.stride
            head = -(-int(self.head[writer]) // stride) * stride
            self.retire(writer, head)
            if head:
                last = np.full(self.lanes_per_writer, head - 1)
                self.ring.mask[self.ring.places(self.lanes_of(writer), last)] = 0
            self.origin[writer] = self.head[writer] = head

    # ---------------------------------------------------------------- reading

    def batches(self, precompute: PrecomputeTargets = no_precomputation) -> Iterator[Batch]:
        """Yield as many batches as are due; without a ratio, one.

        If updates do not change the distribution, several are drawn together, which is cheaper.
        """
        due = self.due()
        while due:
            together = min(due, MOST_TOGETHER) if self.distribution.constant else 1
            yield from split_batch(precompute(self.sample(together), together), together)
            due -= together

    def due(self) -> int:
        """Return how many batches may be drawn."""
        if not self.distribution.count:
            return 0
        return self.limiter.batches_due(self.batch_size * self.windows.samples)

    def wait_until_due(self, timeout: float) -> bool:
        """Wait until a batch may be drawn; return False on a timeout."""
        samples = self.batch_size * self.windows.samples
        if self.limiter.wait_to_sample(samples, timeout) and not self.distribution.count:
            time.sleep(timeout)
        return self.due() > 0

    def sample(self, batches: int = 1) -> Batch:
        """Return one or more batches as one, on the learner's device."""
        size = self.batch_size * batches
        batch = self.take(size)
        self.limiter.note_sampled(size * self.windows.samples)
        assert batch.weight is not None
        weight = (batch.weight / batch.weight.max()).float()
        return batch._replace(weight=weight.to(self.device))

    def take(self, size: int) -> Batch:
        """Return `size` windows on the learner's device, without counting them as sampled, with
        float64 weights that are not yet divided by the largest."""
        lane, row, weight = self.draw(size)
        steps, state = self.windows.assemble(self.ring, lane, row)
        while len(late := self.overwritten(lane, row)):
            lane[late], row[late], weight[late] = self.draw(len(late))
            # Rare, so the whole batch is copied again.
            steps, state = self.windows.assemble(self.ring, lane, row)
        self.age_sum += (
            float((self.head[lane // self.lanes_per_writer] - row).sum()) * self.ring.lanes
        )
        self.drawn += size
        if self.device.type != "cpu":
            steps, state = tree_map(lambda x: x.to(self.device), (steps, state))
        keys = torch.from_numpy(row * self.ring.lanes + lane)
        return Batch(steps, state, keys, torch.from_numpy(weight))

    def draw(self, count: int) -> tuple[Indices, Indices, Floats]:
        """Return lanes, first rows and weights of `count` random windows."""
        with self.lock:
            index, weight = self.distribution.draw(count, self.generator)
            return index // self.ring.starts, self.row_at[index], weight

    def overwritten(self, lane: Indices, row: Indices) -> Indices:
        """Return the positions of the windows that a writer has begun to overwrite."""
        with self.lock:
            return (row < self.oldest[lane // self.lanes_per_writer]).nonzero()[0]

    def reweigh(self, keys: Tensor | None, priorities: Tensor | None) -> None:
        """Set new priorities of drawn windows; windows overwritten meanwhile are ignored."""
        assert keys is not None
        self.trained += len(keys) * self.windows.samples
        if priorities is None:
            return
        row, lane = np.divmod(keys.numpy(), self.ring.lanes)
        index = self.place_of(lane, row)
        priority = priorities.detach().cpu().double().numpy()
        with self.lock:
            current = self.row_at[index] == row
            self.distribution.reweigh(index[current], priority[current])

    def place_of(self, lane: Indices, row: Indices) -> Indices:
        """Return the distribution's index of the window that starts at a row."""
        return lane * self.ring.starts + row // self.windows.stride % self.ring.starts

    # ---------------------------------------------------------------- reporting

    def take_report(self, seconds: float) -> dict[str, float]:
        """Return steps added, sampled and trained per second in the `seconds` since the last call,
        the fill of the memory, and the mean age of the sampled steps in environment steps."""
        totals = (self.limiter.inserted, self.limiter.sampled, self.trained)
        rates = [
            (now - before) / seconds for now, before in zip(totals, self.last_totals, strict=True)
        ]
        self.last_totals = totals
        return {
            "added_per_second": rates[0],
            "sampled_per_second": rates[1],
            "trained_per_second": rates[2],
            "replay_fill": self.fill,
            "replay_age_mean": self.take_age(),
        }

    @property
    def fill(self) -> float:
        """Share of the rows that are written."""
        return float(np.minimum(self.head, self.ring.rows).mean() / self.ring.rows)

    def take_age(self) -> float:
        """Return the mean age, in environment steps, of what was drawn since the last call."""
        age = self.age_sum / self.drawn if self.drawn else 0.0
        self.age_sum, self.drawn = 0.0, 0
        return age

    def nbytes(self) -> int:
        """Return the size in memory when full."""
        return self.ring.nbytes() + self.distribution.nbytes() + self.row_at.nbytes

    def describe(self) -> str:
        """Return a line about rows and memory."""
        ring = self.ring
        return (
            f"replay: {ring.lanes * ring.rows:,} rows, {gigabytes(self.nbytes())}"
            f" of the machine's {gigabytes(machine_bytes())}"
        )
