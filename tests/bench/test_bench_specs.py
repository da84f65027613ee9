"""Spec files: what they may say, and where a mistake is told to stand."""

from __future__ import annotations

import sys

import pytest

from rookery.bench.spec import read_entries, read_specs, select_benchmarks
from rookery.bench.variants import (
    command_of,
    environment_of,
    is_training,
    placeholders,
    seed_of,
    split_command,
    variant_label,
    variants_of,
    with_profile,
)
from rookery.errors import BadInput


def spec(tmp_path, text, name="spec.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def problem(tmp_path, text):
    """What is wrong with the only benchmark of a spec."""
    (benchmark,) = read_specs([spec(tmp_path, text)])
    return benchmark.problem


def test_a_header_row_and_rows_of_values():
    assert variants_of([["a", "b"], [1, "x"], [2, "y"]]) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def test_lists_by_name_make_a_full_matrix():
    found = variants_of({"a": [1, 2], "b": ["x", "y"]})
    assert found == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]


def test_without_parameters_there_is_one_variant():
    assert variants_of(None) == [{}]


@pytest.mark.parametrize(
    "parameters",
    [
        5,
        [],
        [["a"]],
        ["a", 1],
        [["a", "b"], [1]],
        [["a", "a"], [1, 2]],
        [["a b"], [1]],
        [[1], [1]],
        {"a": 1},
        {"a": []},
        {"a": [[1]]},
        {"a": [{}]},
        {"a": list(range(101)), "b": list(range(100))},
    ],
)
def test_parameters_of_another_shape_are_refused(parameters):
    with pytest.raises(BadInput, match="parameters"):
        variants_of(parameters)


def test_a_text_is_split_as_a_shell_would_and_a_list_is_taken_as_it_is():
    assert split_command("run 'a b' --n {n}") == ["run", "a b", "--n", "{n}"]
    assert split_command(["run", "a b", 3, True]) == ["run", "a b", "3", "true"]


@pytest.mark.parametrize("cmd", ["", "   ", [], "a 'b", 5, None, [["a"]], [""]])
def test_malformed_commands_are_refused(cmd):
    with pytest.raises(BadInput, match="cmd"):
        split_command(cmd)


def test_placeholders_are_filled_and_other_braces_left():
    words = ["{python}", "-c", "print({'x': {n}}, f'{{n}}', '{3}', {'a': {'b': 1}})", "{T}-{b}"]
    filled = command_of(words, {"T": "4"}, {"n": 2, "b": True})
    code = "print({'x': 2}, f'{n}', '{3}', {'a': {'b': 1}})"
    assert filled == [sys.executable, "-c", code, "4-true"]
    assert placeholders(words[2]) == {"n"}
    assert placeholders("{python}") == set()


def test_a_value_with_spaces_and_quotes_stays_one_word():
    words = split_command("echo {text}")
    assert command_of(words, {}, {"text": "a b; 'c' {text}"}) == ["echo", "a b; 'c' {text}"]


def test_a_parameter_goes_before_an_environment_variable_which_it_may_fill():
    env = environment_of({"THREADS": "{THREADS}", "WHO": "{python}"}, {"THREADS": 2})
    assert env == {"THREADS": "2", "WHO": sys.executable}
    assert command_of(["{THREADS}"], {"THREADS": "9"}, {"THREADS": 2}) == ["2"]


def test_training_commands_are_recognised():
    assert is_training(["rookery", "train", "ppo"])
    assert is_training(["/x/python", "-m", "rookery", "train"])
    assert is_training(["mpirun", "-n", "2", "/venv/bin/rookery", "train"])
    assert not is_training(["rookery", "evaluate", "train"])
    assert not is_training(["python", "train.py"])
    assert with_profile(["rookery", "train"]) == ["rookery", "train", "--profile"]
    assert with_profile(["rookery", "train", "--profile"]) == ["rookery", "train", "--profile"]


