"""Arguments that are added and removed in the text of a call, held against the tree of it."""

import ast
import io
import tokenize

import hypothesis.strategies as st
import pytest
from hypothesis import given

from jaxresid.linter.fixes.edits import remove_arguments, set_keyword
from jaxresid.linter.text.source import SourceText

_blanks = st.sampled_from(["", " ", "\n    ", " # c, (x)\n  ", "\n\n", " \\\n ", "\t"])
_VALUES = """
x | (x) | (( x )) | ((a, b)) | f(1, 2) | 's,(' | lambda a, b: a | [1, (2)] | é | ö(é, k=1)
| (x if y else z) | (a for a in b)
"""
_LONG = ["'''a\n,)'''", "(\n y # q\n)"]
_values = st.sampled_from([*_VALUES.replace("\n", " ").split(" | "), *_LONG]).map(str.strip)


@st.composite
def _calls(draw):
    """Return a module with a call in its one statement."""
    text = draw(st.sampled_from(["f", "(f)", "a.b(1)", "(a\n.b)", "f[0]"])) + "(" + draw(_blanks)
    npositional, nkeywords = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    count = npositional + nkeywords
    for index in range(count):
        equal = draw(st.sampled_from(["=", " = "]))
        text += f"k{index}{equal}" if index >= npositional else ""
        text += draw(_values) + draw(_blanks)
        if index + 1 < count or draw(st.booleans()):
            text += "," + draw(_blanks)
    return f"z = [ü, {text})]\n"


def _read(text):
    return SourceText("model.py", text), ast.parse(text).body[0].value.elts[1]


def _shown(call):
    return [ast.unparse(a) for a in (*call.args, *call.keywords)]


def _comments(text):
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [t.string for t in tokens if t.type == tokenize.COMMENT]


@given(_calls())
def test_an_added_keyword_is_the_last_argument(text):
    source, call = _read(text)
    after = source.edited([set_keyword(source, call, "new", "g(1)")])
    _, changed = _read(after)
    assert _shown(changed) == [*_shown(call), "new=g(1)"]
    assert _comments(after) == _comments(text)


@given(_calls(), st.data())
def test_removed_arguments_are_gone_and_the_others_stay(text, data):
    source, call = _read(text)
    values = [*call.args, *(k.value for k in call.keywords)]
    gone = data.draw(st.sets(st.sampled_from(range(len(values))) if values else st.nothing()))
    after = source.edited([remove_arguments(source, call, [values[i] for i in gone])])
    _, changed = _read(after)
    assert _shown(changed) == [a for i, a in enumerate(_shown(call)) if i not in gone]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f()", "f(new=1)"),
        ("f(a )", "f(a, new=1 )"),
        ("f(a, )", "f(a, new=1, )"),
        ("f(\n    a,\n    b\n)", "f(\n    a,\n    b, new=1\n)"),
        ("f(\n    a,\n    b, )", "f(\n    a,\n    b, new=1, )"),
        ("f(a,\n)", "f(a, new=1,\n)"),
        ("f(\n    a,\n    b, c\n)", "f(\n    a,\n    b, c, new=1\n)"),
        ("f(\n    a,\n    b,  # why\n)", "f(\n    a,\n    b,\n    new=1,  # why\n)"),
        ("f(\n    a,  # x\n    b,\n)", "f(\n    a,  # x\n    b,\n    new=1,\n)"),
        ("f(\n    a,\n)", "f(\n    a, new=1,\n)"),
    ],
)
def test_a_keyword_is_written_as_the_others_are(before, after):
    source = SourceText("model.py", before)
    call = ast.parse(before).body[0].value
    assert source.edited([set_keyword(source, call, "new", "1")]) == after


@pytest.mark.parametrize(
    ("before", "removed", "after"),
    [
        ("f(((a)), b)", [1], "f(((a)))"),
        ("f(a, b, c,)", [1, 2], "f(a,)"),
        ("f((a), k=((b)), c=d)", [0, 1], "f(c=d)"),
        ("f(\n    a,\n    k=b,\n)", [0], "f(\n    k=b,\n)"),
        ("f( a )", [0], "f( )"),
    ],
)
def test_no_comma_stays_behind(before, removed, after):
    source = SourceText("model.py", before)
    call = ast.parse(before).body[0].value
    values = [*call.args, *(k.value for k in call.keywords)]
    assert source.edited([remove_arguments(source, call, [values[i] for i in removed])]) == after


def test_a_bare_generator_takes_no_other_argument():
    text = "f(x for x in y)"
    call = ast.parse(text).body[0].value
    assert set_keyword(SourceText("model.py", text), call, "new", "1") is None
