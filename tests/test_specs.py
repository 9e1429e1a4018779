"""The SPEC grammar, without jax."""

import pytest

from jaxresid.errors import SpecError
from jaxresid.specs import ArraySpec, parse_spec


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
