"""A real Slurm of three nodes on this machine's loopback, for as long as the tests run."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from rookery.backends.ranks.launch import MPI_AS_ROOT
from rookery.processes import descendants, is_alive, set_subreaper

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo", "scontrol")
NODES = {"n1": "127.0.0.11", "n2": "127.0.0.12", "n3": "127.0.0.13"}
"""Nodes and their addresses; the names mean something to Slurm alone."""
GPU_NODE = "n3"
"""The node that Slurm takes to have a GPU, and gives to other jobs last."""
LAUNCHERS = ("SLURM_", "OMPI_", "PMI", "MASTER_")
ROLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")

CONF = """\
ClusterName=rookery
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=2,sched_interval=2
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=5
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Cluster:
    """A running Slurm; its commands need `env`."""

    nodes = NODES

    def __init__(self, folder: Path):
        self.folder = folder
        outside = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(LAUNCHERS) and name not in ROLES
        }
        paths = [outside.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"]
        self.env = outside | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": os.pathsep.join(paths),
            **MPI_AS_ROOT,
        }
        self.daemons: list[subprocess.Popen] = []

    def run(self, *command: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """A command to its end, with what it printed."""
        return subprocess.run(
            [str(word) for word in command],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def start(self) -> None:
        """Bring up munged, the controller and the nodes; return when all nodes are idle."""
        folder = self.folder
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        (folder / "state").mkdir()
        host = socket.gethostname().partition(".")[0]
        port, *ports = free_ports(1 + len(NODES))
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr={address} Port={own} CPUs=4"
            + (" Gres=gpu:1 Weight=9" if name == GPU_NODE else "")
            for (name, address), own in zip(NODES.items(), ports, strict=True)
        ]
        conf = CONF.format(
            host=host, port=port, user=getpass.getuser(), folder=folder, nodes="\n".join(nodes)
        )
        (folder / "slurm.conf").write_text(conf)
        (folder / "gres.conf").write_text(f"NodeName={GPU_NODE} Name=gpu File=/dev/null\n")
        # Forced, as munged would have the folders around its socket open to all users.
        self.daemon(
            "munged",
            "--foreground",
            "--force",
            "--num-threads=1",
            f"--key-file={key}",
            f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid",
            f"--seed-file={folder}/munge.seed",
        )
        self.until((folder / "munge.socket").exists, "munged listens")
        self.daemon("slurmctld", "-D")
        for name in NODES:
            self.daemon("slurmd", "-D", "-N", name)
        self.until(lambda: self.states() == ["idle"] * len(NODES), "all nodes are idle")

    def daemon(self, program: str, *options: str) -> None:
        """Start a program that stays; what it says goes to a file in the folder."""
        with (self.folder / f"{program}{len(self.daemons)}.log").open("w") as log:
            process = subprocess.Popen(
                [shutil.which(program, path=self.env["PATH"]) or program, *options],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: set_subreaper(True),
            )
        self.daemons.append(process)

    def states(self) -> list[str]:
        """The state of every node."""
        return self.run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()

    def until(self, happened: Callable[[], bool], what: str, seconds: float = 30) -> None:
        """Wait for something to happen; the daemons' last words if it does not."""
        deadline = time.monotonic() + seconds
        while not happened():
            ended = [process.args for process in self.daemons if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = [path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log"))]
                raise TimeoutError(f"not so: {what}; ended: {ended}\n" + "\n".join(logs))
            time.sleep(0.1)

    def stop(self) -> None:
        """End the jobs, then whatever they left, then the daemons."""
        if len(self.daemons) > 1 and self.daemons[1].poll() is None:
            self.run("scancel", "--state=PENDING")
            self.run("scancel", "--state=RUNNING")
            wait_for(lambda: not self.run("squeue", "--noheader").stdout, 10)
        wait_for(lambda: not self.processes(), 5)
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        for process in reversed(self.daemons):
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def job(self, number: str) -> dict[str, str]:
        """What Slurm tells of a job, or of the first component of a heterogeneous one."""
        told = self.run("scontrol", "--oneliner", "show", "job", number).stdout.splitlines()[0]
        return dict(word.split("=", 1) for word in told.split() if "=" in word)

    def processes(self) -> dict[int, str]:
        """Every process of the jobs, with its command: the nodes' daemons adopt their orphans."""
        found = {}
        for daemon in self.daemons[2:]:
            for process in descendants(daemon.pid):
                with suppress(psutil.NoSuchProcess):
                    if is_alive(process):
                        found[process.pid] = " ".join(process.cmdline())
        return found

    def remaining(self, seconds: float) -> dict[int, str]:
        """What of the jobs is still there after some seconds."""
        wait_for(lambda: not self.processes(), seconds)
        return self.processes()


def wait_for(happened: Callable[[], bool], seconds: float) -> bool:
    """Whether something happens in time."""
    deadline = time.monotonic() + seconds
    while not (done := happened()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return done


def free_ports(count: int) -> list[int]:
    """Different ports on which nothing listens now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in probes]


@pytest.fixture(scope="package")
def slurm() -> Iterator[Cluster]:
    """Three nodes, n1 to n3; skipped where Slurm is not installed."""
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as folder:
        cluster = Cluster(Path(folder))
        missing = [p for p in PROGRAMS if shutil.which(p, path=cluster.env["PATH"]) is None]
        if missing:
            pytest.skip(
                f"{', '.join(missing)} not found; apt-get install slurm-wlm munge brings a Slurm"
            )
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