def test_the_seed_of_a_variant():
    assert seed_of(["a", "--seed", "7"], {}) == 7
    assert seed_of(["a", "--seed=8"], {}) == 8
    assert seed_of(["a", "--seed", "7"], {"seed": 1}) == 1
    assert seed_of(["a", "--seeds", "7"], {}) is None
    assert seed_of(["a", "--seed"], {}) is None


def test_labels():
    assert variant_label("a", {}) == "a"
    assert variant_label("a", {"n": 1, "b": None}) == "a [n=1, b=none]"


GOOD = """
# a comment
first:
  description: one
  cmd: echo {n} {V}
  parameters: {n: [1, 2]}
  env: {V: "x{n}"}
  timeout: 5
  data:
    a: {regexp: 'a (\\d+)', skip: 1, reduction_type: max, better: higher}
    b: {json: 'rows[0].x'}
  derived:
    c: {expr: a / n, better: lower}
    d: {expr: c + duration}
  output: [[A, a], [C, c], [seconds, duration]]
second:
  cmd: [echo, hello]
"""


def test_a_whole_spec(tmp_path):
    first, second = read_specs([spec(tmp_path, GOOD)])
    assert (first.problem, second.problem) == ("", "")
    assert first.description == "one"
    assert first.variants == [{"n": 1}, {"n": 2}]
    assert first.words == ["echo", "{n}", "{V}"]
    assert first.columns == [("A", "a"), ("C", "c"), ("seconds", "duration")]
    assert first.better == {"a": "higher", "b": None, "c": "lower", "d": None}
    assert first.settings.timeout == 5
    assert second.words == ["echo", "hello"]


def test_without_output_every_metric_is_a_column(tmp_path):
    (benchmark,) = read_specs(
        [spec(tmp_path, "a: {cmd: x, data: {p: {json: q}}, derived: {r: {expr: p}}}")]
    )
    assert benchmark.columns == [("p", "p"), ("r", "r")]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{cmdd: x}", ["cmdd", 'Did you mean "cmd"']),
        ("{cmd: x, paramters: {}}", ['"parameters"']),
        ("{cmd: x, data: {a: {regex: x}}}", ["data.a.regex", '"data.a.regexp"']),
        ("{cmd: x, data: {a: {json: b, beter: lower}}}", ['"data.a.better"']),
        ("{cmd: x, derived: {a: {exp: b}}}", ['"derived.a.expr"']),
        ("{description: x}", ["cmd", "must be set"]),
        ("5", ["settings"]),
        ("{cmd: 'echo {stesp}', parameters: {steps: [1]}}", ["cmd", '"stesp"', '"steps"']),
        ("{cmd: echo, env: {A: '{m}'}}", ["env.A", '"m"']),
        ("{cmd: echo, env: {A: [1]}}", ["env.A"]),
        ("{cmd: x, timeout: 0}", ["timeout", "0"]),
        ("{cmd: x, timeout: soon}", ["timeout", "soon"]),
        ("{cmd: x, data: {a: {}}}", ["data.a", "regexp", "json"]),
        ("{cmd: x, data: {a: {regexp: (x), json: y}}}", ["data.a", "either"]),
        ("{cmd: x, data: {a: {json: y, skip: 1}}}", ["data.a.skip"]),
        ("{cmd: x, data: {a: {json: y..z}}}", ["data.a.json"]),
        ("{cmd: x, data: {a: {regexp: '(x'}}}", ["data.a.regexp", "regular expression"]),
        ("{cmd: x, data: {a: {regexp: 'x'}}}", ["data.a.regexp", "group"]),
        ("{cmd: x, data: {a: {regexp: '(x)(y)'}}}", ["data.a.regexp", "got 2"]),
        ("{cmd: x, data: {a: {regexp: '(x)', skip: -1}}}", ["skip", "-1"]),
        ("{cmd: x, data: {a: {regexp: '(x)', reduction_type: avg}}}", ["avg", "mean"]),
        ("{cmd: x, data: {a: {json: x, better: more}}}", ["more", "higher"]),
        ("{cmd: x, parameters: {a: [1]}, data: {a: {json: x}}}", ["data.a", "parameter"]),
        ("{cmd: x, data: {duration: {json: x}}}", ["data.duration", "seconds"]),
        ("{cmd: x, data: {a: {json: x}}, derived: {a: {expr: '1'}}}", ["derived.a"]),
        ("{cmd: x, derived: {a: {expr: 'b + 1'}}}", ["derived.a.expr", '"b"']),
        ("{cmd: x, derived: {a: {expr: 'b'}, b: {expr: '1'}}}", ["derived.a.expr", '"b"']),
        ("{cmd: x, derived: {a: {expr: 'open(1)'}}}", ["derived.a.expr", "open"]),
        ("{cmd: x, data: {ab: {json: x}}, output: [[A, ac]]}", ["output", '"ac"', '"ab"']),
        ("{cmd: x, output: [A]}", ["output"]),
        ("{cmd: x, parameters: {a: 1}}", ["parameters.a"]),
    ],
)
def test_a_wrong_entry_is_reported_with_file_and_line(tmp_path, entry, words):
    told = problem(tmp_path, f"\n\nname: {entry}\n")
    assert told.startswith(f"{tmp_path}/spec.yaml:3: ")
    assert [word for word in words if word not in told] == []


