"""The points of a study: how many actors, with how many environments each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from rookery.errors import BadInput, require

Mode = Literal["weak", "strong", "both"]


class Point(NamedTuple):
    """A number of actors, and the environments that each of them has."""

    actors: int
    envs: int

    @property
    def label(self) -> str:
        """ACTORS-ENVS, with the environments of each actor."""
        return f"{self.actors}-{self.envs}"

    def doubled(self, study: str) -> Point | None:
        """Twice the actors: as many environments each, or on a strong study as many in all."""
        if study == "weak":
            return Point(2 * self.actors, self.envs)
        return None if self.envs % 2 else Point(2 * self.actors, self.envs // 2)


def parse_points(text: str) -> list[Point]:
    """The points of "1-8,2-8,4-8"."""
    points = [parse_point(word.strip()) for word in text.split(",")]
    twice = [point.label for at, point in enumerate(points) if point in points[:at]]
    require(not twice, f"points: {', '.join(twice)} stands twice in {text}; name each point once")
    return points


def parse_point(word: str) -> Point:
    """The point of "2-8"."""
    match = re.fullmatch(r"(\d+)-(\d+)", word)
    if match is None or not all(int(number) for number in match.groups()):
        raise BadInput(f'points: expected ACTORS-ENVS,... such as 1-8,2-8,4-8, got "{word}"')
    return Point(int(match[1]), int(match[2]))


def plan_studies(points: list[Point], mode: Mode) -> dict[str, list[Point]]:
    """The points that each study runs. ENVS is every actor's number on a weak study, and the
    number of all actors together, to be shared out, on a strong one."""
    studies = {}
    if mode in ("weak", "both"):
        studies["weak"] = points
    if mode in ("strong", "both"):
        studies["strong"] = share_out(points)
    return studies


def share_out(points: list[Point]) -> list[Point]:
    """Points whose environments are those of all actors, as points of environments each."""
    totals = sorted({point.envs for point in points})
    require(
        len(totals) == 1,
        f"points: a strong study has the same number of environments at every point, got"
        f" {', '.join(map(str, totals))}",
    )
    for actors, total in points:
        require(
            total % actors == 0,
            f"points: {actors}-{total} cannot share {total} environments evenly among {actors}"
            " actors; on a strong study the second number is of all actors together",
        )
    return [Point(actors, total // actors) for actors, total in points]


def every_point(studies: dict[str, list[Point]]) -> list[Point]:
    """The points of all studies, each once, in their order."""
    return unique(point for points in studies.values() for point in points)


def unique(points: Iterable[Point]) -> list[Point]:
    """Without repetitions, the first of each kept."""
    return list(dict.fromkeys(points))
