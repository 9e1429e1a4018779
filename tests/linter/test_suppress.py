"""Suppression comments: which there are, what they silence, which are useless, adding them."""

import ast
import io
import os
import sysconfig
import time
import tokenize
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxresid.base.violations import Edit, Span, Violation
from jaxresid.linter.text.lexer import logical_end, scan
from jaxresid.linter.text.suppress import add, apply, parse

KNOWN = {
    "JXR101": "checkpointed-loss",
    "JXR102": "checkpointed-last-stage",
    "JXR201": "uncalled-policy-factory",
}


def violation(*rows, code="JXR101"):
    span = Span(rows[0], 0, rows[0], 1)
    return Violation(code, KNOWN.get(code, code), "warning", "m", "-", span, noqa_rows=rows)


def kinds(text):
    return [(i.kind, [c.text for c in i.codes]) for i in parse(text).items]


def rows(text):
    (item,) = parse(text).items
    return item.rows


def outcome(text, *violations, enabled=lambda code: True, **options):
    return apply(violations, parse(text), enabled=enabled, known=KNOWN, **options)


def silenced(text, *at, code="JXR101"):
    return not outcome(text, violation(*at, code=code))[0]


def useless(text, *violations, **options):
    return outcome(text, *violations, **options)[1]


def edited(text, edits):
    """The text after edits; written apart from the linter's own, to check it."""
    lines = text.split("\n")
    for edit in sorted(edits, reverse=True):
        s = edit.span
        if s.end_row > len(lines):
            lines.append("")
        before, after = lines[s.row - 1][: s.column], lines[s.end_row - 1][s.end_column :]
        lines[s.row - 1 : s.end_row] = (before + edit.text + after).split("\n")
    return "\n".join(lines)


def fixed(text, *violations, **options):
    """The text after all fixes, one at a time as overlapping ones are made."""
    for _ in range(10):
        fixes = [v.fix for v in useless(text, *violations, **options) if v.fix]
        if not fixes:
            return text
        assert fixes[0].applicability == "safe"
        text = edited(text, fixes[0].edits)
    raise AssertionError("does not converge")


# --- the comments there are


@pytest.mark.parametrize(
    ("comment", "codes"),
    [
        ("# noqa", []),
        ("#noqa", []),
        ("# NoQA", []),
        ("## noqa", []),
        ("# noqa # why", []),
        ("# noqa why", []),
        ("# noqa JXR101", []),
        ("# noqa: JXR101", ["JXR101"]),
        ("#NOQA:JXR101", ["JXR101"]),
        ("# noqa : JXR101,E501", ["JXR101", "E501"]),
        ("# noqa: JXR101 E501,,W1", ["JXR101", "E501", "W1"]),
        ("# noqa: E501JXR101", ["E501", "JXR101"]),
        ("# noqa: JXR101 because", ["JXR101"]),
        ("# noqa: JXR101, because", ["JXR101"]),
        ("# noqa: JXR101#because", ["JXR101"]),
        ("# type: ignore # noqa: JXR101", ["JXR101"]),
    ],
)
def test_noqa_as_ruff_reads_it(comment, codes):
    assert kinds(f"x = 1  {comment}") == [("noqa", codes)]


@pytest.mark.parametrize(
    "comment",
    [
        "# noqa:",
        "# noqa: because",
        "# noqa: jxr101",
        "# noqa: JXR",
        "# noqa: JXR101because",
        "# noqa: JXR101-b",
        "# noqa: E501, JXR101b",
        "# noqaJXR101",
        "# noqa_x",
        "# noqa.",
        "# noqa, JXR101",
        "# see noqa: JXR101",
        "# xnoqa",
        "# ruff: noqa",
        "# flake8: noqa: JXR101",
    ],
)
def test_what_ruff_takes_for_no_noqa_of_a_line(comment):
    assert kinds(f"x = 1  {comment}") == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("  # flake8:noqa:JXR1", [("file-noqa", ["JXR1"])]),
        ("# RUFF: NOQA: JXR101, E501", [("file-noqa", ["JXR101", "E501"])]),
        ("# flake8: noqa: JXR101", [("file-noqa", ["JXR101"])]),
        ("# x # ruff: noqa: JXR101 # y", [("file-noqa", ["JXR101"])]),
        ("# ruff: noqa", []),  # for ruff alone
        ("  # flake8:noqa", []),  # for flake8 and ruff
        ("# ruff: noqa # x", []),
        ("# ruff: noqa, x", []),
        ("# ruff: noqa:", []),
        ("# jaxresid: file-ignore", [("file-ignore", [])]),
        ("#jaxresid:file-ignore [JXR1]  why", [("file-ignore", ["JXR1"])]),
    ],
)
def test_forms_for_a_file(line, found):
    assert kinds(f"x = 1\n{line}\ny = 2\n") == found
    assert all(i.rows is None for i in parse(f"{line}\n").items)


