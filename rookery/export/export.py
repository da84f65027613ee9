"""Export the policy of a run: trace it, write the files, verify them, then move them in place."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from rookery.envs.factory import learning_wrappers, resolve_options
from rookery.errors import RookeryError, nearest, require
from rookery.export.formats import FORMATS, silenced
from rookery.export.step import (
    TRACED_BATCH,
    Interface,
    Step,
    described_options,
    described_port,
    described_space,
    interface_of,
    sample_inputs,
)
from rookery.export.verify import (
    OUTPUT_TOLERANCE,
    PlayRecording,
    batch_sizes,
    compare_with_recording,
    record,
)
from rookery.machine import versions
from rookery.runs.files import write_json, writing
from rookery.training.trained import EVALUATION_SEED, TrainedRun

LAYOUT = 1
"""Version of policy.json, increased when the meaning of a field changes."""
DESCRIPTION = "policy.json"


def export(run: TrainedRun, formats: Sequence[str], out: Path, envs: int) -> dict[str, Any]:
    """Write the run's greedy policy to the folder `out`; return the content of policy.json.

    The files are first compared with the live policy on `envs` environments. If they differ, or
    anything fails, `out` is not changed.
    """
    for name in formats:
        require(name in FORMATS, f'format: unknown format "{name}".{nearest(name, FORMATS)}')
        FORMATS[name].check()
    policy, settings = run.make_policy(greedy=True, seed=0), run.settings
    env = run.make_env(envs)
    try:
        step = Step(policy.algorithm, env)
        base, _ = learning_wrappers(env)
        recording = record(policy, env, EVALUATION_SEED)
    finally:
        env.close()
    interface = interface_of(step)
    with folder_beside(out) as beside:
        described = {
            "layout": LAYOUT,
            "run": run.name,
            "algorithm": settings.algorithm,
            "env_steps": run.saved.step,
            "environment": {
                "name": settings.environment,
                "observation": described_space(base.single_observation_space),
                "action": described_space(base.single_action_space),
                **described_options(resolve_options(settings.environment, settings.env)),
            },
            "versions": versions(),
            "inputs": [described_port(port) for port in interface.inputs],
            "outputs": [described_port(port) for port in interface.outputs],
            "verified": write_verified(step, interface, recording, formats, beside),
            "files": {name: FORMATS[name].file for name in formats},
        }
        write_json(beside / DESCRIPTION, described)
        with writing(out):
            replace_files(beside, out)
    return described


@contextmanager
def folder_beside(out: Path) -> Iterator[Path]:
    """Temporary folder beside `out`, removed afterwards, as are parents of `out` that are still
    empty."""
    above = [out.parent, *out.parent.parents]
    made = [folder for folder in above if not folder.exists()]
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent))
    try:
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


def write_verified(
    step: Step, interface: Interface, recording: PlayRecording, formats: Sequence[str], folder: Path
) -> dict[str, Any]:
    """Write every format and compare it with the recording; return the largest differences."""
    program = trace_step(step)
    sizes = batch_sizes(recording)
    differences = {}
    for name in formats:
        path = folder / FORMATS[name].file
        try:
            FORMATS[name].write(program, interface, path)
            run = FORMATS[name].load(path)
        except Exception as error:
            raise export_failure(f"format {name}", error) from error
        found = [compare_with_recording(run, interface, recording, batch) for batch in sizes]
        differences[name] = {key: max(part[key] for part in found) for key in found[0]}
    return {
        "env_steps": recording.reward.size,
        "batch_sizes": sizes,
        "tolerance": OUTPUT_TOLERANCE,
        "largest_differences": differences,
    }


@torch.no_grad()
def trace_step(step: Step) -> ExportedProgram:
    """Return the step as a graph for any batch size."""
    sample = sample_inputs(step, TRACED_BATCH)
    batch = Dim("batch", min=1, max=1 << 20)
    shapes = tuple(
        tuple({0: batch} for _ in part) if isinstance(part, tuple) else {0: batch}
        for part in sample
    )
    try:
        with silenced():
            return torch.export.export(step.eval(), sample, dynamic_shapes=shapes)
    except Exception as error:
        raise export_failure("the network", error) from error


def export_failure(what: str, error: Exception) -> RookeryError:
    """Return an exception of the exporters as a one-line error."""
    details = "".join(traceback.format_exception(error))
    reason = next(filter(None, map(str.strip, str(error).splitlines())), "no reason given")
    return RookeryError(
        f"export: {what} could not be exported: {type(error).__name__}: {reason}", details
    )


def replace_files(fresh: Path, out: Path) -> None:
    """Move the files of an export into `out`, replacing those of an earlier one.

    policy.json is removed first and written last, so that it never describes files of another
    export.
    """
    out.mkdir(exist_ok=True)
    known = [format.file for format in FORMATS.values()]
    for name in (DESCRIPTION, *known):
        (out / name).unlink(missing_ok=True)
    for name in (*known, DESCRIPTION):
        if (fresh / name).exists():
            os.replace(fresh / name, out / name)
