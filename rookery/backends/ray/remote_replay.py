"""A learner's view of the replay shards."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor

from rookery.backends.ray.messages import Origin, ShardStock, from_arrays
from rookery.data.steps import Batch, Segment
from rookery.data.tree import tree_leaves, tree_map
from rookery.memory.distributions import annealed
from rookery.memory.replay import Replay

SHARD_BIT = 44
"""Keys of a shard's windows lie below 2 to this; its number stands above."""
REST_S = 0.005
"""Time between questions what a shard has, while that is too little for a batch."""
UNREACHED_S = 1.0
"""Time until a shard that cannot be reached is asked again."""
MAX_BATCHES_TOGETHER = 8
BYTES_TOGETHER = 1 << 20
"""Small batches are fetched several at a time: asking takes longer than drawing them."""


class SegmentIntake:
    """Stores segments, and cuts a writer's rows wherever a segment between them is missing.

    Segments go missing with an actor that dies, with the node they lie on, or with others of their
    round. The process that stores the next one is the first to know for certain that none comes
    between: the driver may have sent it on before it learns that the one before it was lost.
    """

    def __init__(self, memory: Replay):
        self.memory = memory
        self.newest: dict[int, Origin] = {}
        """The origin of each writer's last segment."""

    def add(self, segment: Segment, writer: int, origin: Origin) -> None:
        """Store a segment as the writer's newest rows."""
        if self.newest.get(writer) != origin._replace(number=origin.number - 1):
            self.memory.cut(writer)
        self.newest[writer] = origin
        self.memory.add(segment, writer)


class ShardSource:
    """A replay shard, as known to the learner."""

    def __init__(self, number: int, handle: Any):
        self.number, self.handle = number, handle
        self.stock: ShardStock | None = None
        """Its newest answer."""
        self.stock_request = -1
        """Number of the request that `stock` answers."""
        self.charges: dict[int, int] = {}
        """By request under way: windows charged to the shard."""
        self.polled = False
        """True while a question for its stock is under way."""
        self.poll_at = 0.0
        self.reach_at = 0.0

    @property
    def credit(self) -> int:
        """Windows that can be charged to the shard, which no other learner draws from."""
        return 0 if self.stock is None else max(0, self.stock.credit - sum(self.charges.values()))


class BatchOrder:
    """Batches requested together, each made of windows from several shards."""

    def __init__(self, shares: dict[int, float], sizes: NDArray[np.int64]):
        self.shares = shares
        """By shard: the probability that a window is drawn from it."""
        self.sizes = sizes
        """Windows of each batch from each shard, [batches, shards]."""
        self.waiting: set[int] = set()
        """Numbers of requests under way."""
        self.parts: dict[int, list[Batch | None]] = {}
        """By shard: its part of each batch."""
        self.counts: dict[int, int] = {}
        """By shard: the number of windows it drew from."""

    def batches(self, beta: float) -> list[Batch]:
        """Return the batches as arrays, without those that miss the part of a shard."""
        return [
            self.join_parts(number, beta)
            for number, sizes in enumerate(self.sizes)
            if all(
                self.parts[shard][number] is not None
                for shard, size in zip(self.shares, sizes, strict=True)
                if size
            )
        ]

    def join_parts(self, number: int, beta: float) -> Batch:
        """Return the parts of a batch as one, with weights (N P)^-beta over the largest.

        A shard gives 1 / (n Q) with n windows of its own and Q a window's probability among them.
        P is Q times the share of the shard; N falls out with the largest.
        """
        drawn, weights = [], []
        for shard in self.shares:
            part = self.parts[shard][number]
            if part is not None:
                assert part.keys is not None
                assert part.weight is not None
                drawn.append(part._replace(keys=part.keys + (shard << SHARD_BIT), weight=None))
                weights.append((part.weight * (self.counts[shard] / self.shares[shard])) ** beta)
        weight: Any = np.concatenate(weights)
        batch = drawn[0]
        if len(drawn) > 1:
            steps = tree_map(lambda *x: np.concatenate(x, 1), *[part.steps for part in drawn])
            rest = [(part.state, part.keys) for part in drawn]
            batch = Batch(steps, *tree_map(lambda *x: np.concatenate(x), *rest))
        return batch._replace(weight=(weight / weight.max()).astype(np.float32))


