"""Texts for spaces: their meanings, and the positions of syntax errors."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from rookery.envs.builtin.space_spec import NAMED_ACT, NAMED_OBS, parse_space
from rookery.errors import BadInput


def real(*shape, low=-np.inf, high=np.inf, dtype=np.float32):
    return Box(low, high, shape, dtype)


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("float[84,84]", real(84, 84)),
        ("float32[3]", real(3)),
        ("float16[3]", real(3, dtype=np.float16)),
        ("float64[3](-1, 1.5)", real(3, low=-1, high=1.5, dtype=np.float64)),
        ("float[2](-.5,1e3)", real(2, low=-0.5, high=1000)),
        ("uint8[4,84,84]", Box(0, 255, (4, 84, 84), np.uint8)),
        ("int8[2]", Box(-128, 127, (2,), np.int8)),
        ("int64[2]", Box(-(2**63), 2**63 - 1, (2,), np.int64)),
        ("int32[2](-3,1_000)", Box(-3, 1000, (2,), np.int32)),
        ("discrete(6)", Discrete(6)),
        ("multidiscrete[3,4]", MultiDiscrete([3, 4])),
        ("discrete(750)[12]", MultiDiscrete([750] * 12)),
        ("discrete(5)[2,3]", MultiDiscrete(np.full((2, 3), 5))),
        ("multibinary[7]", MultiBinary([7])),
        ("multibinary[2,3]", MultiBinary([2, 3])),
        ("(float[1],)", Tuple([real(1)])),
        ("(float[1])", real(1)),
        ("float[3,]", real(3)),
        ("(float[1], (discrete(2),))", Tuple([real(1), Tuple([Discrete(2)])])),
        (
            " {units:{kind:discrete(750)[12],\n features : float [12,32]} , clock: float[1]}\n",
            Dict(
                units=Dict(kind=MultiDiscrete([750] * 12), features=real(12, 32)), clock=real(1)
            ),
        ),
        ("{_a1: (discrete(2),)}", Dict(_a1=Tuple([Discrete(2)]))),
    ],
)  # fmt: skip
def test_texts_and_their_spaces(text, space):
    made = parse_space(text, "obs")
    assert made == space
    assert made.dtype == space.dtype


def group(codes, entities, features):
    return Dict(kind=MultiDiscrete([codes] * entities), features=real(entities, features))


def test_reference_names_the_reference_spaces():
    space = Dict(
        group0=group(750, 12, 32),
        group1=group(6, 24, 8),
        group2=group(1501, 20, 8),
        group3=group(40, 32, 16),
    )
    assert parse_space(" reference ", "obs", NAMED_OBS) == space
    assert parse_space("(reference, discrete(2))", "obs", NAMED_OBS) == Tuple([space, Discrete(2)])
    assert parse_space("reference", "act", NAMED_ACT) == Discrete(128)


KINDS = "float, float16, float32, float64, uint8, int8, int16, int32, int64, discrete, "
KINDS += "multidiscrete, multibinary"
FORMS = f"expected {{name: space}}, (space, space) or one of {KINDS}"
COUNT = "expected a whole number from 1 to 2,147,483,648"
NESTED = "(" * 20 + "float[1]" + ",)" * 20


@pytest.mark.parametrize(
    ("text", "why", "place"),
    [
        ("", "invalid syntax", "-->"),
        ("float", "expected a form such as float[4]", "-->float"),
        ("float[0]", COUNT, "float[-->0]"),
        ("float[-2]", COUNT, "float[-->-2]"),
        ("float[2.5]", COUNT, "float[-->2.5]"),
        ("float[True]", COUNT, "float[-->True]"),
        ("float[1__0]", "invalid decimal literal", "float[1-->__0]"),
        ("float[]", "invalid syntax", "float[-->]"),
        ("float[3", "'[' was never closed", "float-->[3"),
        ("float[3]]", "unmatched ']'", "float[3]-->]"),
        ("discrete(3) [2] more", "invalid syntax", "discrete(3) [2] -->more"),
        ("float[3](1,0)", "expected two bounds, the lower one first", "float[3](-->1,0)"),
        ("float[3](1,1)", "expected two bounds, the lower one first", "float[3](-->1,1)"),
        ("float[3](1)", "expected two bounds, the lower one first", "float[3](-->1)"),
        ("float[3](0,inf)", "expected a number that float32 can hold", "float[3](0,-->inf)"),
        ("float16[3](0,1e5)", "expected a number that float16 can hold", "float16[3](0,-->1e5)"),
        ("uint8[3](0,256)", "expected a whole number that uint8 can hold", "uint8[3](0,-->256)"),
        ("uint8[3](-1,9)", "expected a whole number that uint8 can hold", "uint8[3](-->-1,9)"),
        ("uint8[3](0,.5)", "expected a whole number that uint8 can hold", "uint8[3](0,-->.5)"),
        ("discrete(x)", COUNT, "discrete(-->x)"),
        ("discrete[3]", "expected a form such as discrete(4)", "-->discrete[3]"),
        ("discrete(3", "'(' was never closed", "discrete-->(3"),
        ("discrete(3_000_000_000)", COUNT, "discrete(-->3_000_000_000)"),
        ("float[20_000,20_000]", "more than 100,000,000 values", "float[-->20_000,20_000]"),
        ("{}", FORMS, "-->{}"),
        ("()", FORMS, "-->()"),
        ("open('x')", FORMS, "-->open('x')"),
        ("{1: float[1]}", "expected different names", "-->{1: float[1]}"),
        ("{**a}", "expected different names", "-->{**a}"),
        ("{a: float[1]", "'{' was never closed", "-->{a: float[1]"),
        ("{a: float[1], a: float[2]}", "expected different names", "-->{a: float[1], a: float[2]}"),
        (NESTED, "nested deeper than 20", "(" * 20 + "-->" + "float[1]" + ",)" * 11 + "..."),
        (
            "{units: {kind: discrete(750)[12], features: float[12.5,32]}, clock: float[1]}",
            COUNT,
            "...ete(750)[12], features: float[-->12.5,32]}, clock: float[1]}",
        ),
        ("{a:\n\n float[0],\n b: float[1]}", COUNT, "{a: float[-->0], b: float[1]}"),
    ],
)  # fmt: skip
def test_a_syntax_error_is_shown_with_its_position(text, why, place):
    with pytest.raises(BadInput) as caught:
        parse_space(text, "env.kwargs: obs")
    assert str(caught.value) == f'env.kwargs: obs: {why} at the --> in "{place}"'


def test_an_unknown_word_is_an_error_with_the_nearest_one():
    with pytest.raises(BadInput) as caught:
        parse_space("{a: flaot[3]}", "obs")
    assert str(caught.value).endswith('at the --> in "{a: -->flaot[3]}". Did you mean "float"?')
    with pytest.raises(BadInput, match=r'Did you mean "reference"\?'):
        parse_space("referense", "obs", NAMED_OBS)


@pytest.mark.parametrize("value", [None, 7, {"a": "float[1]"}])
def test_a_space_must_be_a_text(value):
    with pytest.raises(BadInput, match=r'^obs must be a text such as "float\[4\]", got '):
        parse_space(value, "obs")
