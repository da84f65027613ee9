"""The memory budget of a replay: capacities in rows or bytes, and the machine's memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rookery.errors import BadInput, require

UNITS = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
CGROUP = Path("/sys/fs/cgroup/memory.max")


def rows_within(capacity: int | str, row_bytes: float) -> int:
    """Return the number of rows of a capacity given in rows or in bytes such as "8GB"."""
    if isinstance(capacity, int):
        return capacity
    return int(capacity_bytes(capacity) / row_bytes)


def share_of_capacity(capacity: int | str, parts: int) -> int | str:
    """Return the capacity divided by `parts`."""
    if isinstance(capacity, int):
        return capacity // parts
    return f"{capacity_bytes(capacity) / parts / 1e3:.3f}KB"


def check_capacity(capacity: int | str) -> None:
    """Raise unless `capacity` is a positive number of rows or of bytes."""
    size = capacity if isinstance(capacity, int) else capacity_bytes(capacity)
    require(size >= 1, f"algo.capacity must be at least 1 row, got {capacity}")


def capacity_bytes(text: str) -> float:
    """Return the number of bytes in a text such as "8GB" or "500 MB"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]B)\s*", text, re.IGNORECASE)
    if match is None:
        raise BadInput(f'algo.capacity: expected rows or bytes such as 8GB, got "{text}"')
    return float(match[1]) * UNITS[match[2].upper()]


def machine_bytes() -> int:
    """Return the machine's memory in bytes, or the cgroup limit of this process if lower."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = CGROUP.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def check_replay_fits(needed: float, rows: int, ranks: int = 1) -> None:
    """Raise unless `needed` bytes for `rows` rows on each of the machine's ranks fit in memory."""
    available = machine_bytes()
    each = f" on each of {ranks} ranks" if ranks > 1 else ""
    require(
        needed * ranks <= available,
        f"algo.capacity: {rows:,} rows take {gigabytes(needed)}{each} and the machine has"
        f" {gigabytes(available)}; lower it, or give it in bytes such as 8GB",
    )


def gigabytes(count: float) -> str:
    """Return bytes as text such as "7.1 GB"."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
