"""Minibatches: every row once per epoch, reset rows left out, whole lanes with their states."""

import pytest
import torch
from scenes import CPU

from rookery.data.steps import Segment, Steps
from rookery.memory import rollout
from rookery.memory.rollout import FEW_RESETS, Rollout

T, B = 6, 5


def numbered_steps(mask):
    """Return steps in which every leaf contains its row and lane."""
    number = torch.arange(T * B).view(T, B)
    obs = {"a": number.float().unsqueeze(-1), "b": (number * 10, number * 100)}
    return Steps(obs, number, number * 1.0, number * 1.0, mask, {"x": number * 2})


def filled(memory, mask, state=()):
    memory.add(Segment(numbered_steps(mask), (), state, (), torch.zeros(B)))
    return memory


def some_masked(share=0.3):
    return (torch.rand(T, B, generator=torch.Generator().manual_seed(1)) > share).float()


FEW = 0.1


@pytest.mark.parametrize("minibatches", [1, 4, 7, 30])
@pytest.mark.parametrize("share", [0.3, FEW, 0.0])
def test_every_unmasked_row_appears_once_per_epoch(share, minibatches):
    mask = some_masked(share)
    memory = Rollout(epochs=3, minibatches=minibatches, recurrent=False, device=CPU, seed=0)
    filled(memory, mask)
    batches = list(memory.batches())
    assert len(batches) == 3 * minibatches
    expected = mask.flatten().nonzero().flatten().tolist()
    orders = []
    for epoch in range(3):
        parts = [b.steps for b in batches[minibatches * epoch : minibatches * (epoch + 1)]]
        real = [int(part.mask.sum()) for part in parts]
        assert max(real) - min(real) <= 1
        orders.append([x for p in parts for x in p.action[p.mask == 1].tolist()])
        assert sorted(orders[-1]) == expected
    assert orders[0] != orders[1] != expected


@pytest.mark.parametrize("minibatches", [1, 4, 7, 30])
def test_with_few_reset_rows_every_rollout_has_minibatches_of_the_same_sizes(minibatches):
    mask = some_masked(FEW)
    resets = (mask.flatten() == 0).nonzero().flatten().tolist()
    assert 0 < len(resets) <= FEW_RESETS * T * B
    sizes = []
    for content in (mask, torch.ones(T, B)):
        memory = Rollout(1, minibatches, False, CPU, seed=0)
        parts = [batch.steps for batch in filled(memory, content).batches()]
        sizes.append([part.mask.shape for part in parts])
        ignored = [x for p in parts for x in p.action[p.mask == 0].tolist()]
        assert len(ignored) == (len(resets) if content is mask else 0)
        # Masked copies of unmasked rows replace reset rows.
        assert not set(ignored) & set(resets)
    assert sizes[0] == sizes[1]


def test_final_observations_reach_no_minibatch():
    mask = some_masked(FEW)
    steps = numbered_steps(mask)
    steps.obs["a"][mask == 0] = torch.inf
    memory = Rollout(2, 4, False, CPU, seed=0)
    memory.add(Segment(steps, (), (), (), torch.zeros(B)))
    batches = list(memory.batches())
    assert sum(int((batch.steps.mask == 0).sum()) for batch in batches) == 2 * (mask == 0).sum()
    assert all(batch.steps.obs["a"].isfinite().all() for batch in batches)


@pytest.mark.parametrize("large", [False, True])
def test_many_or_large_reset_rows_are_left_out(large, monkeypatch):
    if large:
        monkeypatch.setattr(rollout, "SMALL_ROLLOUT_BYTES", 0)
    memory = Rollout(2, 4, False, CPU, seed=0)
    for batch in filled(memory, some_masked(FEW if large else 0.3)).batches():
        assert bool((batch.steps.mask == 1).all())


@pytest.mark.parametrize("share", [0.3, FEW])
def test_the_leaves_of_a_row_stay_together(share):
    memory = Rollout(epochs=1, minibatches=3, recurrent=False, device=CPU, seed=0)
    mask = some_masked(share)
    filled(memory, mask)
    for batch in memory.batches():
        steps, number = batch.steps, batch.steps.action
        assert number.shape[0] == 1
        assert torch.equal(steps.obs["a"].squeeze(-1), number.float())
        assert torch.equal(steps.obs["b"][0], number * 10)
        assert torch.equal(steps.obs["b"][1], number * 100)
        assert torch.equal(steps.reward, number.float())
        assert torch.equal(steps.extra["x"], number * 2)
        played = steps.mask == 1
        assert torch.equal(steps.mask[played], mask.flatten()[number[played]])


@pytest.mark.parametrize("minibatches", [1, 2, 5])
def test_recurrent_batches_are_whole_lanes_with_their_states(minibatches):
    mask = some_masked()
    state = (torch.arange(B).float().unsqueeze(-1), torch.arange(B).float().unsqueeze(-1) * 7)
    memory = Rollout(epochs=2, minibatches=minibatches, recurrent=True, device=CPU, seed=0)
    filled(memory, mask, state)
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


def test_the_same_seed_gives_the_same_order():
    def order(seed):
        memory = Rollout(1, 2, False, CPU, seed)
        filled(memory, torch.ones(T, B))
        return torch.cat([b.steps.action for b in memory.batches()], 1).tolist()

    assert order(1) == order(1) != order(2)


def test_the_rollout_is_empty_after_batches():
    memory = Rollout(1, 2, False, CPU, 0)
    filled(memory, torch.ones(T, B))
    list(memory.batches())
    with pytest.raises(AssertionError):
        next(memory.batches())
