"""The probes of an algorithm: their exact answers, how far off an answer may be, and what a wrong
one means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

PROBE_TOLERANCE = 0.1
"""Largest error of a value or a probability. The wrong answers that probes are made to show are at
least 0.2 away at gamma 0.8."""

Ability = Literal["value", "actions", "memory", "continuous"]


class Question(NamedTuple):
    """A moment of an episode, and the exact answer to "what is it worth?"."""

    moment: str
    """The moment in words."""
    seen: tuple[tuple[float, ...], ...]
    """The observations from the start of the episode to this moment."""
    done: tuple[int, ...]
    """The actions that were taken before it."""
    answer: tuple[float, ...]
    """The optimal value of every action; of a continuous action, the best one."""
    ranks_only: bool = False
    """True if values may differ from the optimal ones and only the best action counts: an n-step
    return that is not corrected for exploration depends on later actions of the behaviour."""


class Answer(NamedTuple):
    """Answer of an algorithm at a moment; None where it computes no such thing."""

    value: float | None = None
    q: tuple[float, ...] | None = None
    """Action values."""
    probabilities: tuple[float, ...] | None = None
    """Probabilities of the actions in the policy."""
    action: tuple[float, ...] = ()
    """The best action, as the environment gets it."""


class Figure(NamedTuple):
    """A number that an algorithm computed, and what it should be."""

    what: str
    figure: float
    expected: float

    @property
    def error(self) -> float:
        """The distance from what is expected; infinite for NaN."""
        error = abs(self.figure - self.expected)
        return math.inf if math.isnan(error) else error


@dataclass(frozen=True)
class Probe:
    """A probe environment: its questions, and what a wrong answer means."""

    number: int
    title: str
    needs: Ability
    """Part that an algorithm must have to be asked."""
    questions: Callable[[float], Sequence[Question]]
    """Returns the questions with their answers for a discount gamma."""
    means: str
    """Fault if this probe is the first to fail."""
    look: str
    """Places to look at."""

    @property
    def environment(self) -> str:
        """The environment's name."""
        return f"rookery/Probe{self.number}-v0"


def can_answer(needs: Ability, answer: Answer) -> bool:
    """True if an algorithm that gives such answers can be asked for values; of actions there is
    always the best one."""
    return needs != "value" or answer.value is not None or answer.q is not None


def figures(needs: Ability, question: Question, answer: Answer) -> list[Figure]:
    """Return what to compare: action values if there are any; else the value, the best continuous
    action, or the probability of the best action, of which an algorithm without probabilities
    chooses one with certainty."""
    exact, moment = question.answer, question.moment
    if needs == "continuous":
        return [Figure(f"action {moment}", answer.action[0], exact[0])]
    if answer.q is not None and not question.ranks_only:
        named = [f"of action {i} " if len(exact) > 1 else "" for i in range(len(exact))]
        parts = zip(named, answer.q, exact, strict=True)
        return [Figure(f"value {name}{moment}", q, right) for name, q, right in parts]
    if needs == "value":
        assert answer.value is not None
        return [Figure(f"value {moment}", answer.value, exact[0])]
    best = max(range(len(exact)), key=exact.__getitem__)
    if answer.probabilities is None:
        probability = float(answer.action[0] == best)
    else:
        probability = answer.probabilities[best]
    return [Figure(f"probability of action {best} {moment}", probability, 1.0)]


def worst(found: Sequence[Figure]) -> Figure:
    """Return the figure that is farthest from what is expected."""
    return max(found, key=lambda figure: figure.error)


def passes(figure: Figure) -> bool:
    """True if the figure is near enough to what is expected."""
    return figure.error <= PROBE_TOLERANCE


# ---------------------------------------------------------------- questions


SIGNS = ((-1, 0), (1, 1))
"""The signs that environments draw, and the action that names each."""


def constant_value(gamma: float) -> list[Question]:
    """Return the question of Probe1."""
    return [Question("of the only observation", ((1.0,),), (), (1.0,))]


def observed_value(gamma: float) -> list[Question]:
    """Return the questions of Probe2."""
    return [Question(f"of observation {s}", ((s,),), (), (float(s),)) for s, _ in SIGNS]


def discounted_value(gamma: float) -> list[Question]:
    """Return the questions of Probe3."""
    return [
        Question("at the first step", ((-1.0,),), (), (gamma,)),
        Question("at the second step", ((-1.0,), (1.0,)), (0,), (1.0,)),
    ]


