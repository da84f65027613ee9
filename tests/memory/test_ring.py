"""The ring keeps the newest rows, rebuilds stacks, and takes the estimated memory."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from streams import a_stream, layout, state_before

from rookery.data.tree import tree_map
from rookery.memory.ring import Layout, Ring, row_like

META = torch.device("meta")


def write(ring, stream, first, last, sizes=(1, 2, 3, 5, 8), lanes=slice(None)):
    """Write rows [first, last) of the lanes in segments."""
    at, turn = first, 0
    lanes = slice(0, ring.lanes) if lanes == slice(None) else lanes
    while at < last:
        count = min(sizes[turn % len(sizes)], last - at)
        steps = tree_map(lambda x, a=at, n=count: x[a : a + n, lanes], stream.steps)
        state = state_before(np.arange(ring.lanes)[lanes], at)
        ring.write(lanes, at, steps, state if ring.layout.state != () else ())
        at, turn = at + count, turn + 1


def every_row(ring, first, last):
    """Return lanes and rows [T, B] of all rows in [first, last)."""
    lane = np.arange(ring.lanes)
    return lane, np.broadcast_to(np.arange(first, last)[:, None], (last - first, ring.lanes))


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("sizes", [(1, 2, 3, 5, 8), (20,), (7,)])
def test_the_ring_always_holds_the_newest_rows(lanes, sizes):
    stream = a_stream(0, 130, lanes)
    ring = Ring(layout(), lanes, 20)
    for head in range(5, 130, 25):
        write(ring, stream, max(0, head - 25), head, sizes)
        lane, rows = every_row(ring, max(0, head - 20), head)
        places = ring.places(lane, rows)
        part = slice(max(0, head - 20), head)
        obs = ring.take_obs(lane, rows)
        assert torch.equal(obs["where"], stream.steps.obs["where"][part])
        assert torch.equal(obs["shade"], stream.steps.obs["shade"][part])
        for name in ("action", "reward", "discount", "mask"):
            expected = getattr(stream.arrays, name)[part]
            assert np.array_equal(getattr(ring, name)[places], expected)
        for name in ("q", "value"):
            assert np.array_equal(ring.extra[name][places], stream.steps.extra[name][part].numpy())


def test_writing_some_lanes_does_not_change_others():
    first, second = a_stream(0, 30, 4), a_stream(1, 30, 4)
    ring = Ring(layout(), 4, 20)
    write(ring, first, 0, 30, lanes=slice(0, 2))
    write(ring, second, 0, 13, lanes=slice(2, 4))
    lane, rows = every_row(ring, 10, 13)
    where = ring.take_obs(lane, rows)["where"]
    assert torch.equal(where[:, :2], first.steps.obs["where"][10:13, :2])
    assert torch.equal(where[:, 2:], second.steps.obs["where"][10:13, 2:])


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("frames", [2, 4])
def test_stacks_hold_the_frames_of_their_episode_and_zeros_before_it(frames, lanes):
    stream = a_stream(3, 200, lanes)
    short = 0
    for head in (3, 37, 38, 100, 200):
        ring = Ring(layout(frames), lanes, 37)
        write(ring, stream, 0, head)
        first = 0 if head <= 37 else head - 37 + frames - 1
        lane, rows = every_row(ring, first, head)
        stacks = ring.take_obs(lane, rows)["where"]
        assert stacks.shape == (head - first, lanes, frames, 3)
        for row in range(first, head):
            for b in range(lanes):
                episode, step = stream.at(b, row)
                expected = [
                    [b + 1, episode, step - back] if step >= back else [0, 0, 0]
                    for back in reversed(range(frames))
                ]
                short += step < frames - 1
                assert stacks[row - first, b].tolist() == expected
    assert short > 10  # some rows were close to an episode's start


def test_a_frame_before_an_episode_is_zero_in_every_part():
    ring = Ring(layout(4), 1, 10)
    write(ring, a_stream(0, 200, 1), 0, 200)
    lane, rows = every_row(ring, 193, 200)
    stacks = ring.take_obs(lane, rows)
    before = stacks["where"][..., 0] == 0
    assert before.any()
    assert not stacks["shade"][before].any()


def test_states_are_stored_at_multiples_of_the_stride():
    stream = a_stream(0, 100, 2)
    ring = Ring(layout(stride=5, state=True), 2, 20)
    write(ring, stream, 0, 100, sizes=(5,))
    lane = np.array([0, 1, 1, 0])
    row = np.array([80, 85, 90, 95])
    vector, number = ring.take_state(lane, row)
    expected = state_before(lane, row)
    assert torch.equal(vector, expected[0])
    assert torch.equal(number, expected[1])


def test_a_segment_between_strides_stores_no_state():
    stream = a_stream(0, 100, 2)
    ring = Ring(layout(stride=5, state=True), 2, 20)
    write(ring, stream, 0, 10, sizes=(5,))
    write(ring, stream, 10, 20, sizes=(2, 3))
    vector, _ = ring.take_state(np.zeros(4, int), np.array([0, 5, 10, 15]))
    assert vector[:, 1].tolist() == [0, 5, 10, 15]
    assert vector[:, 0].tolist() == [1, 1, 1, 1]


# ---------------------------------------------------------------- memory


def atari(state=(), stride=1):
    return Layout(
        obs=torch.empty(84, 84, dtype=torch.uint8, device=META),
        action=torch.empty((), dtype=torch.int16, device=META),
        extra={name: torch.empty((), device=META) for name in ("q", "value")},
        state=state,
        frames=4,
        stride=stride,
    )


def lstm():
    """Return the stored state of an LSTM with 512 units: output, cell and last reward."""
    return tuple(torch.empty(size, device=META) for size in (512, 512, 1))


@pytest.mark.parametrize(
    "kind", [atari(), atari(lstm(), 80), layout(4), layout(stride=5, state=True)]
)
@pytest.mark.parametrize("lanes", [1, 8])
def test_row_bytes_equal_the_size_of_the_columns(kind, lanes):
    ring = Ring(kind, lanes, 4_000)
    assert ring.nbytes() == pytest.approx(kind.row_bytes() * lanes * 4_000, rel=0.01)


def test_an_atari_row_stores_one_frame_and_16_more_bytes():
    # 7,056 pixels; action 2, q and value 8, reward 4, discount and mask 1 each.
    assert atari().row_bytes() == 7_056 + 2 + 8 + 4 + 2
    assert 1_000_000 * atari().row_bytes() <= 7.5e9


def test_memory_of_fifty_thousand_r2d2_sequences():
    kind = atari(lstm(), 80)
    assert kind.row_bytes() == 7_072 + 1_025 * 4 / 80
    assert 50_000 * 80 * kind.row_bytes() <= 32e9


def test_row_like_has_shapes_and_dtypes_of_the_space():
    from gymnasium import spaces

    space = spaces.Dict(
        {"a": spaces.Box(0, 255, (4, 2), np.uint8), "b": spaces.Tuple([spaces.Discrete(3)])}
    )
    row = row_like(space)
    assert (row["a"].shape, row["a"].dtype, row["a"].device) == ((4, 2), torch.uint8, META)
    assert (row["b"][0].shape, row["b"][0].dtype) == ((), torch.int64)


FILL = """
import os, sys
import numpy as np
import torch
sys.path[:0] = {path!r}
from scenes import CPU
from test_ring import atari
from rookery.data.steps import Segment, Steps
from rookery.memory.distributions import Prioritized
from rookery.memory.limiter import Limiter
from rookery.memory.replay import Replay, Transitions
from rookery.memory.ring import Ring

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def filled(lanes, rows):
    ring = Ring(atari(), lanes, rows)
    limiter = Limiter(None, 0, 0)
    tree = Prioritized(lanes * rows, 0.6, 0.4)
    memory = Replay(ring, Transitions(3, 0.99), tree, limiter, 32, 0, CPU)
    one = torch.ones(16, lanes)
    obs = torch.full((16, lanes, 84, 84), 7, dtype=torch.uint8)
    steps = Steps(obs, one.short(), one, one, one, {{"q": one, "value": one}})
    for _ in range(rows // 16):
        memory.add(Segment(steps, (), (), (), one[0]))
    memory.sample()
    return memory

small = filled(8, 64)
before = resident()
empty = Ring(atari(), 8, 3_520)
print(resident() - before)
del empty
before = resident()
memory = filled(8, 3_520)
print(resident() - before, memory.ring.nbytes(), atari().row_bytes() * 8 * 3_520)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_process_grows_by_the_estimated_size(pytestconfig):
    tests = pytestconfig.rootpath / "tests"
    program = FILL.format(path=[str(tests), str(tests / "memory")])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    empty, grown, columns, estimate = map(float, done.stdout.split())
    assert empty < 0.05 * estimate  # pages are allocated when first written
    assert 1.9e8 < estimate < 2.1e8
    assert grown == pytest.approx(estimate, rel=0.05)
    assert columns == pytest.approx(estimate, rel=0.01)
