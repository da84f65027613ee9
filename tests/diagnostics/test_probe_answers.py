"""The probes' answers against a search over all episodes, and the checks against hand-made ones."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from rookery.diagnostics.probes import PROBES, Answer, Question, figures, passes, worst
from rookery.envs.builtin import PROBE_CLASSES, probes

DISCRETE = [probe for probe in PROBES if probe.needs != "continuous"]


class NoSignLeft(Exception):
    """An episode depends on a draw that has no value yet."""


def episodes(kind, actions, signs=()):
    """Yield (probability, observations, reward, terminated) of every episode with these actions
    that does not end before the last of them."""
    env, left = kind(), list(signs)

    def draw_sign():
        if not left:
            raise NoSignLeft
        return left.pop(0)

    env.draw_sign = draw_sign
    try:
        seen, ended = [tuple(env.reset()[0].tolist())], False
        for action in actions:
            if ended:
                return
            obs, reward, terminated, truncated, _ = env.step(action)
            seen.append(tuple(obs.tolist()))
            ended = terminated or truncated
    except NoSignLeft:
        for sign in (-1, 1):
            yield from episodes(kind, actions, (*signs, sign))
        return
    yield 0.5 ** len(signs), tuple(seen), reward, terminated


def optimal_q(kind, seen, done, gamma):
    """Return the optimal value of every action for one who saw `seen`: truncation is no end."""
    values = []
    for action in range(kind.actions):
        ends = [e for e in episodes(kind, (*done, action)) if e[1][:-1] == seen]
        total = sum(probability for probability, *_ in ends)
        value = 0.0
        for probability, after, reward, terminated in ends:
            later = 0.0 if terminated else max(optimal_q(kind, after, (*done, action), gamma))
            value += probability / total * (reward + gamma * later)
        values.append(value)
    return values


@pytest.mark.parametrize("gamma", [0.5, 0.8, 1.0])
@pytest.mark.parametrize("probe", DISCRETE, ids=lambda probe: probe.title)
def test_answers_are_the_optimal_values(probe, gamma):
    kind = getattr(probes, PROBE_CLASSES[probe.number - 1])
    for question in probe.questions(gamma):
        exact = optimal_q(kind, question.seen, question.done, gamma)
        assert question.answer == pytest.approx(exact), question.moment


def test_truncation_taken_for_termination_would_halve_the_value():
    ends = list(episodes(probes.CutEpisode, (0,)))
    assert len(ends) == 2  # truncated, and not
    assert sum(probability for probability, *_ in ends) == 1
    first = PROBES[7].questions(0.8)[0]
    assert first.answer == (0.8,)
    assert not passes(figures("value", first, Answer(value=0.4))[0])


@pytest.mark.parametrize("deviation", [0.1, 0.4, 1.0, 2.0])
def test_best_mean_of_a_clipped_gaussian_is_the_continuous_answer(deviation):
    env, normal = probes.ContinuousAction(), NormalDist(sigma=deviation)
    noise = [normal.inv_cdf((i + 0.5) / 1_000) for i in range(1_000)]
    means = [0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7]
    paid = [sum(env.reward([min(max(m + z, -1), 1)]) for z in noise) for m in means]
    assert (means[paid.index(max(paid))],) == PROBES[8].questions(0.8)[0].answer


def test_probes_are_numbered_in_order():
    assert [probe.number for probe in PROBES] == list(range(1, 10))
    assert PROBES[2].environment == "rookery/Probe3-v0"


TWO = Question("now", ((1.0,),), (), (0.2, 0.9))


def test_action_values_are_compared_one_by_one():
    found = figures("actions", TWO, Answer(q=(0.25, 0.5), value=3.0))
    assert [(f.figure, f.expected) for f in found] == [(0.25, 0.2), (0.5, 0.9)]
    assert worst(found).what == "value of action 1 now"
    assert not passes(worst(found))


def test_policies_are_asked_for_the_probability_of_the_best_action():
    (found,) = figures("actions", TWO, Answer(value=3.0, probabilities=(0.05, 0.95)))
    assert found == ("probability of action 1 now", 0.95, 1.0)
    assert passes(found)
    (found,) = figures("memory", TWO, Answer(action=(0.0,)))
    assert (found.figure, found.expected) == (0, 1)


def test_only_the_best_action_counts_where_values_depend_on_exploration():
    question = TWO._replace(ranks_only=True)
    (found,) = figures("actions", question, Answer(q=(0.1, 0.4), action=(1.0,)))
    assert (found.figure, found.expected) == (1, 1)


def test_value_and_continuous_action_are_compared():
    one = Question("now", ((1.0,),), (), (0.8,))
    assert figures("value", one, Answer(value=0.75))[0][1:] == (0.75, 0.8)
    assert figures("value", one, Answer(q=(0.7,), value=9.0))[0][1:] == (0.7, 0.8)
    assert figures("continuous", one, Answer(action=(0.5,), value=9.0))[0][1:] == (0.5, 0.8)


def test_nan_is_the_worst_answer():
    one = Question("now", ((1.0,),), (), (0.8,))
    found = figures("value", one, Answer(value=math.nan)) + figures("value", one, Answer(value=9.0))
    assert math.isnan(worst(found).figure)
    assert not passes(worst(found))
