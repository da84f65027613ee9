"""Train an algorithm on the probe environments and ask it for their answers."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from rookery.backends.factory import make_algorithm, spaces_of
from rookery.config import RunConfig, apply_layers, default_config, named_preset, presets
from rookery.data.tree import to_tensors
from rookery.diagnostics.probes import (
    PROBES,
    Answer,
    Figure,
    Probe,
    Question,
    can_answer,
    figures,
    passes,
    worst,
)
from rookery.envs import EnvOptions, make_env
from rookery.errors import BadInput, RookeryError, require
from rookery.learning.policy import Policy, on_return_scale
from rookery.processes import rank_place
from rookery.runs.callbacks import Callback
from rookery.training.start import new_run, start

PROBE_PRESET = "Probes"
"""Name of the preset of an algorithm for probes."""
PROBE_SETTINGS = {
    "env_steps": 20_000,
    "checkpoint_steps": 10**9,
    "keep_checkpoints": 1,
    "random_baseline": False,
    "diagnose": 0,
    "traps": {"level": "off"},
}
"""Settings of every probe run unless given."""
PROBE_GAMMA = 0.8
"""The discount unless given: a missing one then shows after a step."""
HARMLESS = {"normalize_obs", "clip_reward", "check_bounds", "reward_gamma", "remote"}
"""Settings of the environment that leave the answers of probes as they are."""


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Result of a probe."""

    probe: Probe
    status: Literal["passed", "failed", "skipped"]
    seconds: float = 0.0
    found: Figure | None = None
    """The figure farthest from what is expected."""
    reason: str = ""
    """Why the probe was skipped, or why its run failed."""

    def to_dict(self) -> dict[str, Any]:
        """Return what a JSON report says."""
        probe, found = self.probe, self.found
        values: dict[str, Any] = {
            "probe": probe.number,
            "environment": probe.environment,
            "title": probe.title,
            "status": self.status,
            "seconds": self.seconds,
        }
        if found is not None:
            values |= {"what": found.what, "figure": found.figure, "expected": found.expected}
        if self.reason:
            values["reason"] = self.reason
        if self.status == "failed":
            values |= {"means": probe.means, "look": probe.look}
        return values


def run_probes(
    algorithm: str,
    overrides: Mapping[str, Any],
    *,
    numbers: Sequence[int] = (),
    preset: str | None = None,
    use_preset: bool = True,
    runs_dir: str | Path | None = None,
    callbacks: Sequence[Callback | str] = (),
) -> Iterator[ProbeResult]:
    """Yield the result of every probe, or of those with the given numbers, as it comes.

    Settings are, each of these overriding the ones before: the algorithm's defaults, those of a
    probe run, the algorithm's preset `Probes`, the preset named `preset`, and `overrides`. Runs are
    kept in `runs_dir` if it is given. Raises BadInput before the first result if the settings are
    not valid.
    """
    where = rank_place()
    require(
        where is None or where.world == 1,
        "doctor: start it without mpirun, torchrun or srun; --backend ranks starts ranks itself",
    )
    for number in numbers:
        require(1 <= number <= len(PROBES), f"probes: expected numbers from 1 to 9, got {number}")
    config = probe_config(algorithm, overrides, preset, use_preset)
    # Settings that are wrong for every environment are found here; then only spaces can be wrong.
    untrained_policy(config)
    with tempfile.TemporaryDirectory() as scratch:
        for probe in PROBES:
            if not numbers or probe.number in numbers:
                own = replace(config, environment=probe.environment)
                yield run_probe(probe, own, runs_dir or scratch, callbacks)


