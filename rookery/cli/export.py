"""rookery export RUN"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookery.cli.printing import print_json
from rookery.errors import require
from rookery.export.export import export
from rookery.fields import flags_of, from_dict, help_text, nest, parse_flags
from rookery.training.trained import TrainedRun

USAGE = "rookery export RUN [options]  write the policy of a run for other programs\n"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command."""

    format: tuple[str, ...] = ("onnx", "libtorch")
    """Which files: onnx, libtorch or both."""
    out: str | None = None
    """Folder for the files; none: export in the run's folder."""
    checkpoint: str | None = None
    """Whose agent: best or last by evaluation while training, or a step; none: the newest."""
    envs: int = 7
    """Environments that are played to compare the files with the live policy."""
    json: bool = False
    """Print policy.json on standard output."""

    def __post_init__(self) -> None:
        require(self.format, "format: name onnx, libtorch or both")
        require(self.envs >= 1, f"envs must be at least 1, got {self.envs}")


def main(args: Sequence[str]) -> int:
    """Export and tell."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(Options))
        return 0
    given, names = parse_flags(args, flags_of(Options))
    options = from_dict(Options, nest(given))
    require(len(names) == 1, "export: name one run")
    run = TrainedRun.open(names[0]).at(options.checkpoint)
    out = run.path / "export" if options.out is None else Path(options.out)
    described = export(run, tuple(dict.fromkeys(options.format)), out, options.envs)
    print_json(described) if options.json else tell(described, out)
    return 0


def tell(described: dict[str, Any], out: Path) -> None:
    """Print for a person what was written and how it was checked."""
    verified = described["verified"]
    print(
        f"{described['algorithm']} policy of step {described['env_steps']:,}, verified on"
        f" {verified['env_steps']:,} steps in batches of"
        f" {' and '.join(map(str, verified['batch_sizes']))}"
    )
    for name, file in described["files"].items():
        off = verified["largest_differences"][name]
        worst = max((value for key, value in off.items() if key != "action"), default=0.0)
        print(f"{out / file}: greedy actions equal, values within {worst:.1e}")
    print(out / "policy.json")
