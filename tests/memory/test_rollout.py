"""Every row once an epoch, reset rows never, lanes whole with their states."""

import pytest
import torch
from scenes import CPU

from rookery.data.steps import Segment, Steps
from rookery.memory.rollout import Rollout

T, B = 6, 5


def numbered(mask):
    """Steps whose every leaf tells its row and lane."""
    number = torch.arange(T * B).view(T, B)
    obs = {"a": number.float().unsqueeze(-1), "b": (number * 10, number * 100)}
    return Steps(obs, number, number * 1.0, number * 1.0, mask, {"x": number * 2})


def stored(memory, mask, state=()):
    memory.add(Segment(numbered(mask), (), state, (), torch.zeros(B)))
    return memory


def some_masked():
    return (torch.rand(T, B, generator=torch.Generator().manual_seed(0)) > 0.3).float()


def test_every_unmasked_row_appears_once_an_epoch_and_masked_rows_never():
    mask = some_masked()
    memory = Rollout(epochs=3, minibatches=4, recurrent=False, device=CPU, seed=0)
    stored(memory, mask)
    batches = list(memory.batches())
    assert len(batches) == 12
    expected = mask.flatten().nonzero().flatten().tolist()
    orders = []
    for epoch in range(3):
        parts = [batch.steps.action for batch in batches[4 * epoch : 4 * epoch + 4]]
        assert max(p.shape[1] for p in parts) - min(p.shape[1] for p in parts) <= 1
        orders.append(torch.cat(parts, 1).flatten().tolist())
        assert sorted(orders[-1]) == expected
    assert orders[0] != orders[1] != expected


def test_the_leaves_of_a_row_stay_together():
    memory = Rollout(epochs=1, minibatches=3, recurrent=False, device=CPU, seed=0)
    stored(memory, some_masked())
    for batch in memory.batches():
        steps, number = batch.steps, batch.steps.action
        assert number.shape[0] == 1
        assert torch.equal(steps.obs["a"].squeeze(-1), number.float())
        assert torch.equal(steps.obs["b"][0], number * 10)
        assert torch.equal(steps.obs["b"][1], number * 100)
        assert torch.equal(steps.reward, number.float())
        assert torch.equal(steps.extra["x"], number * 2)
        assert bool((steps.mask == 1).all())


@pytest.mark.parametrize("minibatches", [1, 2, 5])
def test_recurrent_batches_are_whole_lanes_with_their_states(minibatches):
    mask = some_masked()
    state = (torch.arange(B).float().unsqueeze(-1), torch.arange(B).float().unsqueeze(-1) * 7)
    memory = Rollout(epochs=2, minibatches=minibatches, recurrent=True, device=CPU, seed=0)
    stored(memory, mask, state)
    batches = list(memory.batches())
    assert len(batches) == 2 * minibatches
    for epoch in (batches[:minibatches], batches[minibatches:]):
        seen = []
        for batch in epoch:
            lanes = batch.steps.action[0]
            assert torch.equal(batch.steps.action, torch.arange(T).unsqueeze(1) * B + lanes)
            assert torch.equal(batch.steps.mask, mask[:, lanes])
            assert torch.equal(batch.state[0].squeeze(-1), lanes.float())
            assert torch.equal(batch.state[1].squeeze(-1), lanes.float() * 7)
            seen += lanes.tolist()
        assert sorted(seen) == list(range(B))


def test_the_seed_decides_the_order():
    def order(seed):
        memory = Rollout(1, 2, False, CPU, seed)
        stored(memory, torch.ones(T, B))
        return torch.cat([b.steps.action for b in memory.batches()], 1).tolist()

    assert order(1) == order(1) != order(2)


def test_content_is_forgotten_once_it_was_learned_from():
    memory = Rollout(1, 2, False, CPU, 0)
    stored(memory, torch.ones(T, B))
    list(memory.batches())
    with pytest.raises(AssertionError):
        next(memory.batches())
