"""Benchmarks of YAML specs, validated before anything runs; errors name the line."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from rookery.bench.expressions import Expression
from rookery.bench.variants import Value, is_value, placeholders, split_command, variants_of
from rookery.errors import BadInput, nearest, require
from rookery.fields import from_dict

DURATION = "duration"
"""Metric that every benchmark has: the seconds that the command took."""
PATH = re.compile(r"([^.\[\]]+|\[-?\d+\])(\.[^.\[\]]+|\[-?\d+\])*")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number in the output of the command."""

    regexp: str | None = None
    """Regular expression over standard output and standard error, with one group: the number."""
    skip: int | None = None
    """Number of leading matches to leave out, such as those of a warm-up."""
    reduction_type: Literal["mean", "final", "min", "max", "median", "value"] | None = None
    """Reduction of several matches to one number; value: expect one match; None: mean."""
    json: str | None = None
    """Path in the JSON object on standard output, such as result.rows[0].x"""
    better: Literal["higher", "lower"] | None = None
    """Direction that is better than the baseline; None: the metric is only reported."""


@dataclass(frozen=True, kw_only=True)
class Derived:
    """A number computed from metrics, parameters and the duration."""

    expr: str
    """The formula."""
    better: Literal["higher", "lower"] | None = None
    """As for Metric."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """An entry of a spec."""

    description: str = ""
    """Purpose of the benchmark."""
    cmd: Any
    """The command, as text or as a list, with {name} for parameters."""
    parameters: Any = None
    """A header row and rows of values; or lists by name, of which every combination is run."""
    data: dict[str, Metric] = field(default_factory=dict)
    """Metrics, by name."""
    derived: dict[str, Derived] = field(default_factory=dict)
    """Metrics computed from others."""
    output: Any = None
    """Columns of the printed table: pairs of a label and a metric."""
    env: dict[str, Any] = field(default_factory=dict)
    """Environment variables of the command."""
    timeout: float | None = None
    """Seconds after which the command is ended."""


class Benchmark(NamedTuple):
    """A benchmark; `problem` says why it cannot be run, and is empty if it can."""

    name: str
    variants: list[dict[str, Value]]
    settings: BenchmarkSettings | None = None
    problem: str = ""
    words: Sequence[str] = ()
    columns: Sequence[tuple[str, str]] = ()
    formulas: Mapping[str, Expression] = {}

    @property
    def description(self) -> str:
        return self.settings.description if self.settings else ""

    @property
    def better(self) -> dict[str, str | None]:
        """The better direction (higher, lower, None) by metric, in the order of the spec."""
        if self.settings is None:
            return {}
        both: dict[str, Any] = {**self.settings.data, **self.settings.derived}
        return {name: metric.better for name, metric in both.items()}


class _Loader(yaml.SafeLoader):
    """SafeLoader that reports duplicate keys and malformed values with their lines."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                    raise _at(key, f'"{key.value}" is given twice')
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError):  # the date 2026-13-45
            raise _at(node, "malformed value; quote it to make it text") from None


