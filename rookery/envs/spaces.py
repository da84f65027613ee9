"""Which spaces are supported, and how to walk through the leaves of a nested one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rookery.errors import BadInput

OBSERVATION_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
ACTIONS = OBSERVATION_LEAVES
Path = tuple[Any, ...]


def check_supported(name: str, observation: Space[Any], action: Space[Any]) -> None:
    """Refuse an environment whose spaces no network here can take or give."""
    for path, leaf in leaves(observation):
        if not isinstance(leaf, OBSERVATION_LEAVES):
            where = f' at "{dotted(path)}"' if path else ""
            raise BadInput(
                f'envs: "{name}" observes {leaf}{where}, which is not supported. '
                "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple are."
            )
    if not isinstance(action, ACTIONS):
        raise BadInput(
            f'envs: "{name}" acts in {action}, which is not supported. '
            "Box, Discrete, MultiDiscrete and MultiBinary are."
        )


def leaves(space: Space[Any], path: Path = ()) -> Iterator[tuple[Path, Space[Any]]]:
    """Every leaf of a nested Dict/Tuple space with the keys that lead to it."""
    if isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from leaves(child, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from leaves(child, (*path, index))
    else:
        yield path, space


def dotted(path: Path) -> str:
    """A path as one word: ("a", 0) is "a.0"."""
    return ".".join(str(key) for key in path)


def at(tree: Any, path: Path) -> Any:
    """The part of a nested observation (or space) that `path` leads to."""
    for key in path:
        tree = tree[key]
    return tree


def map_leaves(space: Space[Any], change: Callable[[Path, Any], Any], value: Any) -> Any:
    """`value`, nested like `space`, with every leaf replaced by `change(path, leaf)`."""

    def walk(part: Space[Any], path: Path, value: Any) -> Any:
        if isinstance(part, spaces.Dict):
            return {key: walk(child, (*path, key), value[key]) for key, child in part.items()}
        if isinstance(part, spaces.Tuple):
            return tuple(walk(c, (*path, i), value[i]) for i, c in enumerate(part.spaces))
        return change(path, value)

    return walk(space, (), value)


def modern_space(space: Any) -> Space[Any]:
    """A Gymnasium space; one of the old `gym` is told by its class name and converted."""
    if isinstance(space, Space):
        return space
    kind = type(space).__name__
    if kind == "Box":
        return spaces.Box(
            np.asarray(space.low), np.asarray(space.high), tuple(space.shape), space.dtype.type
        )
    if kind == "Discrete":
        return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.asarray(space.nvec))
    if kind == "MultiBinary":
        return spaces.MultiBinary(space.n)
    if kind == "Dict":
        return spaces.Dict({key: modern_space(part) for key, part in space.spaces.items()})
    if kind == "Tuple":
        return spaces.Tuple([modern_space(part) for part in space.spaces])
    raise BadInput(f"envs: {space!r} is not a space of Gymnasium's or old Gym's")
