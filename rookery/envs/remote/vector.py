"""Served environments as a Gymnasium vector environment."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from rookery_server.spaces import at, leaves, nested

from rookery.envs.options import EnvOptions, RemoteOptions
from rookery.envs.remote.naming import addresses, even_shares, refuse_inner_options
from rookery.envs.remote.server import RemoteServer
from rookery.envs.remote.session import RemoteSession, ServerFull, ServerLost
from rookery.envs.wrappers.episodes import Reset, Step
from rookery.envs.wrappers.moments import Array
from rookery.errors import BadInput, RunFailed, require

POLL_S = 0.02
"""Pause between checks for servers while all of them are away."""


class ServedVectorEnv(VectorEnv[Any, Any, Any]):
    """Environments that one or several servers run, stepped at the same time.

    A server that does not answer is reported in `info["notices"]` (a list of lines), and the
    others go on. Its environments report `truncated`, with the last observation and reward 0, at
    every step until it is back; then comes the reset row. `info["lost"]` [B] is True for
    environments whose server was away: nothing happened there. When all servers have been away for
    `env.remote.away_s`, `step` raises.

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
        self.servers: list[RemoteServer] = []
        try:
            self._connect(servers)
        except BaseException:
            self.close()
            raise

    def _connect(self, servers: Sequence[str]) -> None:
        first = 0
        for address, count in zip(servers, even_shares(self.num_envs, len(servers)), strict=True):
            if count:
                parameters = {
                    "envs": count,
                    "infos": list(self.infos),
                    "render": self.render_mode is not None,
                }
                session = RemoteSession(address, self.options, parameters)
                lanes = slice(first, first + count)
                self.servers.append(RemoteServer(session, lanes, self._notices.append))
                first += count
        for server in self.servers:
            try:
                server.begin()
            except (ServerLost, ServerFull) as error:
                raise BadInput(f"envs: the server {server.session.address} {error}") from error
        one = self.servers[0]
        for other in self.servers[1:]:
            require(
                other.space_descriptions == one.space_descriptions
                and other.observation_space == one.observation_space
                and other.action_space == one.action_space,
                f"envs: the servers {one.session.address} and {other.session.address} have "
                f"different spaces: {one.observation_space} and {other.observation_space}",
            )
        self.served = one.name
        self.single_observation_space = one.observation_space
        self.single_action_space = one.action_space
        self.observation_space = batch_space(one.observation_space, self.num_envs)
        self.action_space = batch_space(one.action_space, self.num_envs)
        self._obs_description = one.space_descriptions[0]
        self._action_leaves = leaves(one.space_descriptions[1])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Reset all environments; number i is seeded with `seed + i`, whichever server runs it."""
        seeds = [None if seed is None else seed + s.lanes.start for s in self.servers]
        for server, server_seed in zip(self.servers, seeds, strict=True):
            server.reset(server_seed)
        for server, server_seed in zip(self.servers, seeds, strict=True):
            server.receive_reset(server_seed)
        return self._observations(), self._info()

    def step(self, actions: Any) -> Step:
        """Step all environments: every server gets its actions before any reply is awaited."""
        if self._all_servers_away():
            self._wait_for_a_server()
        batches = [
            np.ascontiguousarray(at(actions, leaf.path), leaf.dtype).reshape(
                (self.num_envs, *leaf.shape)
            )
            for leaf in self._action_leaves
        ]
        for server in self.servers:
            server.step([batch[server.lanes] for batch in batches])
        rows = [server.receive_rows() for server in self.servers]
        info = self._info()
        if any(row.lost for row in rows):
            info["lost"] = concatenated([np.full(len(row.reward), row.lost) for row in rows])
        return (
            self._observations(),
            concatenated([row.reward for row in rows]),
            concatenated([row.terminated for row in rows]),
            concatenated([row.truncated for row in rows]),
            info,
        )

    def render(self) -> tuple[Any, ...]:
        """Return one picture of each environment."""
        return tuple(s.render(i) for s in self.servers for i in range(s.count))

    def close_extras(self, **kwargs: Any) -> None:
        """End the sessions."""
        for server in self.servers:
            server.session.close()

    def _observations(self) -> Any:
        columns = zip(*(server.obs for server in self.servers), strict=True)
        return nested(self._obs_description, (concatenated(list(parts)) for parts in columns))

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {}
        for i, name in enumerate(self.infos):
            values = concatenated([server.infos[i] for server in self.servers])
            known = ~np.isnan(values)
            if known.any():
                info[name], info[f"_{name}"] = np.where(known, values, 0), known
        if self._notices:
            info["notices"] = list(self._notices)
            self._notices.clear()
        return info

    def _wait_for_a_server(self) -> None:
        """Wait until a server is back; raise after `env.remote.away_s`."""
        names = ", ".join(server.session.address for server in self.servers)
        limit = self.options.away_s
        print(f"waiting up to {limit:g} s for {names}", file=sys.stderr, flush=True)
        deadline = time.monotonic() + limit
        while self._all_servers_away():
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"failed: no server could be reached for {limit:g} s (env.remote.away_s): "
                    f"{names}"
                )
            time.sleep(POLL_S)
            for server in self.servers:
                if server.away_since is not None:
                    server.try_to_return()

    def _all_servers_away(self) -> bool:
        return all(server.away_since is not None for server in self.servers)


def concatenated(parts: list[Array]) -> Array:
    """Return the concatenated arrays of all servers; the array of a single server is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def make_served(
    name: str, options: EnvOptions, num_envs: int, render_mode: str | None
) -> ServedVectorEnv:
    """Return the environments at "tcp://host:port", or at several addresses with commas."""
    servers = addresses(name)
    refuse_inner_options(name, options)
    require(
        render_mode in (None, "rgb_array"),
        f'render: "{name}" can only be rendered as rgb_array, not as {render_mode!r}',
    )
    require(
        not options.action_mask,
        f"env.action_mask cannot be set for \"{name}\": give it to 'rookery serve', or use an"
        ' environment whose observation is a Dict with a part "action_mask"',
    )
    infos = ("lives",) if options.one_life else ()
    return ServedVectorEnv(servers, num_envs, options.remote, infos, render_mode)
