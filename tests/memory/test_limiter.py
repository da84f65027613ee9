"""The limiter keeps readers and writers at the ratio of samples per insert."""

import random
import threading
import time

import pytest

from rookery.memory.limiter import Limiter


def test_during_the_warm_up_readers_wait_and_writers_do_not():
    limiter = Limiter(2.0, warm_up=100, tolerance=10)
    for _ in range(99):
        assert limiter.may_insert()
        limiter.note_inserted(1)
    assert limiter.batches_due(1) == 0
    assert limiter.due == 0
    assert not limiter.wait_to_sample(1, timeout=0.01)
    limiter.note_inserted(7)  # 106: counting starts here
    assert limiter.due == 0
    assert limiter.batches_due(1) == 0
    limiter.note_inserted(3)
    assert limiter.due == 6
    assert limiter.batches_due(6) > 0
    assert limiter.batches_due(7) == 0


def test_readers_wait_for_samples_due_and_writers_for_the_tolerance():
    limiter = Limiter(2.0, warm_up=0, tolerance=10)
    limiter.note_inserted(1)  # the warm-up ends with the first rows
    limiter.note_inserted(5)
    assert limiter.wait_to_insert(0.01)  # 10 due, 10 allowed
    limiter.note_inserted(1)
    assert limiter.due == 12
    assert not limiter.wait_to_insert(0.01)
    limiter.note_sampled(4)
    assert limiter.wait_to_insert(0.01)
    assert limiter.wait_to_sample(8, 0.01)
    assert not limiter.wait_to_sample(9, 0.01)


def test_without_a_ratio_neither_side_waits_after_the_warm_up():
    limiter = Limiter(None, warm_up=10, tolerance=0)
    assert limiter.batches_due(1) == 0
    limiter.note_inserted(10)
    assert limiter.batches_due(10**9) > 0
    limiter.note_sampled(10**6)
    assert limiter.batches_due(10**9) > 0
    limiter.note_inserted(10**9)
    assert limiter.wait_to_insert(0.0)
    assert limiter.wait_to_sample(1, 0.0)


@pytest.mark.parametrize("side", ["reader", "writer"])
def test_a_waiting_side_is_woken_at_once(side):
    limiter = Limiter(1.0, warm_up=0, tolerance=5)
    limiter.note_inserted(1)
    if side == "writer":
        limiter.note_inserted(6)
    wait = {
        "reader": lambda: limiter.wait_to_sample(3, 60),
        "writer": lambda: limiter.wait_to_insert(60),
    }[side]
    woken = []
    thread = threading.Thread(target=lambda: woken.append(wait()), daemon=True)
    thread.start()
    time.sleep(0.1)
    assert thread.is_alive()
    if side == "reader":
        limiter.note_inserted(3)
    else:
        limiter.note_sampled(1)
    thread.join(10)
    assert woken == [True]


WRITERS, ROWS, BATCH = 3, 8, 16


@pytest.mark.parametrize("ratio", [0.5, 8.0])
@pytest.mark.parametrize("slow", ["readers", "writers", "nobody"])
def test_the_ratio_holds_at_all_times(ratio, slow):
    warm_up, inserts = 50, 6_000
    tolerance = 2 * max(BATCH, ratio * ROWS)
    limiter = Limiter(ratio, warm_up, tolerance)
    behind = []
    done = threading.Event()

    def note(count, rows):
        with limiter.changed:
            count(rows)
            if limiter.started_at is not None:
                behind.append((limiter.inserted - limiter.started_at) * ratio - limiter.sampled)

    def pause(side, rng):
        if slow == side and rng.random() < 0.2:
            time.sleep(rng.random() * 2e-3)

    def write(seed):
        rng = random.Random(seed)
        while limiter.inserted < inserts:
            if limiter.wait_to_insert(0.05):
                note(limiter.note_inserted, rng.randint(1, ROWS))
                pause("writers", rng)

    def read():
        rng = random.Random(99)
        while not done.is_set():
            if limiter.wait_to_sample(BATCH, 0.05):
                note(limiter.note_sampled, BATCH)
                pause("readers", rng)

    reader = threading.Thread(target=read, daemon=True)
    writers = [threading.Thread(target=write, args=(i,), daemon=True) for i in range(WRITERS)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join(60)
        assert not thread.is_alive()
    done.set()
    reader.join(10)
    assert not reader.is_alive()
    # Samples are never drawn before they are due. Writers insert while no more than the tolerance
    # is due, so at worst all of them add a segment on top of it.
    assert min(behind) >= 0
    assert max(behind) <= tolerance + WRITERS * ROWS * ratio
    assert limiter.sampled > 0.5 * ratio * (inserts - warm_up) - tolerance
