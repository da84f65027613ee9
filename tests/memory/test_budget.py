"""Capacities in rows or bytes, and the machine's memory."""

import pytest

from rookery.errors import BadInput
from rookery.memory import budget


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8GB", 8e9),
        ("500 MB", 5e8),
        ("1.5gb", 1.5e9),
        (" 2 TB ", 2e12),
        ("640kb", 640e3),
    ],
)
def test_capacities_in_bytes_are_parsed(text, expected):
    assert budget.capacity_bytes(text) == expected


@pytest.mark.parametrize(
    "text", ["", "8", "GB", "8 G", "-8GB", "8GiB", "eight GB", "8GB!", "1e9GB", "8.GB", "8 GB 1"]
)
def test_an_unreadable_capacity_is_an_error_with_its_value(text):
    for ask in (budget.capacity_bytes, budget.check_capacity):
        with pytest.raises(BadInput) as raised:
            ask(text)
        assert str(raised.value) == (
            f'algo.capacity: expected rows or bytes such as 8GB, got "{text}"'
        )


def test_a_capacity_in_bytes_is_the_rows_that_fit():
    assert budget.rows_within(1_000, 7_072.0) == 1_000
    assert budget.rows_within("1MB", 250.0) == 4_000
    assert budget.rows_within("1MB", 300.0) == 3_333
    assert budget.rows_within("1KB", 2_000.0) == 0


@pytest.mark.parametrize("capacity", [0, -5, "0GB"])
def test_a_capacity_below_one_is_an_error(capacity):
    with pytest.raises(BadInput, match=f"algo.capacity.*{capacity}"):
        budget.check_capacity(capacity)


def test_positive_capacities_are_accepted():
    budget.check_capacity(1)
    budget.check_capacity("8GB")


def test_a_replay_larger_than_memory_is_an_error_with_both_sizes(monkeypatch):
    monkeypatch.setattr(budget, "machine_bytes", lambda: 16_000_000_000)
    budget.check_replay_fits(16e9, 1_000_000)
    budget.check_replay_fits(8e9, 1_000_000, ranks=2)
    with pytest.raises(BadInput, match=r"8\.1 GB on each of 2 ranks.*16\.0 GB"):
        budget.check_replay_fits(8.1e9, 1_000_000, ranks=2)
    with pytest.raises(BadInput) as raised:
        budget.check_replay_fits(28.3e9, 4_000_000)
    line = str(raised.value)
    assert "\n" not in line
    for part in ("algo.capacity", "4,000,000 rows", "28.3 GB", "16.0 GB"):
        assert part in line


def test_a_cgroup_limit_lowers_the_machines_memory(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(budget, "CGROUP", limit)
    whole = budget.machine_bytes()
    assert whole > 1e8
    for text, expected in [("123456789\n", 123456789), ("max\n", whole), (f"{10**18}\n", whole)]:
        limit.write_text(text)
        assert budget.machine_bytes() == expected


def test_sizes_are_shown_in_gigabytes_or_megabytes():
    assert budget.gigabytes(7.07e9) == "7.1 GB"
    assert budget.gigabytes(2.5e7) == "25.0 MB"
