"""Write the batch script of a job, and submit it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookery import __version__
from rookery.errors import BadInput, RookeryError, require
from rookery.slurm.job import Job

LEARNER_NODE = "learner"
"""The Ray resource that only the learner node of a heterogeneous job has."""
NOTES = {
    "ranks": "one actor and one learner in every rank",
    "ray": "a Ray cluster over all nodes",
    "hetero": "a Ray cluster of a head, rollout nodes and a learner node",
}

SBATCH_TIMEOUT_S = 60.0
"""Seconds that sbatch may take; it retries while Slurm does not answer."""

STRICT = """
# From here on a command that fails ends the job; module scripts would fail under this.
set -euo pipefail
"""

ASKED = """
# Slurm sends USR1 ahead of the time limit, and TERM when the job is cancelled or pre-empted.
asked=""
trap 'asked=USR1' USR1
trap 'asked=TERM' TERM

# On every exit: end what this script started.
training=""
clean_up() {{
    trap - EXIT
    if [[ -n $training ]]; then end_process "$training" TERM; fi
{clean_up}}}
trap clean_up EXIT

# end_process PID SIGNAL: signals a process, and kills it after 30 seconds.
end_process() {{
    kill "-$2" "$1" 2> /dev/null || return 0
    for _ in {{1..30}}; do
        kill -0 "$1" 2> /dev/null || return 0
        sleep 1 || true
    done
    kill -KILL "$1" 2> /dev/null || true
}}
"""

BEGIN = """
# Resume from the newest whole checkpoint if there is one, else start.
how=$("$python" -m rookery.slurm.start_or_resume "$run")
if [[ $how == resume ]]; then
    train=("$python" -m rookery train --resume "$run")
else
    train=("$python" -m rookery train {start})
fi
"""

WATCH = """
# A run that finds the file 'stop' in its folder saves a checkpoint and exits with status 130.
patience={patience}  # seconds that this may take
while kill -0 "$training" 2> /dev/null; do
    if [[ -n $asked ]]; then
        if (( patience-- == 0 )); then
            echo "the run did not stop in time; it is killed" >&2
            end_process "$training" TERM
        elif [[ -d $run ]]; then
            touch "$run/stop"
        else
            kill -TERM "$training" 2> /dev/null || true
        fi
    fi
    sleep 1 || true
done
status=0
wait "$training" || status=$?
training=""
rm -f "$run/stop"
clean_up
"""

REQUEUE = """
# Before the time limit, requeue the job: its next start resumes from the checkpoint. A run that
# failed by itself is not restarted.
if [[ $asked == USR1 ]] && (( status >= 128 )); then
    echo "the time limit is near: requeueing the job"
    scontrol requeue "$SLURM_JOB_ID" && exit 0
    echo "the job cannot be requeued; submit this script again to resume" >&2
fi
exit "$status"
"""

NO_REQUEUE = """
if [[ $asked == USR1 ]] && (( status >= 128 )); then
    echo "the time limit is near; submit this script again to resume" >&2
fi
exit "$status"
"""

RAY = """
# The steps that run Ray, the token file of the cluster, and the seconds it may take to start.
nodes=()
token="$run.$SLURM_JOB_ID.token"
ready_seconds={ready_seconds}
"""

CLUSTER = """
# Only who can read this file can join the cluster; the token is on no command line.
mkdir -p "$(dirname "$run")"
(umask 077 && "$python" -c 'import secrets; print(secrets.token_hex(32), end="")' > "$token")
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$token"

# This script runs on the first node, which is the head.
RAY_ADDRESS=$("$python" -m rookery.slurm.head_address)
export RAY_ADDRESS
"""

NODES = """\
    rm -f "$token"
    for node in "${nodes[@]}"; do kill -USR1 "$node" 2> /dev/null || true; done
    for node in "${nodes[@]}"; do end_process "$node" USR1; done
"""


@dataclass(frozen=True)
class Work:
    """The run that the job trains."""

    algorithm: str
    environment: str
    run: Path
    """The run's folder, the same on every node."""
    settings: Mapping[str, Any]
    """Settings of the run, as given on the command line."""
    presets: Mapping[str, Any]
    """Options of `rookery train` that select the preset of a new run."""


