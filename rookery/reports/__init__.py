"""Pictures drawn from the files of runs, scaling studies and sweeps."""

from __future__ import annotations

import importlib.util

from rookery.errors import missing_extra


def require_matplotlib(what: str) -> None:
    """Raise BadInput if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_extra(what, "plots")