def _at(node: yaml.Node, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def read_entries(path: Path) -> list[tuple[str, str, Any]]:
    """Return name, place (FILE:LINE) and value of each benchmark of a spec file; BadInput names the
    file and the line."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{path}:{line}: is not UTF-8 text") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        line = 1 if node is None else node.start_mark.line + 1
        require(
            isinstance(node, yaml.MappingNode) and node.value,
            f"{path}:{line}: expected a mapping from names of benchmarks to their settings",
        )
        assert isinstance(node, yaml.MappingNode)
        values: Any = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise BadInput(f"{where}: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BadInput(f"{path}:{line}: a character that YAML does not allow") from None
    except RecursionError:
        raise BadInput(f"{path}: nested too deeply") from None
    lines = {key.value: key.start_mark.line + 1 for key, _ in node.value}
    return [
        (str(name), f"{path}:{lines.get(str(name), line)}", value) for name, value in values.items()
    ]


def read_specs(paths: Iterable[str | Path]) -> list[Benchmark]:
    """Return the benchmarks of spec files, in which names must be unique."""
    places: dict[str, str] = {}
    found = []
    for path in paths:
        for name, place, value in read_entries(Path(path)):
            clash = places.setdefault(name, place)
            require(clash == place, f'{place}: "{name}" is already defined at {clash}')
            found.append(make_benchmark(name, place, value))
    return found


def select_benchmarks(benchmarks: Sequence[Benchmark], names: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks with these names, or all if there are no names."""
    known = [benchmark.name for benchmark in benchmarks]
    for name in names:
        require(
            name in known,
            f'--benchmark: unknown name "{name}".{nearest(name, known)} --list lists them.',
        )
    return [benchmark for benchmark in benchmarks if not names or benchmark.name in names]


def make_benchmark(name: str, place: str, value: Any) -> Benchmark:
    """Validate an entry; one with a problem keeps its variants, each of which then fails."""
    variants: list[dict[str, Value]] = [{}]
    try:
        require(isinstance(value, Mapping), "expected settings such as cmd and data")
        variants = variants_of(value.get("parameters"))
        settings = from_dict(BenchmarkSettings, value)
        return Benchmark(name, variants, settings, "", *_validate(settings))
    except BadInput as error:
        return Benchmark(name, variants, problem=f"{place}: {error}")


def _validate(
    settings: BenchmarkSettings,
) -> tuple[list[str], list[tuple[str, str]], dict[str, Expression]]:
    """Return words of the command, columns and formulas; BadInput if something is wrong."""
    names = set(variants_of(settings.parameters)[0])
    require(
        settings.timeout is None or settings.timeout > 0,
        f"timeout must be above 0 seconds, got {settings.timeout}",
    )
    words = split_command(settings.cmd)
    for word in words:
        _require_known(f"cmd, in {word!r}", placeholders(word), names | {*settings.env})
    for name, value in settings.env.items():
        require(name and "=" not in name, f'env: "{name}" cannot name a variable')
        require(value is not None and is_value(value), f"env.{name}: expected text or a number")
        _require_known(f"env.{name}", placeholders(value), names)
    for name, metric in settings.data.items():
        _require_free(f"data.{name}", name, names)
        _check_metric(f"data.{name}", metric)
    names |= {DURATION, *settings.data}
    formulas = {}
    for name, derived in settings.derived.items():
        _require_free(f"derived.{name}", name, names)
        try:
            formulas[name] = Expression(derived.expr)
        except BadInput as error:
            raise BadInput(f"derived.{name}.expr: {error}") from None
        _require_known(f"derived.{name}.expr", formulas[name].names, names)
        names.add(name)
    metrics = [DURATION, *settings.data, *settings.derived]
    return words, _columns(settings.output, metrics), formulas


def _check_metric(path: str, metric: Metric) -> None:
    one = (metric.regexp is None) != (metric.json is None)
    require(one, f"{path}: give either regexp or json")
    if metric.json is not None:
        for name in ("skip", "reduction_type"):
            require(getattr(metric, name) is None, f"{path}.{name}: has an effect with regexp only")
        require(
            PATH.fullmatch(metric.json),
            f'{path}.json: "{metric.json}" is not a path such as a.b[0]',
        )
        return
    require((metric.skip or 0) >= 0, f"{path}.skip must be 0 or more, got {metric.skip}")
    try:
        groups = re.compile(metric.regexp or "", re.MULTILINE).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise BadInput(
            f"{path}.regexp: {metric.regexp!r} is not a regular expression: {error}"
        ) from None
    require(groups == 1, f"{path}.regexp: expected one group (...) around the number, got {groups}")


def _columns(output: Any, metrics: Sequence[str]) -> list[tuple[str, str]]:
    """Return label and metric of each column; without `output`, every metric under its own name."""
    if output is None:
        return [(name, name) for name in metrics if name != DURATION]
    pairs = isinstance(output, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
        for pair in output
    )
    require(pairs, "output: expected pairs such as [[label, metric], ...]")
    for _, metric in output:
        _require_known("output", [metric], metrics)
    return [(label, metric) for label, metric in output]


def _require_known(path: str, used: Iterable[str], names: Iterable[str]) -> None:
    known = sorted(names)
    for name in sorted(used):
        require(name in known, f'{path}: unknown name "{name}".{nearest(name, known)}')


def _require_free(path: str, name: str, names: Collection[str]) -> None:
    reserved = "the name is reserved for the seconds that the command takes"
    require(name != DURATION, f"{path}: {reserved}")
    taken = "a parameter or another metric has this name; choose another"
    require(name not in names, f"{path}: {taken}")
