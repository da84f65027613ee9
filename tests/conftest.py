"""One torch thread, `scenes` importable and Ctrl-C answered, however pytest is started."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # In the background of a script Ctrl-C is ignored, by every process that a test starts too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Ray runs its workers at a niceness of 15: beside a busy process they would hardly run at all.
os.environ.setdefault("RAY_worker_niceness", "0")

# The user's cache of random returns must neither change results nor be changed.
CACHE = tempfile.TemporaryDirectory(prefix="rookery-cache-")
os.environ["XDG_CACHE_HOME"] = CACHE.name

TOGETHER = ("backends/ray", "slurm")
"""Folders whose tests share a cluster, or daemons with fixed ports."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n 2` a test file, or a folder with a cluster, runs in one of the processes."""
    root = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(root).as_posix()
        group = next((folder for folder in TOGETHER if place.startswith(folder)), place)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Variables that a command sets for its process end with the test that ran it."""
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
