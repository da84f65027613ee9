"""Checks of the documentation: commands parse, examples run, settings load, links exist."""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import gymnasium
import pytest
import yaml
from rookery_server.__main__ import parser as server_parser

import rookery.envs
from rookery.algorithms import ALGORITHMS, algorithm_class
from rookery.cli import compare as compare_command
from rookery.cli import doctor as doctor_command
from rookery.cli import evaluate as evaluate_command
from rookery.cli import graph as graph_command
from rookery.cli import serve as serve_command
from rookery.cli import train as train_command
from rookery.cli.main import COMMANDS, main
from rookery.config import default_config, from_values, resolve
from rookery.diagnostics.rules import RUN_RULES
from rookery.errors import BadInput, RookeryError, require
from rookery.fields import flags_of, from_dict, nest, parse_flags
from rookery.training.probe_runs import probe_config

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]
LAUNCHERS = {"mpirun", "torchrun", "srun", "nohup", "time"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced code block of a page; `line` is where its text begins."""

    page: Path
    line: int
    language: str
    text: str


def blocks_of(page: Path, language: str) -> list[Block]:
    text = page.read_text()
    found = [
        Block(page, 1 + text.count("\n", 0, match.start(2)), match[1], match[2])
        for match in FENCE.finditer(text)
    ]
    return [block for block in found if block.language == language]


def commands_in(text: str) -> list[list[str]]:
    """Return the arguments of every `rookery` call in a block, also by launchers or `python -m`."""
    lines = text.replace("\\\n", " ").splitlines()
    calls = (arguments(shlex.split(line, comments=True)) for line in lines)
    return [call for call in calls if call is not None]


def arguments(words: list[str]) -> list[str] | None:
    """Return the words after `rookery` up to a pipe or the like; None if it is not called."""
    programs = [Path(word).name for word in words]
    if "rookery" not in programs:
        return None
    at = programs.index("rookery")
    called = at == 0 or words[at - 1] == "-m" or programs[0] in LAUNCHERS
    ends = [i for i, word in enumerate(words) if i > at and word in ("|", ">", "&&", ";", "&")]
    return words[at + 1 : min(ends, default=len(words))] if called else None


def documented(pages: list[Path]) -> list[tuple[str, list[str]]]:
    """Return every command with its page and line; the first two blocks of README are set-up."""
    return [
        (f"{page.name}:{block.line} {' '.join(command)}", command)
        for page in pages
        for block in blocks_of(page, "sh")[2 if page == README else 0 :]
        for command in commands_in(block.text)
    ]


def check_env(name: str) -> None:
    """Raise BadInput unless the environment is installed; names with a module are not checked."""
    registered = {*gymnasium.registry, *rookery.envs.registry.PROVIDED}
    known = name in registered or ":" in name or rookery.envs.engines.atari.parse_game(name)
    require(known, f"{name}: unknown environment")


def check_train(args: list[str]) -> None:
    """Parse arguments as `rookery train` does, and resolve the config."""
    if "--help" in args:
        assert train_command.main(args) == 0
        return
    source = any(train_command.peek_flag(args, flag) for flag in ("--resume", "--config"))
    names = ["ppo", "CartPole-v1"] if source else args[:2]
    rest = args if source else args[2:]
    base = default_config(*names)
    given, chosen = train_command.parse_settings(rest, base, train_command.TrainOptions)
    check_env(names[1])
    from_dict(train_command.TrainOptions, chosen)
    resolve(*names, nest(given), chosen.get("preset"), not (source or chosen.get("no_preset")))


def check_evaluate(args: list[str]) -> None:
    if "--help" in args:
        assert evaluate_command.main(args) == 0
        return
    given, names = parse_flags(args, flags_of(evaluate_command.EvaluateOptions))
    from_dict(evaluate_command.EvaluateOptions, nest(given))
    random = names[0] == "random"
    require(len(names) == 1 + random, f"{names}: expected one run, or random and an environment")
    if random:
        check_env(names[1])


def check_serve(args: list[str]) -> None:
    if "--help" in args:
        assert main(["serve", *args]) == 0
        return
    given, names = parse_flags(args, flags_of(serve_command.ServeOptions))
    options = from_dict(serve_command.ServeOptions, nest(given))
    require(
        len(names) == (options.make_keys is None),
        f"{names}: expected one environment, or --make-keys",
    )
    if names:
        check_env(names[0])


def check_compare(args: list[str]) -> None:
    if "--help" in args:
        assert main(["compare", *args]) == 0
        return
    given, paths = parse_flags(args, flags_of(compare_command.CompareOptions))
    from_dict(compare_command.CompareOptions, nest(given))
    require(paths, "compare: expected the folders of runs")


def check_graph(args: list[str]) -> None:
    if "--help" in args:
        assert graph_command.main(args) == 0
        return
    made, _ = graph_command.parse(args)
    check_env(made.config.environment)


def check_doctor(args: list[str]) -> None:
    """Parse arguments as `rookery doctor` does, and make the config of its runs."""
    if "--help" in args:
        assert main(["doctor", *args]) == 0
        return
    if args[0] not in ALGORITHMS:
        is_run = args[0].startswith("runs/")
        kind = doctor_command.RunOptions if is_run else doctor_command.DoctorEnvOptions
        given, extra = parse_flags(args[1:], flags_of(kind))
        require(not extra, f"{extra}: unexpected arguments")
        from_dict(kind, nest(given))
        if not is_run:
            check_env(args[0])
        return
    settings, _, options = doctor_command.parse_options(args[0], args[1:])
    probe_config(args[0], settings, options.preset, not options.no_preset)


def check(command: list[str]) -> None:
    """Raise unless the command is valid; cheap commands (lists and help) are run."""
    if command[0] == "train":
        check_train(command[1:])
    elif command[0] == "evaluate":
        check_evaluate(command[1:])
    elif command[0] == "serve":
        check_serve(command[1:])
    elif command[0] == "compare":
        check_compare(command[1:])
    elif command[0] == "graph":
        check_graph(command[1:])
    elif command[0] == "doctor":
        check_doctor(command[1:])
    else:
        require(command[0] in {*COMMANDS, "--help", "--version"}, f"{command[0]}: unknown command")
        assert main(command) == 0


DOCUMENTED = documented(PAGES)


@pytest.mark.parametrize("command", [c for _, c in DOCUMENTED], ids=[i for i, _ in DOCUMENTED])
def test_documented_commands_parse(command):
    check(command)


def test_documented_server_commands_parse():
    """`python -m rookery_server ...` in the pages and in the server's README."""
    found = []
    for page in (ROOT / "docs" / "remote.md", ROOT / "server" / "README.md"):
        for block in blocks_of(page, "sh"):
            lines = block.text.replace("\\\n", " ").splitlines()
            found += [shlex.split(line)[3:] for line in lines if "-m rookery_server" in line]
    assert len(found) >= 4
    for arguments in found:
        options = server_parser().parse_args(arguments)
        assert bool(options.env) != bool(options.make_keys)


@pytest.mark.skipif(not README.exists(), reason="there is no README.md")
def test_readme_commands_parse():
    for place, command in documented([README]):
        try:
            check(command)
        except RookeryError as error:
            pytest.fail(f"{place}: {error}")


@pytest.mark.parametrize(
    "line",
    [
        "rookery train ppo CartPole-v1 --algo.gama 0.9",
        "rookery train ppo CartPole-v1 --algo.gamma 2",
        "rookery train ppo CartPole-v9",
        "rookery train ppo CartPole-v1 --preset Nowhere-v0",
        "mpirun -n 2 rookery train poo CartPole-v1",
        "rookery train --resume runs/a --episodes 3",
        "rookery evaluate runs/a --episode 3",
        "rookery evaluate random NoSuch-v0",
        "rookery serve CartPole-v1 --prot 5555",
        "rookery compare runs --smoth 5",
        "rookery compare runs --x banana",
        "rookery graph ppo CartPole-v1 --step 2",
        "rookery graph ppo NoSuch-v0",
        "rookery doctor ppo --algo.gama 0.9",
        "rookery doctor poo",
        "rookery fly",
    ],
)
def test_wrong_command_is_detected(line):
    (command,) = commands_in(line)
    with pytest.raises(BadInput):
        check(command)


def test_rookery_calls_are_found_behind_launchers_and_paths():
    text = """cd rookery
    .venv/bin/rookery envs pong | head  # a comment
    torchrun --nproc-per-node 2 -m rookery train ppo \\
        CartPole-v1
    pip install rookery"""
    assert commands_in(text) == [["envs", "pong"], ["train", "ppo", "CartPole-v1"]]


def test_pages_have_commands_and_examples_to_check():
    pages = {place.partition(":")[0] for place, _ in DOCUMENTED}
    assert {"index.md", "training.md", "environments.md", "algorithms.md"} <= pages
    assert {"parallel.md", "evaluation.md"} <= pages
    assert len(blocks_of(ROOT / "docs" / "python.md", "python")) >= 3


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks_of(p, "python")], ids=lambda page: page.name
)
def test_python_examples_run(page, tmp_path, monkeypatch):
    """Run the Python blocks of a page one after the other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rookery.envs.registry, "_registered", {})
    names = {"__name__": "__main__"}
    for block in blocks_of(page, "python"):
        # Blank lines first, so that tracebacks show the line of the page.
        code = "\n" * (block.line - 1) + textwrap.dedent(block.text)
        with patch.dict(ALGORITHMS), patch.dict(RUN_RULES):
            exec(compile(code, page.name, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_files_load(page):
    for block in blocks_of(page, "yaml"):
        config = from_values(yaml.safe_load(block.text), {})
        assert algorithm_class(config.algorithm)
        check_env(config.environment)


@pytest.mark.parametrize(
    "page", [*PAGES, README, ROOT / "CHANGELOG.md"], ids=lambda page: page.name
)
def test_links_point_to_existing_files_and_headings(page):
    prose = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        linked = Path(os.path.normpath(page.parent / file)) if file else page
        assert linked.is_file(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", FENCE.sub("", linked.read_text()), re.MULTILINE)
            assert anchor in map(slug, headings), f"{page.name}: {target}"


def slug(heading: str) -> str:
    """Return the anchor of a heading on GitHub."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


