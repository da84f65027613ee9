"""Served environments as a Gymnasium vector environment."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from rookery_server.spaces import leaves, nested

from rookery.envs.options import EnvOptions, RemoteOptions
from rookery.envs.remote.naming import addresses, even_shares, refuse_inner_options
from rookery.envs.remote.server import Station
from rookery.envs.remote.session import Link, Lost, NoRoom
from rookery.envs.spaces import at
from rookery.envs.wrappers.episodes import Reset, Step
from rookery.envs.wrappers.moments import Array
from rookery.errors import BadInput, EnvironmentFailure, require

LOOK_S = 0.02
"""How often one looks for servers when all are away."""


class Served(VectorEnv[Any, Any, Any]):
    """Environments of one or several servers, whose replies are awaited together.

    A server that does not answer is reported in `info["notices"]` (a list of lines), and the
    others go on. Its lanes report `truncated`, with the last observation and reward 0, at every
    step until it is back; then comes the reset row. `info["lost"]` [B] says which lanes were
    away: nothing happened there. When all have been away for `env.remote.away_s`, `step` raises.

    Observations may be overwritten by the next step.
    """

    engine = "served"

    def __init__(
        self,
        servers: Sequence[str],
        num_envs: int,
        options: RemoteOptions,
        infos: Sequence[str] = (),
        render_mode: str | None = None,
    ):
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.options = options
        self.infos = tuple(infos)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": ["rgb_array"]}
        self._notices: list[str] = []
        self.stations: list[Station] = []
        try:
            self._begin(servers)
        except BaseException:
            self.close()
            raise

    def _begin(self, servers: Sequence[str]) -> None:
        first = 0
        for address, count in zip(servers, even_shares(self.num_envs, len(servers)), strict=True):
            if count:
                wishes = {
                    "envs": count,
                    "infos": list(self.infos),
                    "render": self.render_mode is not None,
                }
                link = Link(address, self.options, wishes)
                self.stations.append(
                    Station(link, slice(first, first + count), self._notices.append)
                )
                first += count
        for station in self.stations:
            try:
                station.begin()
            except (Lost, NoRoom) as error:
                raise BadInput(f"envs: the server {station.link.address} {error}") from error
        one = self.stations[0]
        for other in self.stations[1:]:
            require(
                other.plain == one.plain
                and other.observation_space == one.observation_space
                and other.action_space == one.action_space,
                f"envs: the servers {one.link.address} and {other.link.address} have different "
                f"spaces: {one.observation_space} and {other.observation_space}",
            )
        self.served = one.name
        self.single_observation_space = one.observation_space
        self.single_action_space = one.action_space
        self.observation_space = batch_space(one.observation_space, self.num_envs)
        self.action_space = batch_space(one.action_space, self.num_envs)
        self._plain = one.plain[0]
        self._acts = leaves(one.plain[1])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Begin all lanes anew; lane i from `seed + i`, whichever server runs it."""
        seeds = [None if seed is None else seed + s.lanes.start for s in self.stations]
        for station, own in zip(self.stations, seeds, strict=True):
            station.reset(own)
        for station, own in zip(self.stations, seeds, strict=True):
            station.has_reset(own)
        return self._observations(), self._info()

    def step(self, actions: Any) -> Step:
        """One step of all lanes: every server has its actions before any reply is awaited."""
        if self._all_away():
            self._wait_for_one()
        batches = [
            np.ascontiguousarray(at(actions, leaf.path), leaf.dtype).reshape(
                (self.num_envs, *leaf.shape)
            )
            for leaf in self._acts
        ]
        for station in self.stations:
            station.step([batch[station.lanes] for batch in batches])
        rows = [station.rows() for station in self.stations]
        info = self._info()
        if any(row.lost for row in rows):
            info["lost"] = joined([np.full(len(row.reward), row.lost) for row in rows])
        return (
            self._observations(),
            joined([row.reward for row in rows]),
            joined([row.terminated for row in rows]),
            joined([row.truncated for row in rows]),
            info,
        )

    def render(self) -> tuple[Any, ...]:
        """One picture a lane."""
        return tuple(s.render(i) for s in self.stations for i in range(s.count))

    def close_extras(self, **kwargs: Any) -> None:
        """End the sessions."""
        for station in self.stations:
            station.link.close()

    def _observations(self) -> Any:
        columns = zip(*(station.obs for station in self.stations), strict=True)
        return nested(self._plain, (joined(list(parts)) for parts in columns))

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {}
        for i, name in enumerate(self.infos):
            values = joined([station.infos[i] for station in self.stations])
            known = ~np.isnan(values)
            if known.any():
                info[name], info[f"_{name}"] = np.where(known, values, 0), known
        if self._notices:
            info["notices"] = list(self._notices)
            self._notices.clear()
        return info

    def _wait_for_one(self) -> None:
        """Return when a server is back, or raise."""
        names = ", ".join(station.link.address for station in self.stations)
        limit = self.options.away_s
        print(f"waiting up to {limit:g} s for {names}", file=sys.stderr, flush=True)
        deadline = time.monotonic() + limit
        while self._all_away():
            if time.monotonic() > deadline:
                raise EnvironmentFailure(
                    f"failed: no server has been there for {limit:g} s (env.remote.away_s): {names}"
                )
            time.sleep(LOOK_S)
            for station in self.stations:
                if station.away_since is not None:
                    station.look()

    def _all_away(self) -> bool:
        return all(station.away_since is not None for station in self.stations)


def joined(parts: list[Array]) -> Array:
    """The lanes of all servers; those of one alone are not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def make_served(name: str, options: EnvOptions, num_envs: int, render_mode: str | None) -> Served:
    """The environments behind "tcp://host:port" or several such addresses."""
    servers = addresses(name)
    refuse_inner_options(name, options)
    require(
        render_mode in (None, "rgb_array"),
        f'render: "{name}" can be drawn as rgb_array only, not as {render_mode!r}',
    )
    require(
        not options.action_mask,
        f"env.action_mask cannot reach inside \"{name}\": give it to 'rookery serve', or have the"
        ' environment observe a Dict with a part "action_mask"',
    )
    infos = ("lives",) if options.one_life else ()
    return Served(servers, num_envs, options.remote, infos, render_mode)
