"""Points of a scaling study: numbers of actors and of environments per actor."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from rookery.errors import BadInput, require

Mode = Literal["weak", "strong", "both"]


class Point(NamedTuple):
    """A number of actors, and the number of environments of each."""

    actors: int
    envs: int

    @property
    def label(self) -> str:
        """ACTORS-ENVS, where ENVS is per actor."""
        return f"{self.actors}-{self.envs}"

    def doubled(self, study: str) -> Point | None:
        """Return the point with twice the actors; None if environments cannot be divided so far."""
        if study == "weak":
            return Point(2 * self.actors, self.envs)
        return None if self.envs % 2 else Point(2 * self.actors, self.envs // 2)


def parse_points(text: str) -> list[Point]:
    """Parse points such as "1-8,2-8,4-8"."""
    points = [parse_point(word.strip()) for word in text.split(",")]
    twice = [point.label for at, point in enumerate(points) if point in points[:at]]
    require(not twice, f"points: {', '.join(twice)} is given twice in {text}; give each point once")
    return points


def parse_point(word: str) -> Point:
    """Parse a point such as "2-8"."""
    match = re.fullmatch(r"(\d+)-(\d+)", word)
    if match is None or not all(int(number) for number in match.groups()):
        raise BadInput(f'points: expected ACTORS-ENVS,... such as 1-8,2-8,4-8, got "{word}"')
    return Point(int(match[1]), int(match[2]))


def plan_studies(points: list[Point], mode: Mode) -> dict[str, list[Point]]:
    """Return the points of each study. ENVS is per actor in a weak study; in a strong one it is the
    total, which is divided among the actors."""
    studies = {}
    if mode in ("weak", "both"):
        studies["weak"] = points
    if mode in ("strong", "both"):
        studies["strong"] = divide_environments(points)
    return studies


def divide_environments(points: list[Point]) -> list[Point]:
    """Turn points with a total number of environments into points with environments per actor."""
    totals = sorted({point.envs for point in points})
    require(
        len(totals) == 1,
        f"points: a strong study needs the same number of environments at every point, got"
        f" {', '.join(map(str, totals))}",
    )
    for actors, total in points:
        require(
            total % actors == 0,
            f"points: {actors}-{total} cannot divide {total} environments evenly among {actors}"
            " actors; in a strong study the second number is the total over all actors",
        )
    return [Point(actors, total // actors) for actors, total in points]


def unique_points(studies: dict[str, list[Point]]) -> list[Point]:
    """Return the points of all studies in order, each once."""
    return list(dict.fromkeys(point for points in studies.values() for point in points))
