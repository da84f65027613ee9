"""rookery serve ENV"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rookery.envs import EnvOptions
from rookery.envs.remote.serving import maker
from rookery.errors import BadInput, missing_extra, require
from rookery.fields import flags_of, from_dict, help_text, nest, parse_flags

USAGE = """rookery serve ENV [options]      let agents in other processes play an environment
rookery serve --make-keys DIR    make the keys of a server and of a client
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command."""

    envs: int = 16
    """Most environments at a time, over all clients."""
    port: int = 5555
    """Port to listen on; 0: a free one."""
    bind: str = "127.0.0.1"
    """Address to listen on; any but the loopback needs keys."""
    keys: str | None = None
    """Folder with the server's secret key and its clients' public keys."""
    make_keys: str | None = None
    """Make keys in this folder, and end."""
    silence: float = 3600.0
    """Seconds without a request after which a client's environments are given away."""
    threads: int = 0
    """Threads of the environments' engine; 0: its choice."""
    env: EnvOptions = field(default_factory=EnvOptions)
    """The environments and their preprocessing."""


def main(args: Sequence[str]) -> int:
    """Serve until interrupted, or make keys."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(Options))
        return 0
    given, names = parse_flags(args, flags_of(Options))
    options = from_dict(Options, nest(given))
    if importlib.util.find_spec("zmq") is None or importlib.util.find_spec("msgpack") is None:
        raise missing_extra("serve", "remote")
    from rookery_server.errors import Unusable

    try:
        if options.make_keys is not None:
            require(not names, "serve: --make-keys takes no environment")
            make(options.make_keys)
        else:
            require(len(names) == 1, "serve: name one environment")
            serve(names[0], options)
    except Unusable as error:
        raise BadInput(f"serve: {error}") from error
    return 0


def serve(name: str, options: Options) -> None:
    """Serve environments until interrupted or terminated."""
    from rookery_server.serving import Place, run

    place = Place(options.port, options.bind, options.keys, options.envs, options.silence)
    run(maker(name, options.env, options.threads), name, place, tell)


def make(folder: str) -> None:
    """Make keys, and say where they belong."""
    from rookery_server.keys import describe_keys, make_keys

    make_keys(folder)
    print(describe_keys(folder))


def tell(line: Any) -> None:
    """A line on standard output, at once."""
    print(f"rookery serve: {line}", flush=True)