@pytest.mark.parametrize(
    ("comment", "codes"),
    [
        ("# jaxresid: ignore", []),
        ("#jaxresid:ignore", []),
        ("# jaxresid: ignore as the loss is small", []),
        ("# jaxresid: ignore, really", []),
        ("# jaxresid: ignore[JXR101]", ["JXR101"]),
        ("# jaxresid: ignore[JXR101] the loss is small", ["JXR101"]),
        ("# jaxresid: ignore[ JXR101,checkpointed-loss ]", ["JXR101", "checkpointed-loss"]),
        ("# type: ignore  # jaxresid: ignore[JXR1]  # more", ["JXR1"]),
    ],
)
def test_our_own_form(comment, codes):
    assert kinds(f"x = 1  {comment}") == [("ignore", codes)]


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("# jaxresid: ignore[]", "empty"),
        ("# jaxresid: ignore[JXR101", "not in brackets"),
        ("# jaxresid: ignore: JXR101", "not in brackets"),
        ("# jaxresid: ignore(JXR101)", "not in brackets"),
        ("# jaxresid: ignore JXR101", "not in brackets"),
        ("# jaxresid: disable[JXR101]", "`disable` is not a suppression"),
        ("# jaxresid: ignore-file[JXR101]", "`ignore-file` is not a suppression"),
        ("# jaxresid: file-ignore[JXR101]", "shares its line with code"),
    ],
)
def test_mistakes_in_our_form_silence_nothing_and_are_reported(comment, words):
    text = f"x = 1  {comment}\n"
    kept, (mistake,) = outcome(text, violation(1))
    assert len(kept) == 1
    assert mistake.code == "JXR001"
    assert words in mistake.message
    assert mistake.fix is None
    assert mistake.span == Span(1, 7, 1, 7 + len(comment))


@pytest.mark.parametrize("comment", ["# jaxresid: a tool", "# jaxresid ignore[JXR101]"])
def test_prose_is_no_suppression(comment):
    assert kinds(comment) == []


@pytest.mark.parametrize(
    "text",
    [
        "'# noqa'",
        "'''\n# noqa\n# jaxresid: file-ignore\n'''",
        "x = 'a\\' # noqa'",
        'f"{x} # noqa"',
        'f"{x:# noqa}"',
        "f\"{x['a # noqa']}\"",
        'f"{x["a # noqa"]!r:>{w}} # noqa"',
        'rf"\\{x} # noqa"',
        'f"{d[":"]} # noqa"',
        'f"{x:{{1: 2}[1]}} # noqa"',
        'f"{x:>{w["}"]}}} # noqa"',
        'f"{ {1: [2, "]"]}[1] } # noqa"',
        'f"{(lambda: "}")()} # noqa"',
        'f"{f"{x:{"}"}}"} # noqa"',
        'f"{{ # noqa"',
        "f'''{f'{1}'}\n# noqa {\n1}\n # noqa'''",
        "r'\\\\' + \"# noqa'\"",
        "x = 'a \\\n # noqa'",
    ],
)
def test_strings_hold_no_comments(text):
    assert kinds(text) == []
    assert kinds(f"{text}  # noqa") == [("noqa", [])]


@pytest.mark.parametrize(
    "text",
    ["x = (1  # noqa\n", "x = 'a\ny = 1  # noqa", 'x = f"{a\ny = 1  # noqa', "x = ]\n?  # noqa"],
)
def test_broken_files_keep_their_comments(text):
    assert kinds(text) == [("noqa", [])]


