"""Off-policy memory: windows of stored rows, drawn again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from rookery.data.steps import Batch, Segment, Steps
from rookery.data.tree import Tree, tree_map, tree_split
from rookery.memory.base import Ahead, as_drawn
from rookery.memory.budget import gigabytes, machine_bytes
from rookery.memory.distributions import Distribution
from rookery.memory.limiter import Limiter
from rookery.memory.returns import n_step
from rookery.memory.ring import Ring
from rookery.memory.sum_tree import Floats, Indices


class Columns(NamedTuple):
    """The small parts of neighbouring rows, each [T, B]."""

    reward: Floats
    discount: Floats
    mask: Floats
    extra: dict[str, Floats]


FirstPriorities = Callable[[Columns, Indices], Floats]
"""Priorities of the windows that start at the rows named, [windows, B]."""


class Windows(Protocol):
    """What a sample is made of."""

    length: int
    """Rows in a window."""
    settings: str
    """Those that say so."""
    stride: int
    """Rows between the starts of windows."""
    samples: int
    """How many samples a window counts for."""

    def assemble(self, ring: Ring, lane: Indices, row: Indices) -> tuple[Steps, Tree]:
        """The windows that start at the rows [B], and the recurrent state before them."""
        ...


class Transitions:
    """n steps as one: row 0 holds observation, action, the sum of rewards and what the value
    after it counts; row 1 of the observations is where that value is taken."""

    stride = 1
    samples = 1
    settings = "algo.n_step"

    def __init__(self, n: int, gamma: float):
        self.n, self.gamma = n, gamma
        self.length = n + 1

    def assemble(self, ring: Ring, lane: Indices, row: Indices) -> tuple[Steps, Tree]:
        rows = row + np.arange(self.length)[:, None]
        places = ring.places(lane, rows)
        mask = ring.mask[places].astype(np.float32)
        sums = n_step(ring.take_reward(places), ring.discount[places], mask, self.gamma, self.n)
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
    """Whole stretches of rows with the recurrent state stored before the first, and that stored
    before row `later`, a multiple of the stride, as `extra["later_state"]`.

    Where rows are normalised, the last part of a stored state is the reward before its row."""

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
            reward=torch.from_numpy(ring.take_reward(places)),
            discount=torch.from_numpy(ring.discount[places].astype(np.float32)),
            mask=torch.from_numpy(ring.mask[places].astype(np.float32)),
            extra={"later_state": tree_map(lambda x: x.unsqueeze(0), later)},
        )
        return steps, self.state(ring, lane, row)

    def state(self, ring: Ring, lane: Indices, row: Indices) -> Tree:
        """The stored state before rows, the reward in it on the scale of the other rewards."""
        stored = ring.take_state(lane, row)
        if ring.layout.normalizer is None:
            return stored
        *state, reward = stored
        return (*state, torch.from_numpy(ring.scaled_reward(reward.numpy())))


MOST_TOGETHER = 16
"""Batches drawn at once."""


def split(batch: Batch, parts: int) -> Iterator[Batch]:
    """The batches that were drawn as one."""
    if parts == 1:
        yield batch
        return
    steps = tree_split(batch.steps, parts, lambda x: x.chunk(parts, 1))
    rest = tree_split((batch.state, batch.keys, batch.weight), parts, lambda x: x.chunk(parts))
    for part, others in zip(steps, rest, strict=True):
        yield Batch(part, *others)


class Replay:
    """Windows of the rows in a ring, drawn as often as the limiter says.

    Several writers, each with lanes of its own, and one reader. Rows are copied outside of the
    lock: a writer first takes the windows it will overwrite out of the distribution, and the
    reader draws those again whose rows a writer has begun to overwrite meanwhile.
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
        self.lanes_each = ring.lanes // writers
        self.lock = threading.Lock()
        self.head = np.zeros(writers, np.int64)
        """Rows that each writer has written to its lanes."""
        self.oldest = np.zeros(writers, np.int64)
        """Windows of a writer's lanes that start before this row are gone."""
        self.origin = np.zeros(writers, np.int64)
        """Where a writer began anew: no window reaches across."""
        self.row_at = np.full(ring.lanes * ring.starts, -1)
        """The first row of the window in each place of the distribution."""
        self.age_sum = 0.0
        self.drawn = 0
        self.trained = 0
        self.told = (0, 0, 0)

    def set_progress(self, done: float) -> None:
        """Note the part of the run that is done: importance weights may change with it."""
        self.distribution.set_progress(done)

    # ---------------------------------------------------------------- writing

    def add(self, segment: Segment, writer: int = 0) -> None:
        """Store the rows of a segment, and let windows that they complete be drawn."""
        steps, state = segment.steps, segment.state
        if steps.mask.device.type != "cpu":
            steps, state = tree_map(lambda x: x.cpu(), (steps, state))
        count = len(steps.mask)
        head = int(self.head[writer])
        lanes = slice(writer * self.lanes_each, (writer + 1) * self.lanes_each)
        with self.lock:
            self.retire(writer, head + count)
        self.ring.write(lanes, head, steps, state)
        rows = self.completed(writer, head, head + count)
        with self.lock:
            self.head[writer] = head + count
            if len(rows):
                self.admit(self.lanes_of(writer), rows)
        self.limiter.note_inserted(count * self.lanes_each)

    def retire(self, writer: int, head: int) -> None:
        """Take out the windows that rows up to `head` will overwrite, stacked frames included."""
        gone = head - self.ring.rows + self.ring.layout.frames - 1
        before = int(self.oldest[writer])
        if gone > before:
            self.oldest[writer] = gone
            rows = self.aligned(before, gone)
            if len(rows):
                index = self.place_of(self.lanes_of(writer)[:, None], rows).reshape(-1)
                self.distribution.drop(index)
                self.row_at[index] = -1

    def completed(self, writer: int, head: int, new_head: int) -> Indices:
        """First rows of the windows that the rows from `head` on complete."""
        first = max(int(self.origin[writer]), head - self.windows.length + 1)
        return self.aligned(first, new_head - self.windows.length + 1)

    def aligned(self, first: int, last: int) -> Indices:
        """Rows in [first, last) where windows start."""
        stride = self.windows.stride
        return np.arange(-(-first // stride) * stride, last, stride)

    def lanes_of(self, writer: int) -> Indices:
        """The lanes that a writer writes to."""
        return np.arange(writer * self.lanes_each, (writer + 1) * self.lanes_each)

    def admit(self, lane: Indices, rows: Indices) -> None:
        """Put the windows at `rows` of the lanes into the distribution, those of rows that the
        environment ignored left out."""
        priority = self.priorities(lane, rows)
        index = self.place_of(lane[:, None], rows)
        self.row_at[index] = rows
        if self.windows.stride == 1:
            # Every row begins a window then, and stands where its window does.
            played = self.ring.mask[index] > 0
            self.row_at[index[~played]] = -1
            index, priority = index[played], None if priority is None else priority[played]
        self.distribution.put(index.reshape(-1), None if priority is None else priority.reshape(-1))

    def priorities(self, lane: Indices, rows: Indices) -> Floats | None:
        """First priorities [B, windows], from what was recorded while acting."""
        if self.first_priorities is None:
            return None
        span = np.arange(rows[0], rows[-1] + self.windows.length)
        places = self.ring.places(lane, span[:, None])
        columns = Columns(
            self.ring.take_reward(places).astype(np.float64),
            self.ring.discount[places].astype(np.float64),
            self.ring.mask[places].astype(np.float64),
            {name: column[places] for name, column in self.ring.extra.items()},
        )
        return self.first_priorities(columns, rows - rows[0]).T

    def cut(self, writer: int) -> None:
        """The writer's next rows do not follow its last: an actor started anew."""
        with self.lock:
            stride = self.windows.stride
            head = -(-int(self.head[writer]) // stride) * stride
            self.retire(writer, head)
            if head:
                last = np.full(self.lanes_each, head - 1)
                self.ring.mask[self.ring.places(self.lanes_of(writer), last)] = 0
            self.origin[writer] = self.head[writer] = head

    # ---------------------------------------------------------------- reading

    def batches(self, ahead: Ahead = as_drawn) -> Iterator[Batch]:
        """As many batches as are due; without a ratio, one.

        Where no update changes what is drawn next, they are drawn together, which costs less.
        """
        due = self.due()
        while due:
            together = min(due, MOST_TOGETHER) if self.distribution.constant else 1
            yield from split(ahead(self.sample(together), together), together)
            due -= together

    def due(self) -> int:
        """How many batches may be drawn."""
        if not self.distribution.count:
            return 0
        return self.limiter.batches_due(self.batch_size * self.windows.samples)

    def wait_until_due(self, timeout: float) -> bool:
        """Wait until a batch may be drawn; whether it may."""
        samples = self.batch_size * self.windows.samples
        if self.limiter.wait_to_sample(samples, timeout) and not self.distribution.count:
            time.sleep(timeout)
        return self.due() > 0

    def sample(self, batches: int = 1) -> Batch:
        """One or more batches as one, on the learner's device."""
        size = self.batch_size * batches
        batch = self.take(size)
        self.limiter.note_sampled(size * self.windows.samples)
        assert batch.weight is not None
        weight = (batch.weight / batch.weight.max()).float()
        return batch._replace(weight=weight.to(self.device))

    def take(self, size: int) -> Batch:
        """So many windows on the learner's device, not counted as sampled, and their weights in
        double precision, not yet divided by the largest."""
        lane, row, weight = self.draw(size)
        steps, state = self.windows.assemble(self.ring, lane, row)
        while len(late := self.overwritten(lane, row)):
            lane[late], row[late], weight[late] = self.draw(len(late))
            # Rare, so the whole batch is copied again: simpler, and just as right.
            steps, state = self.windows.assemble(self.ring, lane, row)
        self.age_sum += float((self.head[lane // self.lanes_each] - row).sum()) * self.ring.lanes
        self.drawn += size
        if self.device.type != "cpu":
            steps, state = tree_map(lambda x: x.to(self.device), (steps, state))
        keys = torch.from_numpy(row * self.ring.lanes + lane)
        return Batch(steps, state, keys, torch.from_numpy(weight))

    def draw(self, count: int) -> tuple[Indices, Indices, Floats]:
        """Lanes, first rows and weights of `count` windows."""
        with self.lock:
            index, weight = self.distribution.draw(count, self.generator)
            return index // self.ring.starts, self.row_at[index], weight

    def overwritten(self, lane: Indices, row: Indices) -> Indices:
        """Which of the windows a writer has begun to overwrite."""
        with self.lock:
            return (row < self.oldest[lane // self.lanes_each]).nonzero()[0]

    def reweigh(self, keys: Tensor | None, priorities: Tensor | None) -> None:
        """New priorities of drawn windows; those of windows that are gone are dropped."""
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
        """Where the distribution keeps the window that starts at a row."""
        return lane * self.ring.starts + row // self.windows.stride % self.ring.starts

    # ---------------------------------------------------------------- telling

    def take_report(self, seconds: float) -> dict[str, float]:
        """Steps added, sampled and trained a second in the `seconds` since the last call, how
        full the memory is, and how many environment steps old what was drawn."""
        totals = (self.limiter.inserted, self.limiter.sampled, self.trained)
        rates = [(now - before) / seconds for now, before in zip(totals, self.told, strict=True)]
        self.told = totals
        return {
            "added_per_second": rates[0],
            "sampled_per_second": rates[1],
            "trained_per_second": rates[2],
            "replay_fill": self.fill,
            "replay_age_mean": self.take_age(),
        }

    @property
    def fill(self) -> float:
        """The share of its rows that are written."""
        return float(np.minimum(self.head, self.ring.rows).mean() / self.ring.rows)

    def take_age(self) -> float:
        """How many environment steps old what was drawn since the last call was, on average."""
        age = self.age_sum / self.drawn if self.drawn else 0.0
        self.age_sum, self.drawn = 0.0, 0
        return age

    def nbytes(self) -> int:
        """Memory that rows and windows take when there is no more room."""
        return self.ring.nbytes() + self.distribution.nbytes() + self.row_at.nbytes

    def describe(self) -> str:
        """The memory that will be taken, in a line."""
        ring = self.ring
        return (
            f"replay: {ring.lanes * ring.rows:,} rows, {gigabytes(self.nbytes())}"
            f" of the machine's {gigabytes(machine_bytes())}"
        )