def probe_config(
    algorithm: str,
    overrides: Mapping[str, Any],
    preset: str | None = None,
    use_preset: bool = True,
) -> RunConfig:
    """Return the config of the first probe's run; the others differ in the environment."""
    environment = PROBES[0].environment
    base = default_config(algorithm, environment)
    layers: dict[str, Mapping[str, Any]] = {"steps": PROBE_SETTINGS}
    if use_preset:
        discounts = hasattr(base.algo, "gamma")
        layers |= {"gamma": {"algo": {"gamma": PROBE_GAMMA}} if discounts else {}}
        layers |= {PROBE_PRESET: presets(algorithm).get(PROBE_PRESET, {})}
    if preset is not None:
        layers |= {preset: named_preset(algorithm, environment, preset)}
    config = apply_layers(base, layers | {"options": overrides})
    plain = EnvOptions()
    for name in (field.name for field in fields(EnvOptions) if field.name not in HARMLESS):
        given, default = getattr(config.env, name), getattr(plain, name)
        require(
            given == default,
            f"env.{name}={given} would change the answers of probes; leave it at {default}",
        )
    return config


def run_probe(
    probe: Probe, config: RunConfig, runs_dir: str | Path, callbacks: Sequence[Callback | str]
) -> ProbeResult:
    """Train on a probe, unless the algorithm cannot be asked, and check its answers."""
    started = time.monotonic()
    gamma = getattr(config.algo, "gamma", 1.0)
    questions = probe.questions(gamma)
    reason = why_skipped(probe, config, questions[0])
    if reason:
        return ProbeResult(probe=probe, status="skipped", reason=reason)
    try:
        with open(os.devnull, "w") as console:
            run = start(
                config, new_run(config, runs_dir, None), console=console, callbacks=callbacks
            )
        if (run.result or {}).get("status") == "interrupted":
            raise KeyboardInterrupt
        policy = run.policy
    except BadInput:
        raise
    except RookeryError as error:
        seconds = time.monotonic() - started
        return ProbeResult(probe=probe, status="failed", seconds=seconds, reason=str(error))
    found = worst([f for q in questions for f in figures(probe.needs, q, ask(policy, q))])
    return ProbeResult(
        probe=probe,
        status="passed" if passes(found) else "failed",
        seconds=time.monotonic() - started,
        found=found,
    )


def why_skipped(probe: Probe, config: RunConfig, question: Question) -> str:
    """Return why the algorithm cannot be asked, or ''."""
    try:
        policy = untrained_policy(config)
    except BadInput as error:
        if probe.needs != "continuous":
            raise
        return str(error).removeprefix("algorithm: ")
    if probe.needs == "memory" and not len(policy.algorithm.initial_state(1)):
        return f"{config.algorithm} has no recurrent state with net.core={config.net.core}"
    if not can_answer(probe.needs, ask(policy, question)):
        return f"{config.algorithm} computes no value with these settings"
    return ""


def untrained_policy(config: RunConfig) -> Policy:
    """Return the policy of a new network."""
    env = make_env(config.environment, config.env)
    spaces, cpu = spaces_of(env), torch.device("cpu")
    env.close()
    with torch.random.fork_rng(devices=[]):
        return Policy(make_algorithm(config, spaces, cpu), spaces, cpu)


@torch.inference_mode()
def ask(policy: Policy, question: Question) -> Answer:
    """Return what a policy says at the end of a question's observations."""
    algorithm, device = policy.algorithm, policy.device
    state = algorithm.initial_state(1)
    reward = torch.zeros(1, device=device)
    for step, seen in enumerate(question.seen):
        row = policy.preprocess(torch.tensor([seen], dtype=torch.float32).numpy())
        decision = algorithm.best(to_tensors(row, device), reward, state)
        state = decision.state
        if step < len(question.done):
            done = torch.tensor([question.done[step]], device=device)
            state = algorithm.replace_action(state, done)
    extra = decision.extra
    value, q, logits = (extra.get(name) for name in ("value", "q", "logits"))
    return Answer(
        None if value is None else value.item(),
        None if q is None else numbers_of(on_return_scale(algorithm, q)),
        None if logits is None else numbers_of(logits.softmax(-1)),
        numbers_of(decision.env_action),
    )


def numbers_of(tensor: torch.Tensor) -> tuple[float, ...]:
    """Return the elements of a tensor."""
    return tuple(float(x) for x in tensor.flatten().tolist())
