"""rookery export RUN"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rookery.errors import require
from rookery.export.export import export
from rookery.fields import flags_of, from_dict, help_text, nest, parse_flags, require_least
from rookery.runs.files import to_json
from rookery.training.trained import TrainedRun

USAGE = "rookery export RUN [options]  write the policy of a run for use in other programs\n"


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of the command."""

    format: tuple[str, ...] = ("onnx", "libtorch")
    """Formats to write: onnx, libtorch or both."""
    out: str | None = None
    """Folder for the files; none: the folder export of the run."""
    checkpoint: str | None = None
    """Checkpoint: best or last (by evaluation during training), or a step; none: the newest."""
    envs: int = 7
    """Environments in which the files are compared with the live policy."""
    json: bool = False
    """Print the content of policy.json on standard output."""

    def __post_init__(self) -> None:
        require(self.format, "format: expected onnx, libtorch or both, got none")
        require_least(self, 1, ["envs"])


def main(args: Sequence[str]) -> int:
    """Export the policy of a run and print what was written."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(ExportOptions))
        return 0
    given, names = parse_flags(args, flags_of(ExportOptions))
    options = from_dict(ExportOptions, nest(given))
    require(len(names) == 1, "export: expected one run folder")
    run = TrainedRun.open(names[0]).at(options.checkpoint)
    out = run.path / "export" if options.out is None else Path(options.out)
    described = export(run, tuple(dict.fromkeys(options.format)), out, options.envs)
    if options.json:
        print(to_json(described))
        return 0
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
    return 0
