"""rookery serve ENV"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rookery.envs import EnvOptions
from rookery.envs.factory import server_factory
from rookery.errors import BadInput, missing_extra, require
from rookery.fields import flags_of, from_dict, help_text, nest, parse_flags

USAGE = """rookery serve ENV [options]      serve an environment to agents in other processes
rookery serve --make-keys DIR    create the keys of a server and of a client
"""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of the command."""

    envs: int = 16
    """Largest number of environments at the same time, over all clients."""
    port: int = 5555
    """Port to listen on; 0: a free one."""
    bind: str = "127.0.0.1"
    """Address to listen on; any other than the loopback requires keys."""
    keys: str | None = None
    """Folder with the server's secret key and its clients' public keys."""
    make_keys: str | None = None
    """Create keys in this folder, and exit."""
    silence: float = 3600.0
    """Seconds without a request after which a client's environments are closed."""
    threads: int = 0
    """Threads of the environments' engine; 0: the engine decides."""
    env: EnvOptions = field(default_factory=EnvOptions)
    """The environments and their preprocessing."""


def main(args: Sequence[str]) -> int:
    """Serve until interrupted, or create keys."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(ServeOptions))
        return 0
    given, names = parse_flags(args, flags_of(ServeOptions))
    options = from_dict(ServeOptions, nest(given))
    if importlib.util.find_spec("zmq") is None or importlib.util.find_spec("msgpack") is None:
        raise missing_extra("serve", "remote")
    from rookery_server.errors import Unusable

    try:
        if options.make_keys is not None:
            require(not names, "serve: --make-keys takes no environment")
            print_new_keys(options.make_keys)
        else:
            require(len(names) == 1, "serve: expected one environment")
            serve_env(names[0], options)
    except Unusable as error:
        raise BadInput(f"serve: {error}") from error
    return 0


def serve_env(name: str, options: ServeOptions) -> None:
    """Serve environments until interrupted or terminated."""
    from rookery_server.serving import Place, run

    place = Place(options.port, options.bind, options.keys, options.envs, options.silence)
    run(server_factory(name, options.env, options.threads), name, place, print_line)


def print_new_keys(folder: str) -> None:
    """Create keys, and print which file belongs where."""
    from rookery_server.sockets import describe_keys, make_keys

    make_keys(folder)
    print(describe_keys(folder))


def print_line(line: Any) -> None:
    """Print a line on standard output and flush it."""
    print(f"rookery serve: {line}", flush=True)