def implied_settings(job: Job, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the run that the kind of job determines."""
    backend = "ranks" if job.kind == "ranks" else "ray"
    given_backend = given.get("backend", backend)
    require(
        given_backend == backend,
        f"--backend {given_backend} cannot be used with --kind {job.kind}, which uses {backend}",
    )
    if job.kind == "ranks":
        # With --backend ranks a single task would start ranks itself.
        return {} if job.nodes * job.tasks == 1 else {"backend": backend}
    learner = {"ray.learner_resource": LEARNER_NODE} if job.kind == "hetero" else {}
    return {"backend": backend, **learner}


def batch_script(job: Job, work: Work) -> str:
    """Return the text of the batch script."""
    on_ray = job.kind != "ranks"
    settings = f"""\
# The run, and its settings.
run={shlex.quote(str(work.run))}
settings=({shell_options(work.settings)})
"""
    parts = [sbatch_header(job, work), software(job), STRICT, settings]
    parts += [RAY.format(ready_seconds=job.ready_seconds)] if on_ray else []
    parts += [ASKED.format(clean_up=NODES if on_ray else "")]
    parts += [CLUSTER, *ray_nodes(job)] if on_ray else []
    where = {"runs-dir": work.run.parent, "name": work.run.name}
    presets = {key.replace("_", "-"): value for key, value in work.presets.items()}
    names = shlex.join([work.algorithm, work.environment])
    parts += [BEGIN.format(start=f"{names} {shell_options({**where, **presets})}"), training(job)]
    parts += [WATCH.format(patience=job.signal_seconds * 3 // 4)]
    parts += [REQUEUE if job.requeue else NO_REQUEUE]
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def sbatch_header(job: Job, work: Work) -> str:
    """Return the first lines of the script: comments and the options of sbatch."""
    count = f"{job.ray_nodes} node{'s' if job.ray_nodes > 1 else ''}"
    name = work.run.name
    lines = [
        "#!/bin/bash",
        f"# {work.algorithm} on {work.environment}, {count}: {NOTES[job.kind]}.",
        f"# Written by 'rookery slurm' {__version__}."
        " Submit it with sbatch; again to resume the run.",
        "# All nodes must see the folder of the run, and Python, under the same paths.",
        "#",
        f"#SBATCH --job-name={job.job_name or quoted(name)}",
        f"#SBATCH --output={quoted(name.replace('%', '%%') + '-%j.log')}",
        "#SBATCH --open-mode=append",
        f"#SBATCH --signal=B:USR1@{job.signal_seconds}",
        "#SBATCH --requeue" if job.requeue else "#SBATCH --no-requeue",
    ]
    for number, options in enumerate(components(job)):
        lines += ["#SBATCH hetjob"] if number else []
        lines += [f"#SBATCH --{option}" for option in options]
    return "\n".join(lines)


def components(job: Job) -> Iterator[list[str]]:
    """Yield the options of each component; only a heterogeneous job has several."""
    shared = [
        f"{name}={value}" for name in ("account", "qos", "time") if (value := getattr(job, name))
    ]
    for option in job.sbatch:
        name, equals, value = option.partition("=")
        shared.append(f"{name}{equals}{quoted(value)}")
    gpus = job.gpus_per_node
    place = [f"partition={job.partition}"] if job.partition else []
    if job.kind == "hetero":
        yield [*node_options(1, 1, job.cpus_per_node, 0), *place, *shared]
        yield [*node_options(job.nodes, 1, job.cpus_per_node, 0), *place, *shared]
        place = [f"partition={job.learner_partition}"] if job.learner_partition else place
        yield [*node_options(1, 1, *learner_node(job)), *place, *shared]
    else:
        yield [*node_options(job.nodes, job.tasks, job.cpus_per_node, gpus), *place, *shared]


def node_options(nodes: int, tasks: int, cpus: int, gpus: int) -> list[str]:
    """Return the options for a number of nodes with tasks, CPUs and GPUs on each."""
    words = [f"nodes={nodes}", f"ntasks-per-node={tasks}", f"cpus-per-task={cpus // tasks}"]
    return [*words, f"gpus-per-node={gpus}"] if gpus else words


def learner_node(job: Job) -> tuple[int, int]:
    return (
        job.learner_cpus or job.cpus_per_node,
        1 if job.learner_gpus is None else job.learner_gpus,
    )


def quoted(value: str) -> str:
    """Return a value quoted as a line of sbatch's options needs it."""
    return f'"{value}"' if any(letter.isspace() or letter == "#" for letter in value) else value


def software(job: Job) -> str:
    """Return the lines that load modules and find Python."""
    lines = ["# The software."]
    if job.modules:
        lines.append(f"module load {' '.join(map(shlex.quote, job.modules))} || exit")
    if job.venv is not None:
        activate = shlex.quote(str(Path(job.venv, "bin", "activate")))
        lines += [f"source {activate} || exit", "python=$(command -v python)"]
    else:
        lines += [f"python={shlex.quote(sys.executable)}", 'PATH="$(dirname "$python"):$PATH"']
    return "\n".join(lines)


def shell_options(options: Mapping[str, Any]) -> str:
    """Return options quoted for the shell."""
    texts = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in options.items()}
    return " ".join(shlex.quote(f"--{key}={text}") for key, text in texts.items())