def test_spans_count_code_points():
    (item,) = parse("x = '\U0001f600'  # noqa: E501, JXR101 why").items
    assert item.span == Span(1, 9, 1, 29)
    assert [c.span for c in item.codes] == [Span(1, 17, 1, 21), Span(1, 23, 1, 29)]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_rows_are_counted_for_every_line_end(newline):
    text = newline.join(["'''", "\x0c\u2028'''", "x = \\", "  1  # noqa"])
    assert rows(text) == (4,)


# --- the rows that they cover


@pytest.mark.parametrize(
    ("text", "covered"),
    [
        ("x\n# jaxresid: ignore\ny\nz\n", (2, 3)),
        ("# jaxresid: ignore\n\n# more\ny = (\n  1,\n)\nz", (1, 4, 5, 6)),
        ("# jaxresid: ignore\ny = '''\n\n'''\nz", (1, 2, 3, 4)),
        ("# jaxresid: ignore\ny = 1 + \\\n  2\nz", (1, 2, 3)),
        ("# jaxresid: ignore\n@a\n@b(\n)\n# c\ndef f(\n  x,\n):\n  pass\n", (1, 2, 3, 4, 6, 7, 8)),
        ("@a\n# jaxresid: ignore\n@b\nclass C:\n  pass\n", (2, 3, 4)),
        ("# jaxresid: ignore\nwith (a,\n  b):\n  pass\n", (1, 2, 3)),
        ("if a:\n  b\n  # jaxresid: ignore\nc\nd", (3, 4)),
        ("f(\n  a,\n  # jaxresid: ignore\n\n  # more\n  b,\n  c,\n)\n", (3, 6)),
        ("x\n# jaxresid: ignore", (2,)),
        ("f(\n  # jaxresid: ignore", (2,)),
        ("# jaxresid: ignore\nx", (1, 2)),
        ("x  # jaxresid: ignore\ny", (1,)),
        ("# noqa: JXR101\nx", (1,)),
    ],
)
def test_rows(text, covered):
    assert rows(text) == covered


def test_a_comment_anywhere_in_the_statement_silences_it():
    text = "x = f(\n  1,\n  2,\n)  # noqa: JXR101\n"
    assert silenced(text, 1, 2, 3, 4)
    assert not silenced(text, 1)
    assert not silenced(text, 5)


def test_a_decorators_violation_is_silenced_on_its_row_and_on_that_of_the_def():
    for text in ("@ck  # {}\n@other\ndef f(): ...\n", "@ck\n@other\ndef f(): ...  # {}\n"):
        for comment in ("noqa", "noqa: JXR101", "jaxresid: ignore[JXR101]", "jaxresid: ignore"):
            assert silenced(text.format(comment), 1, 3)
    assert not silenced("@ck\n@other  # noqa\ndef f(): ...\n", 1, 3)
    assert silenced("# jaxresid: ignore\n@ck\n@other\ndef f(): ...\n", 2, 4)


def test_without_rows_the_span_counts():
    span = Span(2, 0, 3, 1)
    found = Violation("JXR101", "checkpointed-loss", "warning", "m", "-", span)
    assert outcome("f(\na,\nb)  # noqa", found)[0] == ()
    assert outcome("f(  # noqa\na,\nb)", found)[0] == (found,)


# --- what they silence


@pytest.mark.parametrize(
    "code", ["JXR101", "JXR10", "JXR1", "JXR", "checkpointed-loss", "JXR2, JXR101"]
)
def test_codes_prefixes_and_names(code):
    assert silenced(f"x  # jaxresid: ignore[{code}]", 1)
    assert silenced(f"# jaxresid: file-ignore[{code}]", 9)


@pytest.mark.parametrize("code", ["JXR102", "JXR2", "JX", "J", "JXR1011", "checkpointed", "E501"])
def test_other_codes_do_not(code):
    assert not silenced(f"x  # jaxresid: ignore[{code}]", 1)


