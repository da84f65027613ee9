"""R2D2: stored state, burn-in, targets at t + n, priorities of whole sequences."""

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from scenes import CPU, FLAT, Lanes, Loop, every_window, filled, make, shaken
from torch import nn

from rookery.algorithms.off_policy import chosen_value, cost, sequence_td
from rookery.algorithms.r2d2 import (
    R2D2,
    R2D2Config,
    delta_q,
    mixed_priority,
    previous,
)
from rookery.data.steps import Batch, Steps
from rookery.data.tree import tree_map
from rookery.errors import BadInput
from rookery.learning.learner import Learner, LearnerConfig
from rookery.learning.reduce import Reducer
from rookery.memory.returns import rescale, unrescale
from rookery.networks.build import NetConfig
from rookery.networks.q import Inputs
from rookery.networks.recurrent import resets

MIXED = [[(3, "terminated"), (7, "truncated")], [(20, "truncated")], [(4, "both"), (1, "both")]]
SEEN = spaces.Box(-1, 1, (2,), np.float32)
SHORT = {"burn_in": 3, "unroll": 6, "n_step": 2, "capacity": 600, "warm_up": 0, "batch_size": 8}
SHORT |= {"alpha": 1.0, "gamma": 0.9}
SHAPES = [{}, {"stride": 3}, {"stride": 2, "burn_in": 5}, {"burn_in": 0}, {"burn_in": 6}]
"""All with windows that hold episodes' ends."""


def an_env(unit=1.0):
    def see(lane, episode, t):
        return np.sin([lane + 3 * episode + t, 2 * lane + episode + 5 * t])

    def pay(lane, t, action):
        return unit * np.cos(lane + 2 * t + 3 * action)

    return Lanes(MIXED, see, pay, obs_space=SEEN, action_space=spaces.Discrete(3))


def an_agent(where, core="lstm", **settings):
    net = NetConfig(hidden=(8,), core=core, core_size=6)
    agent = make(R2D2, where, net, **(SHORT | settings))
    shaken(agent.network, 1, 0.3)
    agent.target.load_state_dict(agent.network.state_dict())
    return agent


def played(rounds=12, core="lstm", unit=1.0, **settings):
    """An agent, every window of what it played, its memory, and what it saw."""
    env = an_env(unit)
    agent = an_agent(env, core, **settings)
    memory, spy = filled(agent, env, rounds)
    found = every_window(memory)
    assert len(found.row) >= 9
    assert int((found.batch.steps.mask == 0).sum()) > 5
    return agent, found, memory, spy


def inputs_of(batch):
    *_, action, reward = batch.state
    return previous(batch.steps, action, reward.squeeze(-1))


def judged(agent, batch):
    return agent.loss(batch, agent.statistics(batch))


# ---------------------------------------------------------------- what is stored


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_stored_state_is_the_actors_to_the_bit(core, shape):
    _, found, _, spy = played(core=core, **shape)
    *state, reward = found.batch.state
    later = found.batch.steps.extra["later_state"]
    config = R2D2Config(**(SHORT | shape))
    nonzero = 0
    for i, (lane, row) in enumerate(zip(found.lane, found.row, strict=True)):
        _, before, carried = spy.at(lane, row)
        for ours, theirs in zip(state, carried, strict=True):
            assert torch.equal(ours[i], theirs)
            nonzero += bool((theirs != 0).any())
        assert torch.equal(reward[i, 0], before)
        for ours, theirs in zip(later[:-1], spy.at(lane, row + config.later)[2], strict=True):
            assert torch.equal(ours[0, i], theirs)
    assert nonzero > len(found.row)