def training(job: Job) -> str:
    """Return the lines that start training in the background, so that signals are handled."""
    if job.kind != "ranks":
        return f"""\
# Train once all nodes have joined.
{{
    "$python" -m rookery.slurm.wait_for_cluster "$RAY_ADDRESS" {job.ray_nodes} "$ready_seconds" &&
    exec "${{train[@]}}" "${{settings[@]}}"
}} &
training=$!
"""
    # When a rank ends, srun kills the others, but leaves them time to save.
    launcher = f"srun --wait=30 --cpus-per-task={job.cpus_per_node // job.tasks}"
    if job.launcher == "mpirun":
        total = job.nodes * job.tasks
        launcher = f"mpirun -n {total} --map-by ppr:{job.tasks}:node --bind-to none"
    return f"""\
# This script runs on the first node, and so does rank 0: the others meet it at a free port there.
address=$("$python" -m rookery.slurm.head_address)
export MASTER_ADDR="${{address%:*}}" MASTER_PORT="${{address##*:}}"

{launcher} \\
    "${{train[@]}}" "${{settings[@]}}" &
training=$!
"""


def ray_nodes(job: Job) -> Iterator[str]:
    """Yield the lines that start the nodes of the Ray cluster, the head first."""
    cpus = job.cpus_per_node
    if job.kind == "hetero":
        yield ray_node("The head.", ["--het-group=0"], cpus, 0, ["--head"])
        yield ray_node("Rollout nodes.", ["--het-group=1"], cpus, 0, [])
        only = ["--resource", LEARNER_NODE]
        note = "The learner node: learners require a resource that only it has."
        yield ray_node(note, ["--het-group=2"], *learner_node(job), only)
        return
    first = ["--nodes=1", "--ntasks=1", '--nodelist="$SLURMD_NODENAME"']
    yield ray_node("The head.", first, cpus, job.gpus_per_node, ["--head"])
    if job.nodes > 1:
        rest = [f"--nodes={job.nodes - 1}", f"--ntasks={job.nodes - 1}"]
        rest += ['--exclude="$SLURMD_NODENAME"']
        yield ray_node("The other nodes.", rest, cpus, job.gpus_per_node, [])


def ray_node(note: str, where: Sequence[str], cpus: int, gpus: int, role: Sequence[str]) -> str:
    """Return the lines that start Ray on some of the nodes."""
    # A node that fails must not end the others.
    step = ["srun", *where, f"--cpus-per-task={cpus}", "--kill-on-bad-exit=0"]
    ray = ['"$python"', "-m", "rookery.slurm.ray_node", '"$RAY_ADDRESS"', *role]
    ray += ["--cpus", str(cpus), *(["--gpus", str(gpus)] if gpus else [])]
    ray += ["--seconds", '"$ready_seconds"']
    return f"# {note}\n{' '.join(step)} \\\n    {' '.join(ray)} &\nnodes+=($!)\n"


def submit(script: Path) -> str:
    """Submit the script and return the job's id; BadInput if sbatch rejects it."""
    command = ["sbatch", "--parsable", str(script)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SBATCH_TIMEOUT_S,
        )
    except FileNotFoundError:
        raise BadInput(
            f"--submit: sbatch not found; submit {script} where Slurm is installed"
        ) from None
    except subprocess.TimeoutExpired:
        raise RookeryError(
            f"--submit: Slurm did not answer sbatch within {SBATCH_TIMEOUT_S:.0f} s; {script} is"
            " written, use squeue to see whether it was submitted"
        ) from None
    if done.returncode:
        lines = [re.sub(r"^sbatch: (error: |fatal: )?", "", x) for x in done.stderr.splitlines()]
        reason = "; ".join(filter(None, map(str.strip, lines))) or "no reason given"
        raise BadInput(f"--submit: sbatch rejected {script}: {reason}")
    # With several clusters: "NUMBER;CLUSTER".
    return done.stdout.strip().splitlines()[-1].partition(";")[0]