def test_blanket_and_file_forms():
    for text in ("# ruff: noqa: JXR1", "# flake8: noqa: JXR101", "# jaxresid: file-ignore"):
        assert silenced(f"x\n{text}\n", 1)
    for text in ("# ruff: noqa", "# flake8: noqa", "# flake8: noqa: E501"):
        assert not silenced(f"{text}\nx\n", 2)
    assert not silenced("# ruff: noqa: JXR102", 1)


def test_what_cannot_be_linted_cannot_be_silenced():
    for name in ("invalid-syntax", "unreadable"):
        assert not silenced("x  # noqa\n# jaxresid: file-ignore", 1, code=name)


def test_order_is_kept():
    found = [violation(3), violation(1), violation(2)]
    assert outcome("a\nb  # noqa\nc", *found)[0] == (found[0], found[1])


# --- useless ones


def test_a_used_suppression_is_not_reported():
    for text in (
        "x  # jaxresid: ignore[JXR101]",
        "x  # noqa: JXR101",
        "x  # jaxresid: ignore",
        "# jaxresid: file-ignore[checkpointed-loss]",
        "x  # jaxresid: ignore[JXR1]",
    ):
        assert outcome(text, violation(1)) == ((), ())


def test_an_unused_code_is_reported_where_it_stands():
    (found,) = useless("x  # noqa: E501, JXR101\n", path="a.py")
    assert (found.code, found.name, found.severity) == ("JXR001", "unused-suppression", "warning")
    assert (found.path, found.span, found.noqa_rows) == ("a.py", Span(1, 17, 1, 23), (1,))
    assert found.message == "`JXR101` silences nothing here"


@pytest.mark.parametrize("text", ["x  # noqa", "x  # noqa: E501, XYZ123", "# ruff: noqa"])
def test_what_may_be_meant_for_other_tools_is_never_reported(text):
    assert useless(text) == ()


@pytest.mark.parametrize("code", ["JXR101", "checkpointed-loss", "JXR1"])
@pytest.mark.parametrize("form", ["x  # jaxresid: ignore[{}]", "# jaxresid: file-ignore[{}]"])
def test_rules_that_are_off_are_not_judged(form, code):
    text = form.format(code)
    assert len(useless(text)) == 1
    assert useless(text, enabled=lambda c: c != "JXR101") == ()
    assert useless(text, enabled=lambda c: False) == ()


def test_a_bare_one_is_judged_where_all_but_optional_rules_are_on():
    text = "x  # jaxresid: ignore"
    assert len(useless(text)) == 1
    assert useless(text, enabled=lambda c: c != "JXR102") == ()
    assert len(useless(text, enabled=lambda c: c != "JXR102", optional={"JXR102"})) == 1
    assert useless(text, enabled=lambda c: False, optional=KNOWN) == ()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("JXR110", "`JXR110` is not a rule of jaxresid; did you mean `JXR10"),
        ("jxr101", "did you mean `JXR101`?"),
        ("checkpoint-loss", "did you mean `checkpointed-loss`?"),
        ("unused-supression", "did you mean `unused-suppression`?"),
        ("E501", "`E501` is not a rule of jaxresid"),
    ],
)
def test_unknown_codes_in_our_form(code, words):
    (found,) = useless(f"x  # jaxresid: ignore[{code}]", enabled=lambda c: False)
    assert words in found.message


def test_an_unknown_code_of_ours_in_noqa():
    (found,) = useless("x  # noqa: JXR999, JXRA1")
    assert found.message.startswith("`JXR999` is not a rule")