def test_the_memory_hands_out_the_same_windows():
    _, found, memory, _ = played()
    every = {int(key): i for i, key in enumerate(found.batch.keys)}
    batch = memory.sample()
    index = torch.tensor([every[int(key)] for key in batch.keys])
    for ours, theirs in zip(batch.state, found.batch.state, strict=True):
        assert torch.equal(ours, theirs[index])
    assert torch.equal(batch.steps.obs, found.batch.steps.obs[:, index])
    assert torch.equal(batch.steps.reward, found.batch.steps.reward[:, index])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_previous_action_and_reward_are_those_the_actor_was_shown(shape):
    _, found, _, spy = played(**shape)
    inputs = inputs_of(found.batch)
    mask = found.batch.steps.mask
    starts = 0
    for i, (lane, row) in enumerate(zip(found.lane, found.row, strict=True)):
        for k in range(len(mask)):
            _, reward, state = spy.at(lane, row + k)
            assert torch.equal(inputs.action[k, i], state[-1])
            assert torch.equal(inputs.reward[k, i], reward)
            if k and not mask[k - 1, i]:
                starts += 1
                assert not bool(inputs.action[k, i].any())
                assert inputs.reward[k, i] == 0
    assert starts > 5


# ---------------------------------------------------------------- windows


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_replayed_values_are_the_actors_values(core, shape):
    agent, found, _, spy = played(core=core, **shape)
    batch, config = found.batch, agent.config
    q = agent.unrolled(agent.network, batch, agent.inputs_of(batch))
    assert q.shape[0] == config.unroll + config.n_step
    for i, (lane, row) in enumerate(zip(found.lane, found.row, strict=True)):
        for k in range(len(q)):
            extra = spy.rows[row + config.burn_in + k][-1].extra
            action = batch.steps.action[config.burn_in + k, i]
            assert q[k, i, int(action)].item() == pytest.approx(extra["q"][lane].item(), abs=1e-5)
            assert q[k, i].max().item() == pytest.approx(extra["value"][lane].item(), abs=1e-5)


def test_after_an_episodes_end_values_start_from_nothing():
    agent, found, _, _ = played()
    batch, burn_in = found.batch, agent.config.burn_in
    mask, inputs = batch.steps.mask, inputs_of(batch)
    q = agent.unrolled(agent.network, batch, inputs)
    seen = set()
    for i in range(mask.shape[1]):
        for k in range(1, len(mask)):
            ends = (mask[k:, i] == 0).nonzero()
            if mask[k - 1, i] or not mask[k, i]:
                continue
            last = int(ends[0]) + k + 1 if len(ends) else len(mask)
            zero = agent.network.initial_state(1, CPU)
            rows, lane = slice(k, last), slice(i, i + 1)
            fresh = Inputs(*(x[rows, lane].clone() for x in inputs))
            fresh.action[0], fresh.reward[0] = 0, 0
            alone, _ = agent.network(batch.steps.obs[rows, lane], fresh, zero)
            skip = max(0, burn_in - k)
            got = q[max(0, k - burn_in) : last - burn_in, lane]
            torch.testing.assert_close(alone[skip:], got, atol=1e-5, rtol=1e-5)
            seen.add((k > burn_in) - (k < burn_in))
    assert seen == {-1, 0, 1}  # before, at and after the end of the burn-in


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("burn_in", [1, 3, 6])
def test_burn_in_gets_exactly_no_gradient(core, burn_in):
    agent, found, _, _ = played(core=core, burn_in=burn_in)
    shaken(agent.target, 2, 0.3)
    obs = found.batch.steps.obs.clone().requires_grad_()
    state = tuple(part.clone().requires_grad_() for part in found.batch.state)
    batch = found.batch._replace(steps=found.batch.steps._replace(obs=obs), state=state)
    judged(agent, batch).total.backward()
    unroll = agent.config.unroll
    assert bool((obs.grad[:burn_in] == 0).all())
    assert all(bool((obs.grad[burn_in + k] != 0).any()) for k in range(unroll))
    assert bool((obs.grad[burn_in + unroll :] == 0).all())
    assert all(part.grad is None or not bool(part.grad.any()) for part in state)
    assert all(p.grad is None for p in agent.target.parameters())


