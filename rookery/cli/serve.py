"""rookery serve ENV"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field

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
    from rookery_server.serving import Place, run
    from rookery_server.sockets import describe_keys, make_keys

    try:
        if options.make_keys is not None:
            require(not names, "serve: --make-keys takes no environment")
            make_keys(options.make_keys)
            print(describe_keys(options.make_keys))
        else:
            require(len(names) == 1, "serve: expected one environment")
            place = Place(options.port, options.bind, options.keys, options.envs, options.silence)
            make = server_factory(names[0], options.env, options.threads)
            run(make, names[0], place, lambda line: print(f"rookery serve: {line}", flush=True))
    except Unusable as error:
        raise BadInput(f"serve: {error}") from error
    return 0