def test_a_code_that_another_makes_needless_is_reported():
    for text in ("x  # jaxresid: ignore[JXR101, JXR101]", "x  # noqa: JXR1, JXR101"):
        (found,) = useless(text, violation(1))
        assert found.span == parse(text).items[0].codes[1].span


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("x  # jaxresid: ignore[JXR101]\n", "x\n"),
        ("x # jaxresid: ignore[JXR101] as it is small  \n", "x\n"),
        ("x  # jaxresid: ignore[JXR101, JXR201]\n", "x\n"),
        ("x  # jaxresid: ignore[JXR102, JXR101]\n", "x  # jaxresid: ignore[JXR102]\n"),
        ("x  # jaxresid: ignore[JXR101, JXR102] why\n", "x  # jaxresid: ignore[JXR102] why\n"),
        ("x  # jaxresid: ignore[JXR101]  # type: ignore\n", "x  # type: ignore\n"),
        ("x  # type: ignore  # jaxresid: ignore[JXR101]\n", "x  # type: ignore\n"),
        ("x  # a # noqa: JXR101 # b\n", "x  # a # b\n"),
        ("x  # noqa: JXR101 some words\n", "x  # some words\n"),
        ("x  # noqa: E501,JXR101\n", "x  # noqa: E501\n"),
        ("x  # noqa: JXR101,E501\n", "x  # noqa: E501\n"),
        ("x  # noqa: E501,JXR101,W1 why\n", "x  # noqa: E501,W1 why\n"),
        ("x  # noqa: E501JXR101W1\n", "x  # noqa: E501W1\n"),
        ("a\n  # jaxresid: ignore[JXR101]\nb\n", "a\nb\n"),
        ("a\n# jaxresid: file-ignore[JXR101]", "a"),
        ("# ruff: noqa: JXR101\na\n", "a\n"),
        ("  # jaxresid: ignore[JXR101]  # b\nx", "  # b\nx"),
        ("# jaxresid: ignore[JXRX]\n", ""),
    ],
)
def test_the_fix_removes_what_is_useless_and_no_more(text, after):
    assert fixed(text, violation(1, code="JXR102")) == after


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("x  # jaxresid: ignore\n", "x\n"),
        ("x  # jaxresid: ignore as it is small # b\n", "x  # b\n"),
        ("# jaxresid: file-ignore", ""),
    ],
)
def test_the_fix_removes_bare_ones(text, after):
    assert fixed(text) == after


def test_jxr001_is_silenced_only_by_name():
    for text in (
        "x  # jaxresid: ignore[JXR101, JXR001]",
        "x  # noqa: JXR101, JXR001",
        "x  # noqa: JXR101  # jaxresid: ignore[unused-suppression]",
        "# jaxresid: ignore[JXR001]\nx  # noqa: JXR101",
        "# jaxresid: file-ignore[JXR001]\nx  # noqa: JXR101",
        "# jaxresid: ignore[JXR101, JXR001]\nx",
        "x  # jaxresid: ignore[JXR001]  # jaxresid: ignore[nonsense]",
    ):
        assert useless(text) == (), text
    assert len(useless("# jaxresid: file-ignore\nx  # noqa: JXR101")) == 2
    assert len(useless("x  # noqa: JXR101  # noqa")) == 1
    assert len(useless("x  # jaxresid: ignore[JXR101, JXR]")) == 2


def test_a_useless_jxr001_is_reported():
    (found,) = useless("x  # jaxresid: ignore[JXR001]")
    assert "`JXR001` silences nothing" in found.message
    assert fixed("x  # jaxresid: ignore[JXR001]") == "x"


# --- adding them


def added(text, *violations, reason="", **options):
    return edited(text, add(text.split("\n"), violations, reason, **options))


@pytest.mark.parametrize(
    ("text", "at", "after"),
    [
        ("x\ny", [1], "x  # jaxresid: ignore[JXR101]\ny"),
        ("x  \ny", [1], "x  # jaxresid: ignore[JXR101]\ny"),
        ("x  # a\n", [1], "x  # a  # jaxresid: ignore[JXR101]\n"),
        ("x(\n1,\n)\n", [1, 2, 3], "x(\n1,\n)  # jaxresid: ignore[JXR101]\n"),
        ("x(\n1,\n\n", [1, 2, 3], "x(\n1,  # jaxresid: ignore[JXR101]\n\n"),
        ("x(\n1,\n)\n", [1], "x(  # jaxresid: ignore[JXR101]\n1,\n)\n"),
        ("x = 1 + \\\n 2\n", [1, 2], "x = 1 + \\\n 2  # jaxresid: ignore[JXR101]\n"),
        ("  x = 1 + \\\n 2\n", [1], "  # jaxresid: ignore[JXR101]\n  x = 1 + \\\n 2\n"),
        ("a\n\tx = '''\n'''\n", [2], "a\n\t# jaxresid: ignore[JXR101]\n\tx = '''\n'''\n"),
        ("x = '''\n'''\n", [1, 2], "x = '''\n'''  # jaxresid: ignore[JXR101]\n"),
        ("x = f'''{\n1}'''\n", [1, 2], "x = f'''{\n1}'''  # jaxresid: ignore[JXR101]\n"),
        ("f(1,\n'''\n'''\n)\n", [3], "f(1,\n'''\n'''  # jaxresid: ignore[JXR101]\n)\n"),
        (
            "x  # jaxresid: ignore[JXR201]  why\n",
            [1],
            "x  # jaxresid: ignore[JXR201, JXR101]  why\n",
        ),
        ("# jaxresid: ignore[JXR2]\nx\n", [2], "# jaxresid: ignore[JXR2, JXR101]\nx\n"),
        ("x  # noqa: E501\n", [1], "x  # noqa: E501  # jaxresid: ignore[JXR101]\n"),
    ],
)
def test_where_a_comment_goes(text, at, after):
    assert added(text, violation(*at)) == after