def test_burn_in_only_brings_the_state_up_to_date():
    """The same update as without burn-in, from the states it leads to in either network."""
    agent, found, _, _ = played(burn_in=3)
    shaken(agent.target, 2, 0.3)
    batch = found.batch
    inputs, reset = agent.inputs_of(batch), resets(batch.steps.mask)
    *core, _, _ = batch.state
    total = judged(agent, batch).total
    total.backward()
    grads = [p.grad.clone() for p in agent.network.parameters()]
    agent.network.zero_grad()

    def values(network):
        state, rows = tuple(core), []
        for k in range(len(batch.steps.mask)):
            if reset is not None:
                state = tuple(torch.where(reset[k].unsqueeze(-1), 0.0, part) for part in state)
            row = Inputs(*(x[k : k + 1] for x in inputs))
            q, state = network(batch.steps.obs[k : k + 1], row, state)
            if k < 3:
                state = tuple(part.detach() for part in state)
            rows.append(q)
        return torch.cat(rows)[3:]

    q, target = values(agent.network), values(agent.target).detach()
    value = chosen_value(target, q.argmax(-1))
    steps = tree_map(lambda x: x[3:], batch.steps._replace(obs=(), extra={}))
    taken = chosen_value(q[:6], steps.action[:6])
    error = sequence_td(taken, value, steps, 0.9, 2, True)
    by_hand = cost(error, torch.zeros_like(error), "huber").sum() / steps.mask[:6].sum()
    torch.testing.assert_close(total, by_hand)
    by_hand.backward()
    for ours, p in zip(grads, agent.network.parameters(), strict=True):
        torch.testing.assert_close(ours, p.grad, atol=1e-6, rtol=1e-4)


# ---------------------------------------------------------------- targets


def window(reward, discount, mask):
    rows = [torch.tensor(x, dtype=torch.float32).unsqueeze(-1) for x in (reward, discount, mask)]
    return Steps((), torch.zeros(len(reward), 1), *rows, {})


def test_targets_stand_at_t_plus_n():
    steps = window([1, 2, 3, 4, 5, 6], [1] * 6, [1] * 6)
    best = torch.tensor([[10.0], [20], [30], [40], [50], [60]])
    error = sequence_td(torch.zeros(4, 1), best, steps, 0.5, 2, scaled=False)
    by_hand = [1 + 1 + 30 / 4, 2 + 1.5 + 40 / 4, 3 + 2 + 50 / 4, 4 + 2.5 + 60 / 4]
    assert error.flatten().tolist() == by_hand


def test_targets_stop_at_the_ends_of_episodes():
    # Row 1 terminates (row 2 is its final observation); row 4 truncates (row 5 is its).
    steps = window([1, 2, 0, 3, 4, 0, 5], [1, 0, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 0, 1])
    best = torch.tensor([[10.0], [20], [30], [40], [50], [60], [70]])
    error = sequence_td(torch.full((5, 1), 0.5), best, steps, 0.5, 2, scaled=False)
    by_hand = [1 + 1, 2, 0.5, 3 + 2 + 60 / 4, 4 + 60 / 2]
    assert error.flatten().tolist() == [x - 0.5 for x in by_hand]


def test_targets_on_the_scale_h():
    steps = window([1, 2, 3], [1] * 3, [1] * 3)
    best = torch.tensor([[1.0], [2.0], [3.0]])
    error = sequence_td(torch.tensor([[0.25], [0.5]]), best, steps, 0.5, 1, scaled=True)
    for k in range(2):
        goal = rescale((k + 1) + 0.5 * unrescale(best[k + 1]))
        assert error[k].item() == pytest.approx((goal - 0.25 * (k + 1)).item(), abs=1e-6)
    plain = sequence_td(torch.tensor([[0.25], [0.5]]), best, steps, 0.5, 1, scaled=False)
    assert not torch.allclose(error, plain)