def test_a_wrong_entry_keeps_its_variants_and_its_neighbours(tmp_path):
    text = "bad: {cmdd: x, parameters: {n: [1, 2, 3]}}\ngood: {cmd: echo}"
    bad, good = read_specs([spec(tmp_path, text)])
    assert len(bad.variants) == 3
    assert good.problem == ""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: {cmd: x}\nb: [1\n", 3),
        ("a: {cmd: x}\n\tb: 1\n", 2),
        ("a: b: c\n", 1),
        ("- a\n- b\n", 1),
        ("\n\njust text\n", 3),
        ("", 1),
        ("{}", 1),
        ("a: {cmd: x}\nb: {cmd: y}\na: {cmd: z}\n", 3),
        ("a:\n  cmd: x\n  cmd: y\n", 3),
        ("a:\n  cmd: !!python/object/apply:os.getcwd []\n", 2),
        ("a:\n  cmd: 2026-13-45\n", 2),
        ("a: {cmd: x}\n---\nb: {cmd: y}\n", 2),
        ("a: {cmd: x}\nb: \0\n", 2),
    ],
)
def test_a_malformed_spec_is_reported_with_file_and_line(tmp_path, text, line):
    path = spec(tmp_path, text)
    with pytest.raises(BadInput) as caught:
        read_entries(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(BadInput, match=r"none\.yaml: cannot be read"):
        read_entries(tmp_path / "none.yaml")
    with pytest.raises(BadInput, match="cannot be read"):
        read_entries(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: 1\nb: \xff\xfe\n")
    with pytest.raises(BadInput, match=r"binary.yaml:2: .*UTF-8"):
        read_entries(binary)
    deep = spec(tmp_path, "a: " + "[" * 1500 + "]" * 1500)
    with pytest.raises(BadInput, match=r"spec\.yaml"):
        read_entries(deep)


def test_merged_keys_may_be_overridden(tmp_path):
    text = "a: &a {cmd: x, timeout: 1}\nb:\n  <<: *a\n  timeout: 2\n"
    a, b = read_specs([spec(tmp_path, text)])
    assert (a.settings.timeout, b.settings.timeout, b.words) == (1, 2, ["x"])


def test_a_name_in_two_specs_is_refused(tmp_path):
    one, two = (spec(tmp_path, "a: {cmd: x}", name) for name in ("one.yaml", "two.yaml"))
    with pytest.raises(BadInput, match=r'two.yaml:1: "a" is already defined at .*one.yaml:1'):
        read_specs([one, two])


def test_benchmarks_are_chosen_by_name(tmp_path):
    benchmarks = read_specs([spec(tmp_path, GOOD)])
    assert [each.name for each in select_benchmarks(benchmarks, [])] == ["first", "second"]
    assert [each.name for each in select_benchmarks(benchmarks, ["second"])] == ["second"]
    with pytest.raises(BadInput, match=r'"secnd".*Did you mean "second"'):
        select_benchmarks(benchmarks, ["secnd"])
