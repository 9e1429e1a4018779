"""The SPEC grammar, without jax."""

import pytest

from jaxresid.base.errors import InputsError, SpecError
from jaxresid.targets.specs import ArraySpec, parse_axes, parse_spec


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("f32[64,512]", ArraySpec("float32", (64, 512))),
        ("bf16[8, 128]", ArraySpec("bfloat16", (8, 128))),
        ("i32[]", ArraySpec("int32", ())),
        ("key[]", ArraySpec("key", ())),
        ("float32[3]", ArraySpec("float32", (3,))),
        ("bool[0]", ArraySpec("bool", (0,))),
        ("f8_e4m3fn[2]", ArraySpec("float8_e4m3fn", (2,))),
        ("f32[1_000]", ArraySpec("float32", (1000,))),
        (
            '{"w": f32[4,4], "b": f32[4]}',
            {"w": ArraySpec("float32", (4, 4)), "b": ArraySpec("float32", (4,))},
        ),
        ('[f32[2], None, 3, "adam"]', [ArraySpec("float32", (2,)), None, 3, "adam"]),
        ("(f32[2], True)", (ArraySpec("float32", (2,)), True)),
        ("(f32[2],)", (ArraySpec("float32", (2,)),)),
        ("(f32[2])", ArraySpec("float32", (2,))),
        ("((1, 2))", (1, 2)),
        ("()", ()),
        ("[]", []),
        ("{}", {}),
        ("[[], {'a': ()},]", [[], {"a": ()}]),
        ("{0: 1}", {0: 1}),
        ("-1.5e-3", -1.5e-3),
        ("1e-3", 1e-3),
        (".5", 0.5),
        ("2j", 2j),
        ("False", False),
        (r"'it\'s'", "it's"),
        ('"[f32[2]]"', "[f32[2]]"),
    ],
)
def test_parses(text, value):
    parsed = parse_spec(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("", 0, "a value is missing"),
        ("   ", 0, "a value is missing"),
        ("f32", 3, "needs a shape"),
        ("1e400", 0, "1e400 is too large for a float"),
        ("[f32[2], -1e400]", 9, "-1e400 is too large for a float"),
        ("1e400j", 0, "too large for a float"),
        ('{1: f32[2], "a": 2}', 12, "cannot sort the keys 1 and 'a'; give keys of one type"),
        ('{"a": f32[2], b"a": 2}', 14, "cannot sort the keys 'a' and b'a'"),
        ("{1j: 1, 2j: 2}", 8, "cannot sort the keys 1j and 2j"),
        ("""{"a": 1, 'a': 2}""", 9, "the key 'a' appears twice"),
        ("{1: 1, 1.0: 2}", 7, "the key 1.0 appears twice"),
        ("f32[3", 5, "expected ']'"),
        ("f32[3,", 6, "not closed"),
        ("f32[-3]", 4, "at least 0, not -3"),
        ("f32[2, inf]", 7, "not inf"),
        ("f32[nan]", 4, "not nan"),
        ("f32[1.5]", 4, "not 1.5"),
        ("f32[1e3]", 4, "not 1e3"),
        ("f32[n]", 4, "not n"),
        ("g32[3]", 0, "unknown dtype 'g32'"),
        ("adam", 0, "strings need quotes"),
        ("f32[3] f32[4]", 7, "unexpected 'f32' after the value"),
        ("{w: f32[3]}", 1, "quoted key"),
        ('{"w" f32[3]}', 5, "':' after the key"),
        ('{"w": f32[3]', 12, "'}' or ',' in the dict"),
        ("[f32[2]", 7, "']' or ',' in the list"),
        ('"open', 0, "the string is not closed"),
        ("f32[2] $", 7, "unexpected character '$'"),
        ("]", 0, "unexpected ']'"),
    ],
)
def test_says_where_it_fails(text, column, reason):
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    message, shown, caret = str(caught.value).split("\n")
    assert reason in message
    assert caught.value.column == column
    assert shown == f"  {text}"
    assert caret.index("^") == column + 2


AXES = {"data": 4, "model": 2}


def split(*entries, shape=(8, 8)):
    return ArraySpec("float32", shape, entries)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("f32[8,8]@data,model", split(("data",), ("model",))),
        ("f32[8,8] @ data", split(("data",))),
        ("f32[8,8]@None,model", split((), ("model",))),
        ("f32[8,8]@(data,model),None", split(("data", "model"), ())),
        ("f32[8,8]@()", split()),
        ("f32[]@()", split(shape=())),
        (
            '{"w": f32[8,8]@data, "b": f32[8]@model}',
            {"w": split(("data",)), "b": split(("model",), shape=(8,))},
        ),
        ("[f32[8]@data, None, 3]", [split(("data",), shape=(8,)), None, 3]),
        ("[f32[8,8]@data, f32[8,8]]", [split(("data",)), split()]),
        ("[f32[8,8]@data, (1, 2), True]", [split(("data",)), (1, 2), True]),
        ("(f32[8,8]@(),)", (split(),)),
    ],
)
def test_parses_a_split(text, value):
    assert parse_spec(text, AXES) == value


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("f32[8,8]@dta", 9, "'dta' is not an axis; --mesh has data, model; did you mean `data`?"),
        ("f32[8,8]@", 9, "an axis is missing"),
        ("f32[8,8]@data,data", 14, "the axis data already splits another dimension"),
        ("f32[8]@data,model", 12, "the shape has only 1 dimension"),
        ("f32[8,6]@None,data", 14, "dimension 1 of size 6 cannot be split evenly over data=4"),
        ("f32[4,8]@(data,model)", 9, "cannot be split evenly over data=4 and model=2"),
        ("f32[8,8]@(data", 14, "expected ')'"),
        ("f32[8]@data]", 11, "unexpected ']'"),
    ],
)
def test_says_what_is_wrong_with_a_split(text, column, reason):
    with pytest.raises(SpecError) as error:
        parse_spec(text, AXES)
    assert error.value.column == column
    assert reason in str(error.value)


@pytest.mark.parametrize("brackets", ["[]", "()", ("{0:", "}")])
def test_says_that_containers_are_nested_too_deep(brackets):
    opening, closing = brackets
    assert parse_spec(opening * 100 + "1" + closing * 100)
    with pytest.raises(SpecError, match="nested more than 100 deep") as error:
        parse_spec(opening * 3000 + "f32[2]" + closing * 3000)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    "text", ["9" * 5000, "f32[" + "9" * 5000 + "]", "a" * 5000, "[1" + " " * 5000 + "1]"]
)
def test_shows_what_is_around_the_mistake_in_a_long_spec(text):
    with pytest.raises(SpecError) as error:
        parse_spec(text)
    reason, spec, caret = str(error.value).split("\n")
    assert len(reason) < 300
    assert len(spec) < 130
    at = caret.index("^")
    assert spec[at : at + 1] == text[error.value.column : error.value.column + 1]


def test_a_split_needs_a_mesh():
    with pytest.raises(SpecError, match="add --mesh"):
        parse_spec("f32[8]@data")


def test_the_axes_of_a_mesh():
    assert parse_axes("data=4, model=2") == {"data": 4, "model": 2}


@pytest.mark.parametrize(
    "text", ["", "data", "data=", "data=0", "data=x", "=4", "None=2", "a=2,,b=2"]
)
def test_what_is_no_mesh(text):
    with pytest.raises(InputsError, match="is not AXIS=SIZE"):
        parse_axes(text)


def test_an_axis_stands_once():
    with pytest.raises(InputsError, match="twice"):
        parse_axes("a=2,a=2")