@dataclass(eq=False)
class RemoteReplay:
    """Draws batches from replay shards, several requests ahead, and sends priorities back.

    A window's probability is its priority's share of the total over all shards, as they last
    reported it. Drawn windows are charged to the shards in proportion to what was inserted there,
    not to what is drawn from them, so that writers of a shard with low priorities need not wait.

    A lost shard is dropped, with the batches and priorities that involve it: no two shards of a run
    ever have the same number.
    """

    device: torch.device
    ahead: int
    """Orders to keep under way."""
    batch_size: int
    seed: int
    beta_start: float
    beta_end: float | None = None

    def __post_init__(self) -> None:
        self.beta = self.beta_start
        self.random = np.random.default_rng(self.seed)
        self.shards: dict[int, Any] = {}
        """Ray actors by number; replaced as a whole."""
        self.sources: dict[int, ShardSource] = {}
        self.lost: set[int] = set()
        self.requests = itertools.count()
        self.asked: dict[Any, tuple[int, ShardSource, BatchOrder | None]] = {}
        """Requests under way, by the reference to their answer."""
        self.orders: set[BatchOrder] = set()
        """Orders that are not complete."""
        self.found: deque[Batch] = deque()
        self.together = 1

    def set_progress(self, done: float) -> None:
        """Set the share of the run that is done, 0 to 1, for the annealing of beta."""
        self.beta = annealed(self.beta_start, self.beta_end, done)

    def wait_until_due(self, timeout: float) -> bool:
        """Wait until a batch is complete; False if `timeout` seconds pass before."""
        self.ask()
        if self.found:
            return True
        if not self.asked:
            time.sleep(min(timeout, REST_S))
            return False
        ready, _ = ray.wait(list(self.asked), num_returns=1, timeout=timeout)
        for reference in ready:
            self.handle_answer(reference)
        return bool(self.found)

    def ask(self) -> None:
        """Keep orders under way, as far as the shards have credit."""
        now = time.monotonic()
        there = {n: handle for n, handle in self.shards.items() if n not in self.lost}
        self.sources = {n: self.sources.get(n) or ShardSource(n, there[n]) for n in there}
        sources = [source for source in self.sources.values() if source.reach_at <= now]
        while len(self.orders) < self.ahead:
            batches = min(self.together, sum(s.credit for s in sources) // self.batch_size)
            known = [s.stock for s in sources if s.stock is not None]
            if len(known) < len(sources) or not batches or not any(stock.total for stock in known):
                for source in sources:
                    if not source.polled and source.poll_at <= now:
                        source.polled = True
                        self.send(source, [], 0, None)
                return
            self.order(sources, known, batches)

    def order(
        self, sources: Sequence[ShardSource], stocks: Sequence[ShardStock], batches: int
    ) -> None:
        """Request so many batches."""
        totals = np.array([stock.total for stock in stocks])
        shares = totals / totals.sum()
        sizes = np.array(
            [draw_shard_sizes(shares, self.batch_size, self.random) for _ in range(batches)]
        )
        charges = split_charge([source.credit for source in sources], batches * self.batch_size)
        numbers = [source.number for source in sources]
        order = BatchOrder(dict(zip(numbers, shares.tolist(), strict=True)), sizes)
        self.orders.add(order)
        for source, size, charge in zip(sources, sizes.T, charges, strict=True):
            # Also to shards that give nothing: their stock comes with the answer.
            self.send(source, size.tolist(), charge, order)

    def send(
        self, source: ShardSource, sizes: list[int], charge: int, order: BatchOrder | None
    ) -> None:
        """Send a request to a shard."""
        request = next(self.requests)
        source.charges[request] = charge
        if order is not None:
            order.waiting.add(request)
        self.asked[source.handle.sample.remote(sizes, charge)] = request, source, order

    def handle_answer(self, reference: Any) -> None:
        """Take the answer to a request, and complete its order."""
        request, source, order = self.asked.pop(reference)
        if order is None:
            source.polled, source.poll_at = False, time.monotonic() + REST_S
        try:
            parts, stock = ray.get(reference)
        except ray.exceptions.RayError as error:
            del source.charges[request]
            source.stock = None
            self.orders.discard(order)
            if isinstance(error, ray.exceptions.ActorDiedError):
                self.lost.add(source.number)
            else:
                # Unreachable for now.
                source.reach_at = time.monotonic() + UNREACHED_S
            return
        del source.charges[request]
        if request > source.stock_request:  # else a later answer is known
            source.stock, source.stock_request = stock, request
        if order in self.orders:
            assert order is not None
            order.waiting.discard(request)
            order.parts[source.number], order.counts[source.number] = parts, stock.windows
            if not order.waiting:
                self.orders.discard(order)
                batches = order.batches(self.beta)
                self.found.extend(batches)
                if batches:
                    size = sum(leaf.nbytes for leaf in tree_leaves(batches[0]))
                    self.together = min(MAX_BATCHES_TOGETHER, 1 + BYTES_TOGETHER // size)

    def sample(self) -> Batch:
        """Return the next batch on the learner's device."""
        batch: Batch = from_arrays(self.found.popleft(), self.device)
        assert batch.keys is not None
        return batch._replace(keys=batch.keys.cpu())

    def reweigh(self, keys: Tensor | None, priorities: Tensor | None) -> None:
        """Send a batch's new priorities to the shards it came from."""
        assert keys is not None
        numbers = keys >> SHARD_BIT
        given = None if priorities is None else priorities.detach().cpu()
        for number in numbers.unique().tolist():
            shard = self.shards.get(number)
            if shard is not None:
                own = numbers == number
                part = None if given is None else given[own].numpy()
                shard.reweigh.remote((keys[own] - (number << SHARD_BIT)).numpy(), part)


def draw_shard_sizes(
    shares: NDArray[np.float64], count: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """Return how many of `count` windows come from each shard: on average its share of them.

    As a prioritized memory draws: one point from each of `count` equal parts of the total.
    """
    bounds = np.cumsum(shares)
    points = np.minimum((np.arange(count) + random.random(count)) / count, np.nextafter(1.0, 0.0))
    index = np.searchsorted(bounds / bounds[-1], points, side="right")
    return np.bincount(index, minlength=len(shares))


def split_charge(credits: Sequence[int], count: int) -> list[int]:
    """Return `count` windows split in proportion to the credits, at most each shard's own."""
    bounds = [count * reached // sum(credits) for reached in itertools.accumulate(credits)]
    return [upper - lower for lower, upper in itertools.pairwise([0, *bounds])]
