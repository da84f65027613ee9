"""EnvOptions: preprocessing and limits that every engine understands."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import Any

from rookery.errors import require


@dataclass(frozen=True, kw_only=True)
class RemoteOptions:
    """Connection settings for environments named tcp://HOST:PORT, checked by EnvOptions; others
    ignore them."""

    keys: str | None = None
    """Folder with this client's secret key and the servers' public one ('rookery serve
    --make-keys')."""
    timeout_s: float = 60.0
    """Seconds without a reply after which a server counts as lost."""
    wait_s: float = 0.0
    """Seconds to wait in the queue of a full server; 0: fail at once."""
    away_s: float = 600.0
    """Seconds that all servers together may be unreachable before the run ends."""


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
        def check(fits: bool, name: str, wanted: str) -> None:
            value = operator.attrgetter(name)(self)
            require(fits, f"env.{name} must {wanted}, got {value!r}")

        for name, least in (("frame_skip", 1), ("frame_stack", 1), ("time_limit", 1), ("noops", 0)):
            value = getattr(self, name)
            check(value is None or is_whole(value, least), name, f"be a whole number >= {least}")
        sides = (1, 1) if self.resize is None else self.resize
        pair = isinstance(sides, tuple | list) and len(sides) == 2
        check(pair and all(is_whole(x, 1) for x in sides), "resize", "be (height, width) >= 1")
        check(self.sticky is None or 0 <= self.sticky < 1, "sticky", "lie in [0, 1)")
        check(0 <= self.reward_gamma <= 1, "reward_gamma", "lie in [0, 1]")
        named = isinstance(self.kwargs, dict) and all(isinstance(key, str) for key in self.kwargs)
        check(named, "kwargs", "map argument names to values")
        check(self.remote.timeout_s > 0, "remote.timeout_s", "be above 0")
        check(0 <= self.remote.wait_s <= 3600, "remote.wait_s", "be 0 to 3600")
        check(self.remote.away_s >= 0, "remote.away_s", "be 0 or more")

    def with_defaults(self, **defaults: Any) -> EnvOptions:
        """Return these options with `defaults` for those that are None."""
        return replace(self, **{k: v for k, v in defaults.items() if getattr(self, k) is None})

    @property
    def wraps_single(self) -> bool:
        """True if an option needs preprocessing that works on single environments only."""
        skips = (self.frame_skip or 1) > 1
        return bool(skips or self.resize or self.grey or self.noops or self.sticky)


def is_whole(value: object, least: int) -> bool:
    """True if `value` is an int (no bool) of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