class Table(nn.Module):
    """Action values by the number that is observed, whatever came before."""

    def __init__(self, rows):
        super().__init__()
        self.q = nn.Parameter(torch.tensor(rows, dtype=torch.float32))

    def forward(self, obs, inputs, state):
        return self.q[obs.long().squeeze(-1)], state

    def window(self, obs, inputs, state, reset):
        return self(obs, inputs, state)[0]

    def after(self, obs, inputs, state, reset):
        return state


# Observations 0 to 4 one after the other: the burn-in, two learned rows, and two more.
NETWORK = [[0, 0], [5, 1], [1, 5], [2, 7], [9, 3]]
TARGET = [[0, 0], [10, 11], [12, 13], [14, 15], [16, 17]]


def by_table(**settings):
    """An agent of tables, and a window over observations 0 to 4."""
    more = {"burn_in": 1, "unroll": 2, "n_step": 2, "gamma": 0.5, "eta": 0.75}
    agent = make(R2D2, FLAT, NetConfig(core="gru", core_size=2), **(SHORT | more | settings))
    agent.network, agent.target = Table(NETWORK), Table(TARGET)
    obs = torch.arange(5.0).view(5, 1, 1)
    state = (torch.zeros(1, 2), torch.zeros(1, 4), torch.zeros(1, 1))
    later = tree_map(lambda x: x.unsqueeze(0), state)
    column = [torch.ones(5, 1) for _ in range(3)]
    steps = Steps(obs, torch.tensor([[0], [0], [1], [1], [0]]), *column, {"later_state": later})
    return agent, Batch(steps, state, torch.zeros(1).long(), torch.ones(1))


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_the_action_is_chosen_and_valued_at_t_plus_n(double, scaled):
    agent, batch = by_table(double=double, rescale=scaled)
    out = judged(agent, batch)
    # Rows 1 and 2 look at rows 3 and 4. The network prefers action 1 at 3 and action 0 at 4 (at 1
    # and 2 it is the other way round); the target's own best is action 1.
    values = [15.0, 16.0] if double else [15.0, 17.0]
    taken = [5.0, 5.0]
    if scaled:
        goals = rescale(1.5 + 0.25 * unrescale(torch.tensor(values))).tolist()
    else:
        goals = [1.5 + 0.25 * v for v in values]
    errors = [abs(goal - q) for goal, q in zip(goals, taken, strict=True)]
    assert out.priorities.item() == pytest.approx(0.75 * max(errors) + 0.25 * sum(errors) / 2)
    costs = cost(torch.tensor(errors), torch.zeros(len(errors)), "huber")
    assert out.total.item() == pytest.approx(costs.mean().item(), rel=1e-5)
    assert out.metrics["q_mean"].item() == 5
    assert out.metrics["td_error"].item() == pytest.approx(sum(errors) / 2, rel=1e-5)


def test_weights_multiply_sequences():
    agent, found, _, _ = played()
    batch = found.batch
    count = len(batch.weight)
    single = []
    for i in range(count):
        weight = torch.zeros(count)
        weight[i] = 1
        single.append(judged(agent, batch._replace(weight=weight)).total)
    weight = torch.linspace(0.1, 1, count)
    whole = judged(agent, batch._replace(weight=weight)).total
    torch.testing.assert_close(whole, (torch.stack(single) * weight).sum())


# ---------------------------------------------------------------- priorities


def test_priorities_of_sequences_by_hand():
    error = torch.tensor([[1.0, -2.0], [-3.0, 9.0], [2.0, 4.0]])
    mask = torch.tensor([[1.0, 1], [1, 0], [1, 1]])
    assert mixed_priority(error, mask, 0.9).tolist() == pytest.approx([2.7 + 0.2, 3.6 + 0.3])
    assert mixed_priority(error, mask, 0.0).tolist() == pytest.approx([2, 3])
    assert mixed_priority(error, torch.zeros(3, 2), 0.9).tolist() == [0, 0]
    assert R2D2Config().eta == 0.9


