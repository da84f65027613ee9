"""Names of served environments, and what may be asked of them."""

from __future__ import annotations

import importlib.util
import re

from rookery.envs.options import EnvOptions
from rookery.errors import BadInput, missing_extra

PREFIX = "tcp://"
ADDRESS = re.compile(r"tcp://(?:\[[0-9a-fA-F:.]+\]|[\w.\-]+):\d{1,5}")
SERVERS_OWN = ("frame_skip", "resize", "grey", "noops", "sticky", "time_limit", "kwargs")
"""Options that would have to reach inside a served environment."""


def is_served(name: str) -> bool:
    """Whether a name stands for environments behind sockets."""
    return name.startswith(PREFIX)


def addresses(name: str) -> list[str]:
    """The addresses in a name, each once."""
    found = [part.strip() for part in name.split(",")]
    for address in found:
        if not ADDRESS.fullmatch(address) or int(address.rpartition(":")[2]) > 65_535:
            raise BadInput(
                f'envs: "{address}" is not an address: write tcp://HOST:PORT, several with commas'
            )
    if len(set(found)) < len(found):
        raise BadInput(f'envs: "{name}" names a server twice: raise its --envs instead')
    if importlib.util.find_spec("zmq") is None or importlib.util.find_spec("msgpack") is None:
        raise missing_extra(f'envs: "{name}"', "remote")
    return found


def refuse_inner_options(name: str, options: EnvOptions) -> None:
    """What preprocesses single environments is the server's work, before anything is sent."""
    for option in SERVERS_OWN:
        if getattr(options, option):
            raise BadInput(
                f'env.{option} cannot reach inside "{name}": give it to the server, '
                "'rookery serve' or 'python -m rookery_server'"
            )


def turned(name: str, first: int) -> str:
    """The name for an actor whose environments begin with number `first` of all actors': its
    addresses begin where that one belongs, so that actors with fewer environments than there
    are servers do not all go to the same ones."""
    if not is_served(name):
        return name
    found = name.split(",")
    at = first % len(found)
    return ",".join(found[at:] + found[:at])


def even_shares(lanes: int, servers: int) -> list[int]:
    """How many of the lanes each server runs; the first ones have one more."""
    return [lanes // servers + (i < lanes % servers) for i in range(servers)]
