"""rookery evaluate RUN | random ENV"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rookery.envs import EnvOptions
from rookery.errors import require
from rookery.fields import flags_of, from_dict, help_text, nest, parse_flags, require_least
from rookery.runs.files import to_json
from rookery.training.trained import EVALUATION_SEED, TrainedRun, evaluate_random

USAGE = """rookery evaluate RUN [options]         score the agent of a run
rookery evaluate random ENV [options]  score a policy of uniformly random actions
"""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options of the command."""

    episodes: int = 100
    """Number of episodes."""
    seed: int = EVALUATION_SEED
    """Seed of the environments and of sampled actions."""
    sample: bool = False
    """Sample actions from the policy, as in training, instead of taking the best."""
    epsilon: float = 0.0
    """Probability of a uniformly random action."""
    checkpoint: str | None = None
    """Checkpoint: best or last (by evaluation during training), or a step; none: the newest."""
    json: bool = False
    """Print one JSON object on standard output."""
    env: EnvOptions = field(default_factory=EnvOptions)
    """Preprocessing of the environment; only with a random policy."""

    def __post_init__(self) -> None:
        require_least(self, 1, ["episodes"])
        require_least(self, 0, ["seed"])
        require(0 <= self.epsilon <= 1, f"epsilon must lie in [0, 1], got {self.epsilon}")


def main(args: Sequence[str]) -> int:
    """Evaluate and print."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(EvaluateOptions))
        return 0
    given, names = parse_flags(args, flags_of(EvaluateOptions))
    options = from_dict(EvaluateOptions, nest(given))
    random = names[:1] == ["random"]
    require(
        len(names) == 1 + random,
        "evaluate: expected one run folder, or 'random' and an environment",
    )
    require(
        random or not any(name.startswith("env.") for name in given),
        "--env.* has no effect with a run, which has settings of its own; remove it",
    )
    if random:
        scores = evaluate_random(names[1], options.env, options.episodes, options.seed)
    else:
        run = TrainedRun.open(names[0]).at(options.checkpoint)
        scores = run.evaluate(options.episodes, options.seed, not options.sample, options.epsilon)
    print(to_json(scores) if options.json else scores_text(scores))
    return 0


def scores_text(scores: dict[str, Any]) -> str:
    policy = f"{scores['policy']} policy"
    if scores.get("epsilon"):
        policy += f" with epsilon {scores['epsilon']:g}"
    if "env_steps" in scores:
        policy += f" of step {scores['env_steps']:,}"
    lines = [
        f"{scores['environment']}, {policy}, {scores['episodes']} episodes, seed {scores['seed']}",
        f"return   mean {scores['return_mean']:.2f}  std {scores['return_std']:.2f}"
        f"  min {scores['return_min']:.2f}  max {scores['return_max']:.2f}",
        f"interquartile mean {scores['return_iqm']:.2f},"
        f" 95 % interval {scores['return_iqm_low']:.2f} to {scores['return_iqm_high']:.2f}",
        f"length   mean {scores['length_mean']:.1f}",
    ]
    if "human_normalized" in scores:
        lines.append(f"human-normalized score {100 * scores['human_normalized']:.1f} %")
    return "\n".join(lines)