def test_codes_of_a_row_share_a_comment():
    found = [violation(1, code=c) for c in ("JXR201", "JXR101", "JXR101")]
    assert added("x", *found) == "x  # jaxresid: ignore[JXR101, JXR201]"


def test_a_reason_follows_new_comments_on_one_line():
    assert added("x", violation(1), reason="legacy\n code ") == (
        "x  # jaxresid: ignore[JXR101] legacy code"
    )
    assert not useless(added("x", violation(1), reason="see #12"), violation(1))


def test_a_row_of_its_own_gets_the_files_line_end():
    (edit,) = add(["x = \\", "1"], [violation(1)], newline="\r\n")
    assert edit == Edit(Span(1, 0, 1, 0), "# jaxresid: ignore[JXR101]\r\n")


def test_nothing_is_added_for_what_cannot_be_silenced():
    assert add(["x"], [violation(1, code="invalid-syntax"), violation(7)]) == ()
    assert add([""], [violation(1)]) == ()


def test_a_span_ends_with_the_words_of_its_suppression():
    one, two = parse("x  # jaxresid: ignore[JXR1] why   # jaxresid: ignore  ").items
    assert (one.span.end_column, two.span.column, two.span.end_column) == (31, 34, 52)


@pytest.mark.parametrize("text", ["f(\n  # jaxresid: ignore\n \n  a,\n)\n"])
def test_rows_of_blanks_hold_nothing(text):
    assert rows(text) == (2, 4)
    assert added("x(\n1,\n  \n)", violation(1, 2, 3)) == (
        "x(\n1,  # jaxresid: ignore[JXR101]\n  \n)"
    )


def test_a_comment_above_goes_to_its_own_statement():
    text = "x = '''\n'''\ny = '''\n'''\nz = 1"
    assert added(text, violation(1)) == f"# jaxresid: ignore[JXR101]\n{text}"
    assert added(text, violation(3)) == text.replace("y", "# jaxresid: ignore[JXR101]\ny")


# Where a plain string would end in each of these, a comment would follow.
@pytest.mark.parametrize(
    "text",
    [
        'f"{d["a # noqa "]}"',
        'f"{f"{x:{"# noqa "}}"}"',
        'f"{x:{{1: 2}["# noqa "]}}"',
        'f"{(a, [b])}{"# noqa "}"',
        'f"{{{"# noqa "}"',
        "f'''{x:\n}{'''# noqa '''}'''",
        "f'''\n{1:\n}\n{'''# noqa '''}'''",
    ],
)
def test_fields_hold_strings_of_any_quote(text):
    assert kinds(text) == []
    assert kinds(f"{text}  # noqa") == [("noqa", [])]


PIECES = (
    "x = 1",
    "x = f(\n    1,\n\n    # c\n    2,\n)  # type: ignore",
    "x = 1 + \\\n    2",
    "x = '''\n# noqa {\n'''",
    "x = '''\n''' + '''\n\\\n'''; y = 1",
    "@ck(\n    1\n)\n# c\n@b\ndef f(\n    a='''\n''',\n):\n    return 1",
    "x  # jaxresid: ignore[JXR201] why",
    "# jaxresid: ignore[JXR2]\nx",
    "x  # noqa: E501  ",
    "if x: y = \\\n    1",
    "f(  # jaxresid: ignore[JXR102]\n    '''\n    ''')",
    "x = [\n    f'''\n    {x}''',\n]",
    "# c",
    "",
)


