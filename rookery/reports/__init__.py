"""What is drawn from the files that runs and studies leave."""

from __future__ import annotations

import importlib.util

from rookery.errors import missing_extra


def require_matplotlib(what: str) -> None:
    """BadInput if there is nothing to draw with."""
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_extra(what, "plots")
