"""The shape of the package: imports point one way, and every setting is read by something."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import rookery
from rookery.algorithms import ALGORITHMS
from rookery.config import default_config
from rookery.fields import flags_of

PACKAGE = Path(rookery.__file__).parent
LAYERS = {
    "cli": {
        *("training", "backends", "config", "algorithms", "envs", "runs", "fields"),
        *("scaling", "sweep", "slurm", "reports", "bench", "export", "diagnostics"),
    },
    "export": {"training", "learning", "algorithms", "envs", "runs", "data", "fields"},
    "sweep": {"config", "scaling", "backends", "runs", "fields"},
    "slurm": {"backends", "runs", "fields"},
    "scaling": {"backends", "runs", "bench"},
    "reports": {"runs", "envs", "fields"},
    "bench": {"runs", "fields"},
    "training": {
        *("backends", "config", "learning", "algorithms", "envs", "runs", "data"),
        *("diagnostics", "reports", "memory"),
    },
    "backends": {
        *("config", "learning", "algorithms", "memory", "networks", "envs", "runs", "data"),
        "training",
    },
    "diagnostics": {
        *("backends", "config", "learning", "algorithms", "envs", "runs", "reports", "data"),
    },
    "config": {"learning", "algorithms", "networks", "envs", "fields"},
    "learning": {"algorithms", "memory", "networks", "tracing", "data"},
    "algorithms": {"memory", "networks", "tracing", "data"},
    "memory": {"data"},
    "networks": {"data"},
    "tracing": {"data"},
    "data": set(),
    "runs": {"data"},
    "envs": set(),
    "fields": set(),
    "machine": set(),
    "processes": set(),
    "score_statistics": set(),
}
"""What each part may import. `backends.ranks.process` is a program and starts from `training`."""
ANYONE = {"errors", "machine", "processes", "score_statistics", ""}


def imports(path: Path) -> set[str]:
    """The parts of the package that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {[*name.split("."), ""][1] for name in names if name.split(".")[0] == "rookery"}
    return found


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def files() -> list[Path]:
    skipped = {"__init__", "__main__", "errors"}
    return [path for path in sorted(PACKAGE.rglob("*.py")) if part_of(path) not in skipped]


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    part = part_of(path)
    if part == "presets":
        return
    allowed = LAYERS[part] | ANYONE | {part}
    if part == "backends" and path.name != "process.py":
        allowed = allowed - {"training"}
    assert imports(path) <= allowed


def test_environments_know_no_torch():
    for path in (PACKAGE / "envs").rglob("*.py"):
        assert "import torch" not in path.read_text()


def test_help_needs_no_torch():
    code = (
        "import sys, rookery.cli.main as m; m.main(['--help']);"
        " print({'torch', 'ray'} & set(sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert output.splitlines()[-1] == "set()"


def attributes_read() -> set[str]:
    """Every attribute name read somewhere outside of the validation of settings."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and function.name != "__post_init__":
                found |= {
                    node.attr
                    for node in ast.walk(function)
                    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
                }
    return found


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_setting_is_read_by_something(algorithm):
    read = attributes_read()
    settings = flags_of(default_config(algorithm, "CartPole-v1"))
    # Levels of single traps are read by name; test_rules.py compares them with the rules.
    own = [name for name in settings if not name.startswith("traps.")]
    assert [name for name in own if name.rpartition(".")[2] not in read] == []


def top_level_names(path: Path) -> list[str]:
    """The functions, classes and constants that a file defines."""
    found = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign):
            found += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append(node.target.id)
    return [name for name in found if not name.startswith("__")]


def sources() -> list[Path]:
    return [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "server").rglob("*.py")]


def test_at_most_twenty_names_are_defined_twice():
    counts = Counter(name for path in sources() for name in set(top_level_names(path)))
    assert len([name for name, count in counts.items() if count > 1]) <= 20


def test_files_are_named_for_what_they_hold():
    for path in sources():
        assert path.stem not in {"making", "utils", "helpers", "misc"}
        assert path.stem != "common" or path.parent.name == "backends"


def test_no_private_interface_of_torch():
    for path in sources():
        text = path.read_text()
        assert "torch._C" not in text
        assert "torch.jit" not in text