@pytest.mark.integration
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4), st.data())
def test_what_is_added_silences_and_keeps_the_tree(pieces, data):
    text = "\n".join(pieces) + "\n"
    statements = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.stmt)]
    if not statements:
        return
    found = []
    for node in data.draw(st.lists(st.sampled_from(statements), min_size=1, max_size=4)):
        last = node.end_lineno
        first = node.lineno
        if isinstance(node, ast.FunctionDef):
            first, last = node.decorator_list[0].lineno, node.lineno
        at = sorted(data.draw(st.sets(st.integers(first, last), min_size=1)))
        found.append(violation(*at, code=data.draw(st.sampled_from(sorted(KNOWN)))))
    found = list(outcome(text, *found)[0])
    after = edited(text, add(text.split("\n"), found))
    assert ast.dump(ast.parse(after)) == ast.dump(ast.parse(text))
    # Comments on rows of their own move what follows down.
    new = after.split("\n")
    old = text.split("\n")
    moved, shift = {}, 0
    for number, line in enumerate(old, 1):
        while not new[number + shift - 1].startswith(line.rstrip().split("]")[0]):
            shift += 1
        moved[number] = number + shift
    there = [violation(*(moved[r] for r in v.noqa_rows), code=v.code) for v in found]
    kept, _ = apply(there, parse(after), enabled=lambda c: True, known=KNOWN)
    assert kept == ()


# --- the scanner against Python's own


def standard_library():
    root = Path(sysconfig.get_path("stdlib"))
    names = sorted(p for p in root.glob("*.py")) + sorted((root / "email").glob("*.py"))
    return names[:: max(1, len(names) // 40)]


@pytest.mark.parametrize("path", standard_library(), ids=lambda p: p.name)
def test_comments_and_logical_lines_are_those_of_tokenize(path):
    with tokenize.open(path) as file:
        text = file.read()
    comments, logical, closed, first = [], [], set(), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.append((*token.start, token.string))
        elif token.type == tokenize.NEWLINE:
            logical.append((first, token.start[0]))
            first = 0
        elif token.type not in {
            tokenize.NL,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        }:
            first = first or token.start[0]
            if token.type == tokenize.STRING:
                closed |= set(range(token.start[0], token.end[0]))
    found = scan(text)
    assert [(c.row, c.column, c.text) for c in found.comments] == comments
    assert list(found.logical) == logical
    assert closed <= found.closed
    ends, at = [], 0
    while at < len(text):
        at, _ = logical_end(text, at)
        ends.append(text.count("\n", 0, at))
    assert {last for _, last in logical} <= set(ends)


SCRAPS = st.sampled_from([*"ab#\"'\\{}()[]:=frb \n\r@\x0c\u00e9", "# noqa", '"""', "'''"])


@given(st.lists(SCRAPS).map("".join))
def test_any_text_is_scanned(text):
    suppressions = parse(text)
    assert all(1 <= i.span.row <= len(suppressions.lines) for i in suppressions.items)
    for item in suppressions.items:
        assert suppressions.lines[item.span.row - 1][item.span.column] == "#"
    assert logical_end(text, 0)[0] <= len(text)


@pytest.mark.parametrize(
    "text",
    [
        "#" * 300_000 + " noqa",
        "# jaxresid: x" + " " * 300_000 + "noqa",
        "# noqa: " + "A1" * 150_000 + "b",
        "#" + " #" * 150_000 + "noqa",
        'f"{' * 100_000 + "# noqa",
        "(" * 300_000 + "# noqa",
        "x = 1 " * 50_000 + "# noqa",
    ],
    ids=range(7),
)
def test_long_lines_take_no_long_time(text):
    start = time.process_time()
    parse(text)
    assert time.process_time() - start < 2


def test_files_without_suppressions_are_not_scanned(monkeypatch):
    monkeypatch.setattr("jaxresid.linter.text.suppress.scan", None)
    assert parse("x = '''  # no qa") == parse("")
    assert os.sep not in parse("").lines