PROGRESS = {
    "ppo": ("kl", "clip_fraction"),
    "vpg": (),
    "dqn": ("q_mean", "td_error", "epsilon", "replay_fill"),
    "apex": ("q_mean", "td_error", "epsilon", "added_per_second"),
    "r2d2": ("delta_q", "replay_age_mean", "trained_per_second"),
}
REPLAY = {"warm_up": 50, "capacity": 500, "batch_size": 4, "samples_per_insert": 1.0, "n_step": 2}
SETTINGS = {"dqn": REPLAY, "apex": REPLAY, "r2d2": REPLAY | {"burn_in": 2, "unroll": 4}}


@pytest.mark.parametrize("algorithm", sorted(PROGRESS))
def test_columns_and_fields_of_a_run_are_documented(algorithm, tmp_path):
    """docs/training.md names every column of progress.csv and every field of result.json."""
    page = (ROOT / "docs" / "training.md").read_text()
    with open(os.devnull, "w") as console:
        run = rookery.train(
            algorithm,
            "CartPole-v1",
            env_steps=300,
            envs=2,
            threads=1,
            use_preset=False,
            algo=SETTINGS.get(algorithm, {}),
            runs_dir=tmp_path,
            console=console,
        )
    columns = {name.partition("/")[0] for name in run.progress()[-1]}
    assert set(PROGRESS[algorithm]) <= columns
    named = set(re.findall(r"`(\w+)`", page))
    named |= {f"episode_return{end}" for end in named if end in ("_min", "_max")}
    assert columns - named == set()
    assert set(run.result) - named == set()
