"""EnvOptions: preprocessing and limits that every engine understands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rookery.errors import require


@dataclass(frozen=True, kw_only=True)
class RemoteOptions:
    """Connection settings for environments named tcp://HOST:PORT; others ignore them."""

    keys: str | None = None
    """Folder with this client's secret key and the servers' public one ('rookery serve
    --make-keys')."""
    timeout_s: float = 60.0
    """Seconds without a reply after which a server counts as lost."""
    wait_s: float = 0.0
    """Seconds to wait in the queue of a full server; 0: fail at once."""
    away_s: float = 600.0
    """Seconds that all servers together may be unreachable before the run ends."""

    def __post_init__(self) -> None:
        require(self.timeout_s > 0, f"env.remote.timeout_s must be above 0, got {self.timeout_s!r}")
        require(
            0 <= self.wait_s <= 3600, f"env.remote.wait_s must be 0 to 3600, got {self.wait_s!r}"
        )
        require(self.away_s >= 0, f"env.remote.away_s must be 0 or more, got {self.away_s!r}")


@dataclass(frozen=True, kw_only=True)
class EnvOptions:
    """Preprocessing and limits; None means the default for the environment's name."""

    frame_skip: int | None = None
    """Frames per agent step; the action repeats. None: 4 for Atari, 1 otherwise."""
    frame_stack: int | None = None
    """Newest frames in one observation, zeros before the first. None: 4 for Atari, 1 otherwise."""
    resize: tuple[int, int] | None = None
    """Height and width of image observations. None: 84x84 for Atari, unchanged otherwise."""
    grey: bool | None = None
    """Images in grey. None: True for Atari, unchanged otherwise."""
    noops: int | None = None
    """Random no-ops at reset: fewer than N (ALE) or 1 to N (others). None: 30 for Atari, else 0."""
    one_life: bool = False
    """The learner sees a lost life as the end of an episode; the game goes on."""
    sticky: float | None = None
    """Probability per frame that the previous action repeats. None: by the environment's name."""
    clip_reward: bool | None = None
    """The learner gets the sign of the reward; scores stay raw. None: True for Atari."""
    normalize_obs: bool = False
    """Scale observations by their running mean and deviation."""
    normalize_reward: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    reward_gamma: float = 0.99
    """Discount of the return that normalize_reward measures."""
    time_limit: int | None = None
    """Agent steps until truncation. None: the environment's own (Atari: 108,000 frames)."""
    action_mask: bool = False
    """Add info["action_mask"] to the observation; the agent never takes an action that is 0
    there."""
    check_bounds: bool = True
    """Stop on an observation outside the bounds of its Box; False if the bounds are estimates."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for the environment's constructor."""
    remote: RemoteOptions = field(default_factory=RemoteOptions)
    """Keys and time limits for served environments, tcp://HOST:PORT."""

    def __post_init__(self) -> None:
        for name in ("frame_skip", "frame_stack", "time_limit"):
            value = getattr(self, name)
            require(
                value is None or is_whole(value, 1),
                f"env.{name} must be a whole number >= 1, got {value!r}",
            )
        require(
            self.noops is None or is_whole(self.noops, 0),
            f"env.noops must be a whole number >= 0, got {self.noops!r}",
        )
        require(
            self.resize is None
            or (
                isinstance(self.resize, tuple | list)
                and len(self.resize) == 2
                and all(is_whole(side, 1) for side in self.resize)
            ),
            f"env.resize must be (height, width) >= 1, got {self.resize!r}",
        )
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


def is_whole(value: object, least: int) -> bool:
    """True if `value` is an int (no bool) of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