def delayed_return(gamma: float) -> list[Question]:
    """Return the questions of Probe4."""
    return [
        Question(
            f"at step {step + 1} of an episode that ends with {s}",
            tuple(tuple(float(s * (i == t)) for i in range(4)) for t in range(step + 1)),
            (0,) * step,
            (s * gamma ** (3 - step),),
        )
        for s, _ in SIGNS
        for step in range(4)
    ]


def better_action(gamma: float) -> list[Question]:
    """Return the question of Probe5."""
    return [Question("at the only observation", ((1.0,),), (), (0.0, 1.0))]


def two_decisions(gamma: float) -> list[Question]:
    """Return the questions of Probe6."""

    def paid(right: int, reward: float) -> tuple[float, ...]:
        return tuple(reward * (action == right) for action in (0, 1))

    first = [
        Question(f"at the first step with sign {s}", ((s, 0.0, 0.0),), (), paid(right, gamma), True)
        for s, right in SIGNS
    ]
    second = [
        Question(
            f"at the second step with sign {s} after a right action",
            ((1.0, 0.0, 0.0), (0.0, s, 1.0)),
            (1,),
            paid(right, 1.0),
        )
        for s, right in SIGNS
    ]
    return first + second


def remembered_sign(gamma: float) -> list[Question]:
    """Return the questions of Probe7."""
    return [
        Question(
            f"at the second step after sign {s}",
            ((s, 0.0), (0.0, 1.0)),
            (right,),
            tuple(float(action == right) for action in (0, 1)),
        )
        for s, right in SIGNS
    ]


def cut_episode(gamma: float) -> list[Question]:
    """Return the questions of Probe8."""
    return [
        Question("at the first step", ((1.0, 0.0),), (), (gamma,)),
        Question("at the second step", ((1.0, 0.0), (0.0, 1.0)), (0,), (1.0,)),
    ]


def continuous_action(gamma: float) -> list[Question]:
    """Return the question of Probe9."""
    return [Question("at the only observation", ((1.0,),), (), (0.5,))]


# ---------------------------------------------------------------- the table


PROBES = (
    Probe(
        1,
        "value of a constant",
        "value",
        constant_value,
        "the value does not follow the reward, or it bootstraps from the end of a terminated"
        " episode (then it is more than 1)",
        "value loss and its coefficient, gradient and optimizer step, learning rate; that targets"
        " multiply the next value by the discount of the step, 0 at a termination",
    ),
    Probe(
        2,
        "value of an observation",
        "value",
        observed_value,
        "the value does not depend on the observation",
        "what the network gets of an observation (scaling, encoder), saturated or dead units, a"
        " gradient that stops before the first layer, rows of observations and rewards that do not"
        " belong together",
    ),
    Probe(
        3,
        "discounting",
        "value",
        discounted_value,
        "a reward is not carried back to the step before, or not discounted on the way",
        "gamma in the return, the n-step sum or the target; the target network's update; the value"
        " of the next observation",
    ),
    Probe(
        4,
        "return through time",
        "value",
        delayed_return,
        "over several steps returns go wrong: they are mixed between episodes or environments, or"
        " bootstrapping does not reach as far",
        "order of the time and environment axes, where sums stop at the end of an episode, n-step"
        " sums, target network's update, lambda",
    ),
    Probe(
        5,
        "advantage and policy",
        "actions",
        better_action,
        "the policy does not come to prefer the action that pays more",
        "sign of the advantage and of the policy loss, a detached log-probability, stored"
        " log-probabilities, the action that a value is gathered for, exploration",
    ),
    Probe(
        6,
        "two decisions",
        "actions",
        two_decisions,
        "the policy does not depend on the observation as it should, or an action is not credited"
        " with a reward that comes a step later",
        "that rows of observations, actions and advantages belong together, also after shuffling;"
        " advantages over several steps; gradient of the policy's layers",
    ),
    Probe(
        7,
        "memory",
        "memory",
        remembered_sign,
        "the policy forgets what it saw a step before",
        "recurrent state that is cleared within episodes or not stored, the state at the start of a"
        " training sequence, gradient through time, rows that clear the state",
    ),
    Probe(
        8,
        "truncation",
        "value",
        cut_episode,
        "a truncated episode does not bootstrap from its final observation",
        "truncation taken for termination (a single flag `done`), or the value of the next"
        " episode's first observation in place of the final one",
    ),
    Probe(
        9,
        "continuous action",
        "continuous",
        continuous_action,
        "the policy does not find the best continuous action",
        "log-probability of a continuous action, scaling and clipping between policy and"
        " environment, gradient of mean and deviation",
    ),
)
"""Every probe, in the order in which they run: what a later one needs, an earlier one checks."""
