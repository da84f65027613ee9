"""A learner's view of the replay shards."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import ray
import torch
from torch import Tensor

from rookery.data.steps import Batch
from rookery.data.tree import tree_leaves
from rookery.runtime.cluster.wire import from_arrays

SHARD_BIT = 44
"""Keys of a shard's windows lie below 2 to this; its number stands above."""
REST_S = 0.005
"""How long a shard that has nothing due is left alone."""
UNREACHED_S = 1.0
"""How long one that cannot be reached is."""
MOST_TOGETHER = 8
BYTES_TOGETHER = 1 << 20
"""Small batches are fetched several at a time: asking takes longer than drawing them."""


class RemoteReplay:
    """Draws batches from replay shards, several requests ahead, and sends priorities back.

    A shard that is lost is forgotten: priorities of its windows are dropped, since no two shards
    of a run ever have the same number.
    """

    def __init__(self, device: torch.device, ahead: int):
        self.device = device
        self.ahead = ahead
        self.shards: dict[int, Any] = {}
        """Ray actors by number; exchanged as a whole."""
        self.lost: set[int] = set()
        self.asked: dict[Any, int] = {}
        self.resting: dict[int, float] = {}
        self.found: deque[tuple[int, Any]] = deque()
        self.together = 1

    def wait_until_due(self, timeout: float) -> bool:
        """Wait until a batch is there; whether one is."""
        self.ask()
        if self.found:
            return True
        if not self.asked:
            time.sleep(min(timeout, REST_S))
            return False
        ready, _ = ray.wait(list(self.asked), num_returns=1, timeout=timeout)
        for reference in ready:
            number = self.asked.pop(reference)
            try:
                batches = ray.get(reference)
            except ray.exceptions.ActorDiedError:
                self.lost.add(number)
                continue
            except ray.exceptions.RayError:
                # It cannot be reached, but may be again.
                self.resting[number] = time.monotonic() + UNREACHED_S
                continue
            self.found.extend((number, batch) for batch in batches)
            if batches:
                size = sum(leaf.nbytes for leaf in tree_leaves(batches[0]))
                self.together = min(MOST_TOGETHER, 1 + BYTES_TOGETHER // size)
            else:
                self.resting[number] = time.monotonic() + REST_S
        return bool(self.found)

    def ask(self) -> None:
        """Keep requests under way: one of each shard, and more until there are enough."""
        now = time.monotonic()
        shards = self.shards
        each = -(-self.ahead // max(1, len(shards)))
        for number, shard in shards.items():
            if number in self.lost or self.resting.get(number, 0.0) > now:
                continue
            under_way = sum(asked == number for asked in self.asked.values())
            for _ in range(each - under_way):
                self.asked[shard.sample.remote(self.together)] = number

    def sample(self) -> Batch:
        """The next batch, on the learner's device."""
        number, arrays = self.found.popleft()
        batch: Batch = from_arrays(arrays, self.device)
        assert batch.keys is not None
        return batch._replace(keys=batch.keys.cpu() + (number << SHARD_BIT))

    def reweigh(self, keys: Tensor | None, priorities: Tensor | None) -> None:
        """Send a batch's new priorities to the shard it came from."""
        assert keys is not None
        number = int(keys[0]) >> SHARD_BIT
        shard = self.shards.get(number)
        if shard is not None:
            own = keys - (number << SHARD_BIT)
            given = None if priorities is None else priorities.detach().cpu().numpy()
            shard.reweigh.remote(own.numpy(), given)
