"""A sweep is ended by a signal, in the background too."""

from __future__ import annotations

import signal

import pytest

pytest.importorskip("ray", reason="the extra `ray` is not installed")

from rookery.sweep.study import terminations_as_interrupts


@pytest.fixture(autouse=True)
def answered():
    """Signals are answered as in the foreground, whatever the test ignores."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_termination_ends_a_sweep_that_ignores_ctrl_c():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(KeyboardInterrupt), terminations_as_interrupts():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_termination_is_answered_as_tune_answers_ctrl_c():
    told = []
    with terminations_as_interrupts():
        signal.signal(signal.SIGINT, lambda *_: told.append("tune"))
        signal.raise_signal(signal.SIGTERM)
    assert told == ["tune"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_hang_up_ends_a_sweep_unless_it_is_ignored():
    with pytest.raises(KeyboardInterrupt), terminations_as_interrupts():
        signal.raise_signal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with terminations_as_interrupts():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
