"""One torch thread, `scenes` importable and Ctrl-C answered, however pytest is started."""

import os
import signal
import sys
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


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Variables that a command sets for its process end with the test that ran it."""
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
