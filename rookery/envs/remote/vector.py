"""Served environments as a Gymnasium vector environment."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from rookery_server.spaces import at, nested

from rookery.envs.options import EnvOptions, RemoteOptions
from rookery.envs.remote.server import RemoteServer, ServerFull, ServerLost
from rookery.envs.spaces import Array
from rookery.envs.wrappers.episodes import Reset, Step
from rookery.errors import BadInput, RunFailed, require

ADDRESS = re.compile(r"tcp://(?:\[[0-9a-fA-F:.]+\]|[\w.\-]+):\d{1,5}")
SERVER_OPTIONS = ("frame_skip", "resize", "grey", "noops", "sticky", "time_limit", "kwargs")
"""Options that must be set on the server, because they change single environments."""
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
            if not count:
                break
            parameters = {
                "envs": count,
                "infos": list(self.infos),
                "render": self.render_mode is not None,
            }
            lanes = slice(first, first + count)
            first += count
            try:
                # One after the other: two clients that wait for room could block each other.
                log = self._notices.append
                self.servers.append(RemoteServer(address, self.options, parameters, lanes, log))
                self.servers[-1].receive_spaces()
            except (ServerLost, ServerFull) as error:
                raise BadInput(f"envs: the server {address} {error}") from error
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
        self._action_leaves = one.action_leaves

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Reset all environments; number i is seeded with `seed + i`, whichever server runs it."""
        for server in self.servers:
            server.reset(seed)
        for server in self.servers:
            server.receive_reset()
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
        return tuple(s.render(i) for s in self.servers for i in range(s.count))

    def close_extras(self, **kwargs: Any) -> None:
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


def even_shares(num_envs: int, servers: int) -> list[int]:
    """Return how many of the environments each server runs; the first ones may run one more."""
    return [num_envs // servers + (i < num_envs % servers) for i in range(servers)]


def make_served(
    name: str, options: EnvOptions, num_envs: int, render_mode: str | None
) -> ServedVectorEnv:
    """Return the environments at "tcp://host:port", or at several addresses with commas."""
    servers = [part.strip() for part in name.split(",")]
    for address in servers:
        if not ADDRESS.fullmatch(address) or int(address.rpartition(":")[2]) > 65_535:
            raise BadInput(
                f'envs: "{address}" is not an address: expected tcp://HOST:PORT, '
                "several separated by commas"
            )
    if len(set(servers)) < len(servers):
        raise BadInput(f'envs: "{name}" names a server twice: raise --envs of that server instead')
    for option in SERVER_OPTIONS:
        if getattr(options, option):
            raise BadInput(
                f'env.{option} cannot be set for "{name}": give it to the server, '
                "'rookery serve' or 'python -m rookery_server'"
            )
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
