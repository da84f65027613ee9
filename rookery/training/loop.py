"""The loop that every run goes through, whichever backend plays and learns."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rookery.backends.base import Backend, LearnerLost
from rookery.backends.components import Parts, check_agreement, meta_of, tensors_of
from rookery.diagnostics.profiling import Profile
from rookery.errors import EnvironmentFailure
from rookery.processes import ENDS, answering
from rookery.training.evaluation import Examiner
from rookery.training.journal import Journal


def run(
    parts: Parts, backend: Backend, journal: Journal, examiner: Examiner, profile: Profile
) -> str:
    """Play and learn until the run is over; why it is."""
    with interrupts() as interrupt:
        try:
            journal.begin(parts)
            backend.begin()
            if backend.recovers and journal.first_step == 0:
                save(parts, backend, journal)
            while True:
                try:
                    while (ending := parts.progress.ending(parts.config)) is None:
                        go_round(parts, backend, journal, examiner, profile, interrupt)
                    save(parts, backend, journal)
                    return ending
                except LearnerLost as lost:
                    go_back(parts, backend, journal, lost)
        except EnvironmentFailure:
            # The weights are those of the last whole update: worth keeping. Other ranks cannot
            # be asked for theirs now, so only this one's random state is saved.
            if parts.reducer.world == 1:
                save(parts, backend, journal)
            raise
        finally:
            profile.close()
            backend.close()


def go_round(
    parts: Parts,
    backend: Backend,
    journal: Journal,
    examiner: Examiner,
    profile: Profile,
    interrupt: threading.Event,
) -> None:
    """Play and learn for a moment, and see to what is due then."""
    config, progress = parts.config, parts.progress
    every = config.checkpoint_steps or max(1, config.env_steps // 10)
    before = progress.env_steps
    parts.learner.set_progress(before / config.env_steps)
    backend.advance()
    profile.round(warm=parts.learner.updates >= config.warm_up_updates)
    shares = backend.exchange(interrupt.is_set() or journal.asked_to_stop())
    progress.take(shares, parts.learner.updates)
    for notice in (line for share in shares for line in share.notices):
        journal.announce(notice)
    examined = examiner.due(before, progress.env_steps)
    if examined and parts.reducer.rank == 0:
        with backend.paused():
            backend.catch_up()
            journal.note_scores(progress.env_steps, examiner.scores(parts))
    journal.report(parts, shares, backend.gauges)
    journal.show(backend.status)
    if examined or progress.env_steps // every > before // every:
        save(parts, backend, journal)


def save(parts: Parts, backend: Backend, journal: Journal) -> None:
    """Write a checkpoint of everything that goes on; all ranks take part."""
    if journal.saved_at == parts.progress.env_steps:
        return
    backend.catch_up()
    ranks = parts.reducer.gather(backend.random_state())
    check_agreement(parts)
    journal.saved_at = parts.progress.env_steps
    if parts.reducer.rank == 0:
        states = {f"{name}.{rank}": s for rank, own in enumerate(ranks) for name, s in own.items()}
        journal.save(parts.progress.env_steps, tensors_of(parts, states), meta_of(parts))


def go_back(parts: Parts, backend: Backend, journal: Journal, lost: LearnerLost) -> None:
    """Go on from the newest checkpoint with new learners."""
    saved = journal.newest_checkpoint()
    journal.tell(
        f"{lost}; going back from step {parts.progress.env_steps:,} to {saved.step:,}", lost.details
    )
    backend.recover(saved)
    journal.rewind(parts, saved)


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C or a termination signal sets; a second Ctrl-C ends at once."""
    event = threading.Event()

    def ask(number: int, frame: object) -> None:
        if event.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        event.set()

    with answering(ENDS, ask):
        yield event
