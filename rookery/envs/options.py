"""What can be asked of an environment, whichever engine runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rookery.errors import require


@dataclass(frozen=True, kw_only=True)
class RemoteOptions:
    """How a client gets on with servers; only environments named tcp://HOST:PORT read it."""

    keys: str | None = None
    """Folder with this client's secret key and the servers' public one ('rookery serve
    --make-keys')."""
    timeout_s: float = 60.0
    """Longest that a reply may take before its server counts as lost."""
    wait_s: float = 0.0
    """How long to wait in a server's queue where it has no room; 0: be refused at once."""
    away_s: float = 600.0
    """How long all servers may be away at a time before the run ends."""

    def __post_init__(self) -> None:
        require(self.timeout_s > 0, f"env.remote.timeout_s must be above 0, got {self.timeout_s!r}")
        require(
            0 <= self.wait_s <= 3600, f"env.remote.wait_s must be 0 to 3600, got {self.wait_s!r}"
        )
        require(self.away_s >= 0, f"env.remote.away_s must be 0 or more, got {self.away_s!r}")


@dataclass(frozen=True, kw_only=True)
class EnvOptions:
    """Preprocessing and limits; None stands for what the environment's name implies."""

    frame_skip: int | None = None
    """The agent acts every N frames. None: 4 for Atari, 1 otherwise."""
    frame_stack: int | None = None
    """Newest frames in one observation, zeros before the first. None: 4 for Atari, 1 otherwise."""
    resize: tuple[int, int] | None = None
    """Height and width of image observations. None: 84x84 for Atari, unchanged otherwise."""
    grey: bool | None = None
    """Images in grey. None: True for Atari, unchanged otherwise."""
    noops: int | None = None
    """Random no-ops at reset: fewer than N (ALE) or 1 to N (others). None: 30 for Atari, else 0."""
    one_life: bool = False
    """Losing a life ends learning's episode (not the game)."""
    sticky: float | None = None
    """Probability, a frame, that the previous action repeats. None: what the name implies."""
    clip_reward: bool | None = None
    """The learner gets the reward's sign; scores stay raw. None: True for Atari."""
    normalize_obs: bool = False
    """Scale observations by their running mean and deviation."""
    normalize_reward: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    reward_gamma: float = 0.99
    """Discount of the return that normalize_reward measures."""
    time_limit: int | None = None
    """Agent steps until truncation. None: the environment's own (Atari: 108,000 frames)."""
    action_mask: bool = False
    """Put info["action_mask"] into the observation: an agent takes no action that is 0 there."""
    check_bounds: bool = True
    """Stop on an observation outside its Box's bounds; False if the bounds are estimates."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Passed to the environment's constructor."""
    remote: RemoteOptions = field(default_factory=RemoteOptions)
    """Keys and time limits where the name is that of a server, tcp://HOST:PORT."""

    def __post_init__(self) -> None:
        for name in ("frame_skip", "frame_stack", "time_limit"):
            value = getattr(self, name)
            require(_whole(value, 1), f"env.{name} must be a whole number >= 1, got {value!r}")
        require(_whole(self.noops, 0), f"env.noops must be a whole number >= 0, got {self.noops!r}")
        require(_size(self.resize), f"env.resize must be (height, width) >= 1, got {self.resize!r}")
        require(
            self.sticky is None or 0 <= self.sticky < 1,
            f"env.sticky must lie in [0, 1), got {self.sticky!r}",
        )
        require(
            0 <= self.reward_gamma <= 1,
            f"env.reward_gamma must lie in [0, 1], got {self.reward_gamma!r}",
        )
        require(
            isinstance(self.kwargs, dict) and all(isinstance(key, str) for key in self.kwargs),
            f"env.kwargs must map argument names to values, got {self.kwargs!r}",
        )


def _whole(value: object, least: int) -> bool:
    if value is None:
        return True
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _size(value: object) -> bool:
    if value is None:
        return True
    return (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and all(part is not None and _whole(part, 1) for part in value)
    )