def test_neither_burn_in_nor_masked_rows_count_in_a_priority():
    agent, found, _, _ = played(inputs=False)
    shaken(agent.target, 2, 0.3)
    batch, before = found.batch, judged(agent, found.batch)
    burn_in = agent.config.burn_in
    reward = batch.steps.reward.clone()
    reward[:burn_in] += 100
    reward += 50 * (1 - batch.steps.mask)
    after = judged(agent, batch._replace(steps=batch.steps._replace(reward=reward)))
    torch.testing.assert_close(after.priorities, before.priorities)
    torch.testing.assert_close(after.total, before.total)
    reward[burn_in] += 100
    changed = judged(agent, batch._replace(steps=batch.steps._replace(reward=reward))).priorities
    moved = (changed - before.priorities).abs() > 1
    assert torch.equal(moved, batch.steps.mask[burn_in] > 0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scaled", [True, False])
def test_first_priorities_are_the_learners_at_equal_weights(shape, scaled):
    agent, found, _, _ = played(rescale=scaled, **shape)
    out = judged(agent, found.batch)
    assert out.priorities.min() > 1e-3
    torch.testing.assert_close(found.priority.float(), out.priorities, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scaled", [True, False])
def test_unclipped_rewards_are_learned_from_raw_and_shown_on_the_scale_of_values(scaled):
    agent, found, _, _ = played(unit=500.0, rescale=scaled)
    batch = found.batch
    assert batch.steps.reward.abs().max() > 400
    out = judged(agent, batch)
    torch.testing.assert_close(found.priority.float(), out.priorities, atol=1e-3, rtol=1e-4)
    assert out.priorities.max() > (rescale(torch.tensor(300.0)) if scaled else 300)
    raw = inputs_of(batch).reward
    shown = agent.inputs_of(batch).reward
    torch.testing.assert_close(shown, rescale(raw) if scaled else raw)
    assert (shown.abs().max() < 25) == scaled


# ---------------------------------------------------------------- state, checked


def test_delta_q_by_hand():
    stored = torch.tensor([[3.0, 4.0], [1.0, 1.0]])
    recomputed = torch.tensor([[0.0, -8.0], [1.0, 1.0]])
    assert delta_q(stored, recomputed).tolist() == pytest.approx([(9 + 144) ** 0.5 / 8, 0])


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_stored_state_is_as_good_as_new_until_the_weights_change(core, shape):
    agent, found, _, _ = played(core=core, **shape)
    assert judged(agent, found.batch).metrics["delta_q"].item() < 1e-4
    shaken(agent.network, 5, 0.2)
    assert judged(agent, found.batch).metrics["delta_q"].item() > 0.01


# ---------------------------------------------------------------- settings


def test_hidden_inputs_change_nothing_and_shown_ones_do():
    for shown in (True, False):
        agent, found, _, _ = played(inputs=shown)
        *core, action, reward = found.batch.state
        other = (*core, action.roll(1, -1) + 1, reward + 1)
        one, two = judged(agent, found.batch), judged(agent, found.batch._replace(state=other))
        assert torch.equal(one.total, two.total) != shown
        obs = found.batch.steps.obs[0]
        state, nothing = (*core, action), torch.zeros(len(obs))
        decisions = [
            agent.act(obs, reward, s, None, None).extra["value"]
            for s, reward in (
                (state, nothing),
                ((*core, action + 1), nothing),
                (state, nothing + 1),
            )
        ]
        assert torch.equal(decisions[0], decisions[1]) != shown
        assert torch.equal(decisions[0], decisions[2]) != shown


def test_the_action_taken_is_the_next_rows_previous_action():
    agent = an_agent(FLAT)
    state = agent.initial_state(5)
    assert not any(bool(part.any()) for part in state)
    obs = torch.randn(5, 3)
    decision = agent.act(obs, torch.zeros(5), state, torch.Generator(), torch.ones(5))
    assert decision.state[-1].argmax(-1).tolist() == decision.action.tolist()
    assert decision.state[-1].sum(-1).tolist() == [1] * 5


@pytest.mark.parametrize(
    ("unroll", "stride", "burn_in", "at_once", "later"),
    [
        (80, None, 40, 20, 80),
        (80, 40, 40, 20, 40),
        (6, None, 3, 6, 6),
        (23, None, 0, 1, 23),
        (26, None, 26, 13, 26),
        (6, 2, 5, 2, 6),
        (6, 2, 0, 2, 2),
    ],
)
def test_rows_are_collected_so_that_sequences_start_with_a_collection(
    unroll, stride, burn_in, at_once, later
):
    config = R2D2Config(unroll=unroll, stride=stride, burn_in=burn_in, n_step=2)
    assert config.rows_at_once == at_once
    assert config.later == later
    assert config.sequence_stride % at_once == 0


@pytest.mark.parametrize("field", ["burn_in", "n_step", "stride"])
def test_what_is_longer_than_the_unroll_is_refused(field):
    with pytest.raises(BadInput, match=rf"algo\.{field}=5 is longer than algo\.unroll=4"):
        R2D2Config(**({"unroll": 4, "n_step": 1, "burn_in": 0} | {field: 5}))


def test_a_network_without_memory_is_refused():
    with pytest.raises(BadInput, match=r"net\.core=none.*apex"):
        make(R2D2, FLAT, NetConfig())


# ---------------------------------------------------------------- learning


def test_a_batch_without_a_single_row_costs_nothing():
    agent, found, _, _ = played()
    steps = found.batch.steps._replace(mask=torch.zeros_like(found.batch.steps.mask))
    out = judged(agent, found.batch._replace(steps=steps))
    assert out.total.item() == 0
    assert all(bool(value.isfinite()) for value in out.metrics.values())


def test_memory_is_learned():
    """The first observation says which action pays at the end, three steps later."""

    def see(lane, episode, t):
        return [0.0 if t else (1.0 if (lane + episode) % 2 else -1.0), t == 3]

    env = None

    def pay(lane, t, action):
        return float(t == 3 and action == (lane + env.episode[lane]) % 2)

    env = Lanes([[(4, "terminated")]] * 8, see, pay, obs_space=SEEN)
    more = {"burn_in": 0, "unroll": 5, "n_step": 1, "samples_per_insert": 4.0, "batch_size": 16}
    more |= {"learning_rate": 0.01, "target_period": 10, "rescale": False, "alpha": 0.6}
    agent = make(R2D2, env, NetConfig(hidden=(), core="gru", core_size=12), **(SHORT | more))
    loop = Loop(agent, env).run(120)
    agent.exploration = lambda steps, lanes: torch.zeros(lanes.size)
    for _ in range(2):  # the first of them may begin after a random action
        steps = loop.actor.collect().steps
    asked = steps.obs[..., 1] * steps.mask
    assert asked.sum() >= 8
    assert torch.equal(steps.reward, asked)
    assert steps.extra["value"][asked > 0].min() > 0.8


def test_gradients_are_summed_over_rows_not_over_sequences():
    """Two halves of a batch, each with the whole's statistics, add up to the whole."""
    agent, found, _, _ = played()
    whole = judged(agent, found.batch)
    parts = Learner(agent, LearnerConfig(micro_batches=2), Reducer(), CPU).parts(found.batch)
    statistics = agent.statistics(found.batch)
    halves = [agent.loss(part, statistics) for part in parts]
    torch.testing.assert_close(halves[0].total + halves[1].total, whole.total)
    torch.testing.assert_close(torch.cat([half.priorities for half in halves]), whole.priorities)
    for name, value in whole.metrics.items():
        torch.testing.assert_close(sum(half.metrics[name] for half in halves), value)
