"""Supported spaces, and functions over the leaves of nested ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gymnasium import Space, spaces
from numpy.typing import NDArray
from rookery_server.spaces import describe, restore

from rookery.errors import BadInput

SUPPORTED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""Spaces of actions, and of the leaves of observations."""
Array = NDArray[Any]
Path = tuple[Any, ...]
"""Keys and indices that lead to a leaf of a nested space or observation."""


def check_supported(name: str, observation: Space[Any], action: Space[Any]) -> None:
    """Raise if no network here can encode the observations or produce the actions."""
    for path, leaf in space_leaves(observation):
        if not isinstance(leaf, SUPPORTED):
            raise BadInput(
                f'envs: "{name}" has the observation space {leaf}{located(path)}, which is not'
                " supported. Use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple."
            )
    if not isinstance(action, SUPPORTED):
        raise BadInput(
            f'envs: "{name}" has the action space {action}, which is not supported. '
            "Use Box, Discrete, MultiDiscrete or MultiBinary."
        )


def space_leaves(space: Space[Any], path: Path = ()) -> Iterator[tuple[Path, Space[Any]]]:
    """Yield path and space of every leaf of a nested Dict/Tuple space."""
    if isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from space_leaves(child, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from space_leaves(child, (*path, index))
    else:
        yield path, space


def dotted(path: Path) -> str:
    """Return a path as text: ("a", 0) gives "a.0"."""
    return ".".join(str(key) for key in path)


def located(path: Path) -> str:
    """Return where a leaf is, for messages: ("a", 0) gives ' at "a.0"', and () nothing."""
    return f' at "{dotted(path)}"' if path else ""


def part_at(tree: Any, path: Path) -> Any:
    """Return the part of a nested observation (or space) at `path`."""
    for key in path:
        tree = tree[key]
    return tree


def value_range(leaf: Space[Any]) -> tuple[Any, Any]:
    """Return the smallest and the largest value of a supported space, a number or [*shape]."""
    if isinstance(leaf, spaces.Box):
        return leaf.low, leaf.high
    if isinstance(leaf, spaces.Discrete):
        return leaf.start, leaf.start + leaf.n - 1
    if isinstance(leaf, spaces.MultiDiscrete):
        return leaf.start, leaf.start + leaf.nvec - 1
    return 0, 1


def map_leaves(space: Space[Any], change: Callable[[Path, Any], Any], value: Any) -> Any:
    """Return `value`, nested like `space`, with every leaf replaced by `change(path, leaf)`."""

    def walk(part: Space[Any], path: Path, value: Any) -> Any:
        if isinstance(part, spaces.Dict):
            return {key: walk(child, (*path, key), value[key]) for key, child in part.items()}
        if isinstance(part, spaces.Tuple):
            return tuple(walk(c, (*path, i), value[i]) for i, c in enumerate(part.spaces))
        return change(path, value)

    return walk(space, (), value)


def gymnasium_space(space: Any) -> Space[Any]:
    """Return a Gymnasium space; a space of old Gym is recognised by its class name."""
    if isinstance(space, Space):
        return space
    arrays: list[Array] = []
    try:
        return restore(describe(space, arrays), arrays, spaces)
    except ValueError as error:
        raise BadInput(f"envs: {space!r} is neither a space of Gymnasium nor of old Gym") from error
