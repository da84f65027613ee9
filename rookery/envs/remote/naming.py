"""Names of served environments, "tcp://HOST:PORT", and the options that they accept."""

from __future__ import annotations

import importlib.util
import re

from rookery.envs.options import EnvOptions
from rookery.errors import BadInput, missing_extra

TCP_PREFIX = "tcp://"
ADDRESS = re.compile(r"tcp://(?:\[[0-9a-fA-F:.]+\]|[\w.\-]+):\d{1,5}")
SERVER_OPTIONS = ("frame_skip", "resize", "grey", "noops", "sticky", "time_limit", "kwargs")
"""Options that must be set on the server, because they change single environments."""


def is_served(name: str) -> bool:
    """True if a name is the address of a server."""
    return name.startswith(TCP_PREFIX)


def addresses(name: str) -> list[str]:
    """Return the addresses in a name."""
    found = [part.strip() for part in name.split(",")]
    for address in found:
        if not ADDRESS.fullmatch(address) or int(address.rpartition(":")[2]) > 65_535:
            raise BadInput(
                f'envs: "{address}" is not an address: expected tcp://HOST:PORT, '
                "several separated by commas"
            )
    if len(set(found)) < len(found):
        raise BadInput(f'envs: "{name}" names a server twice: raise --envs of that server instead')
    if importlib.util.find_spec("zmq") is None or importlib.util.find_spec("msgpack") is None:
        raise missing_extra(f'envs: "{name}"', "remote")
    return found


def refuse_inner_options(name: str, options: EnvOptions) -> None:
    """Raise if an option is set that only the server can apply."""
    for option in SERVER_OPTIONS:
        if getattr(options, option):
            raise BadInput(
                f'env.{option} cannot be set for "{name}": give it to the server, '
                "'rookery serve' or 'python -m rookery_server'"
            )


def turned(name: str, first: int) -> str:
    """Return the name with its addresses rotated, for the actor whose first environment is number
    `first` of all actors'.

    Without that, actors with fewer environments than there are servers would all use the first
    servers. Names that are no addresses are returned as they are.
    """
    if not is_served(name):
        return name
    found = name.split(",")
    at = first % len(found)
    return ",".join(found[at:] + found[:at])


def even_shares(num_envs: int, servers: int) -> list[int]:
    """Return how many of the environments each server runs; the first ones may run one more."""
    return [num_envs // servers + (i < num_envs % servers) for i in range(servers)]
