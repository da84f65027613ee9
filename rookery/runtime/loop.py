"""The loop that every run goes through, whichever backend plays and learns."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from torch import Tensor

from rookery.diagnostics.profiling import Profile
from rookery.errors import EnvironmentFailure
from rookery.runtime.examine import Examiner
from rookery.runtime.journal import Journal
from rookery.runtime.progress import Share
from rookery.runtime.state import Parts, check_agreement, tensors_of


class Backend(Protocol):
    """Plays and learns."""

    def begin(self) -> None:
        """Start what goes on in the background."""
        ...

    def advance(self) -> None:
        """Do a part of the work, for a moment."""
        ...

    def exchange(self, interrupted: bool) -> list[Share]:
        """What was done since the last call, by every rank or every actor."""
        ...

    def gauges(self) -> dict[str, float]:
        """What is worth reporting of the actors at this moment."""
        ...

    def random_state(self) -> dict[str, Tensor]:
        """States of random generators that belong to a checkpoint."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Nobody plays meanwhile."""
        ...

    def close(self) -> None:
        """End what goes on in the background."""
        ...


def run(
    parts: Parts, backend: Backend, journal: Journal, examiner: Examiner, profile: Profile
) -> str:
    """Play and learn until the run is over; why it is."""
    config, progress = parts.config, parts.progress
    every = config.checkpoint_steps or max(1, config.env_steps // 10)
    with interrupts() as interrupt:
        try:
            journal.begin(parts)
            backend.begin()
            while (ending := progress.ending(config)) is None:
                before = progress.env_steps
                parts.learner.set_progress(before / config.env_steps)
                backend.advance()
                profile.round(warm=parts.learner.updates >= config.warm_up_updates)
                shares = backend.exchange(interrupt.is_set() or journal.asked_to_stop())
                progress.take(shares, parts.learner.updates)
                examined = examiner.due(before, progress.env_steps)
                if examined and parts.reducer.rank == 0:
                    with backend.paused():
                        journal.note_scores(progress.env_steps, examiner.scores(parts))
                journal.report(parts, shares, backend.gauges)
                if examined or progress.env_steps // every > before // every:
                    save(parts, backend, journal)
        except EnvironmentFailure:
            # The weights are those of the last whole update: worth keeping. Other ranks cannot
            # be asked for theirs now, so only this one's random state is saved.
            if parts.reducer.world == 1:
                save(parts, backend, journal)
            raise
        finally:
            profile.close()
            backend.close()
    if journal.saved_at != progress.env_steps:
        save(parts, backend, journal)
    return ending


def save(parts: Parts, backend: Backend, journal: Journal) -> None:
    """Write a checkpoint of everything that goes on; all ranks take part."""
    if journal.saved_at == parts.progress.env_steps:
        return
    ranks = parts.reducer.gather(backend.random_state())
    check_agreement(parts)
    journal.saved_at = parts.progress.env_steps
    if parts.reducer.rank == 0:
        states = {f"{name}.{rank}": s for rank, own in enumerate(ranks) for name, s in own.items()}
        journal.save(parts.progress, tensors_of(parts, states))


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C or a termination signal sets; a second Ctrl-C ends at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def ask(number: int, frame: object) -> None:
        if event.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
