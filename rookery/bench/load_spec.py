"""Read YAML spec files; errors name the line, and duplicate keys are errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rookery.errors import BadInput, require


class Entry(NamedTuple):
    """A benchmark as written in a spec: its name, its place as FILE:LINE, and its value."""

    name: str
    place: str
    value: Any


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


def read_entries(path: Path) -> list[Entry]:
    """Return the benchmarks of a spec file; BadInput names the file and the line."""
    text = _read(path)
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
        Entry(str(name), f"{path}:{lines.get(str(name), line)}", value)
        for name, value in values.items()
    ]


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{path}:{line}: is not UTF-8 text") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
