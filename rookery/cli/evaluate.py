"""rookery evaluate RUN | random ENV"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rookery.cli.printing import print_json
from rookery.envs import EnvOptions
from rookery.errors import require
from rookery.fields import flags_of, from_dict, help_text, nest, parse_flags
from rookery.training.trained import EVALUATION_SEED, TrainedRun, evaluate_random

USAGE = """rookery evaluate RUN [options]         score the agent of a run
rookery evaluate random ENV [options]  score a policy that draws its actions evenly
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command."""

    episodes: int = 100
    """How many episodes, exactly."""
    seed: int = EVALUATION_SEED
    """Seed of the environments and of sampled actions."""
    sample: bool = False
    """Draw actions from the policy, as in training, instead of taking the best."""
    epsilon: float = 0.0
    """Share of the actions that are drawn evenly."""
    checkpoint: str | None = None
    """Whose agent: best or last by evaluation while training, or a step; none: the newest."""
    json: bool = False
    """Print one JSON object on standard output."""
    env: EnvOptions = field(default_factory=EnvOptions)
    """The environment's preprocessing, for a random policy."""

    def __post_init__(self) -> None:
        require(self.episodes >= 1, f"episodes must be at least 1, got {self.episodes}")
        require(self.seed >= 0, f"seed must be 0 or more, got {self.seed}")
        require(0 <= self.epsilon <= 1, f"epsilon must lie in [0, 1], got {self.epsilon}")


def main(args: Sequence[str]) -> int:
    """Evaluate and print."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(Options))
        return 0
    given, names = parse_flags(args, flags_of(Options))
    options = from_dict(Options, nest(given))
    random = names[:1] == ["random"]
    require(len(names) == 1 + random, "evaluate: name one run, or 'random' and an environment")
    require(
        random or not any(name.startswith("env.") for name in given),
        "--env.* settings of a run are its own; leave them out",
    )
    if random:
        scores = evaluate_random(names[1], options.env, options.episodes, options.seed)
    else:
        run = TrainedRun.open(names[0]).at(options.checkpoint)
        scores = run.evaluate(options.episodes, options.seed, not options.sample, options.epsilon)
    print_json(scores) if options.json else tell(scores)
    return 0


def tell(scores: dict[str, Any]) -> None:
    """Print the scores for a person."""
    policy = f"{scores['policy']} policy"
    if scores.get("epsilon"):
        policy += f" with epsilon {scores['epsilon']:g}"
    if "env_steps" in scores:
        policy += f" of step {scores['env_steps']:,}"
    print(
        f"{scores['environment']}, {policy}, {scores['episodes']} episodes, seed {scores['seed']}"
    )
    print(
        f"return   mean {scores['return_mean']:.2f}  deviation {scores['return_std']:.2f}"
        f"  min {scores['return_min']:.2f}  max {scores['return_max']:.2f}"
    )
    print(
        f"middle half (IQM) {scores['return_iqm']:.2f},"
        f" 95 % interval {scores['return_iqm_low']:.2f} to {scores['return_iqm_high']:.2f}"
    )
    print(f"length   mean {scores['length_mean']:.1f}")
    if "human_normalized" in scores:
        print(f"human-normalised score {100 * scores['human_normalized']:.1f} %")
