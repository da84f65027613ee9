"""Signals answered for a while."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and a wish to end."""


@contextmanager
def answering(
    numbers: Iterable[int], answer: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """`answer` signals while the body runs; in another thread than the main one, where that cannot
    be, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, answer) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
