"""Notebooks: one module from the cells, positions back into them, edits written byte for byte."""

import ast
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxresid.linter
from jaxresid.base.violations import Edit, Span
from jaxresid.cli.main import run
from jaxresid.linter.text.notebook import read


def code(source, **metadata):
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": metadata,
        "outputs": [],
        "source": source,
    }


def prose(source):
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def file(*cells, metadata=None, ensure_ascii=False, newline="\n", **options):
    """The bytes of a notebook as nbformat writes them."""
    content = {"cells": cells, "metadata": metadata or {}, "nbformat": 4, "nbformat_minor": 5}
    text = json.dumps(content, indent=1, ensure_ascii=ensure_ascii, **options) + "\n"
    return text.replace("\n", newline).encode()


def text_of(*lines):
    return read(file(code("\n".join(lines)))).text


def parse(text):
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(text, "<test>", "exec", flags, dont_inherit=True)


def replace(row, column, end_column, text):
    return Edit(Span(row, column, row, end_column), text)


# --- reading


def test_code_cells_are_joined_and_each_ends_with_a_newline():
    raw = file(code(["a = 1\n", "b = 2"]), prose(["# t"]), code("c = 3\n"), code([]), code("d"))
    assert read(raw).text == "a = 1\nb = 2\nc = 3\n\nd\n"


def test_cells_of_all_kinds_are_counted():
    notebook = read(file(prose("t"), code("a\nb"), {"cell_type": "raw", "source": "x"}, code("c")))
    assert notebook.place(Span(2, 0, 2, 1)) == (2, Span(2, 0, 2, 1))
    assert notebook.place(Span(3, 0, 3, 1)) == (4, Span(1, 0, 1, 1))
    assert [c.number for c in notebook.cells] == [2, 4]


def test_a_span_up_to_the_next_cell_stays_in_its_own():
    notebook = read(file(code("a\nb"), code("c")))
    assert notebook.place(Span(2, 0, 3, 0)) == (1, Span(2, 0, 3, 0))
    assert notebook.place(Span(9, 0, 9, 0)) == (2, Span(7, 0, 7, 0))


def test_lines_are_those_of_the_notebook():
    notebook = read(file(prose("t"), code(["%time x\n", "y = !ls\n", "z"])))
    assert notebook.lines(2) == ("%time x", "y = !ls", "z")
    with pytest.raises(ValueError, match="cell 1 holds no Python"):
        notebook.lines(1)


def test_lines_end_where_python_ends_them():
    notebook = read(file(code("a\r\nb\rc\u2028\x0c\nd"), code("e")))
    assert notebook.lines(1) == ("a", "b", "c\u2028\x0c", "d")
    assert notebook.place(Span(5, 0, 5, 1)) == (2, Span(1, 0, 1, 1))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{", "not a JSON object"),
        (b"", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b'{"cells": []} x', "not a JSON object: Extra data"),
        (b'{"cells": [}', "not a JSON object"),
        (b'{"cells" []}', "not a JSON object"),
        (b'{1: 2, "cells": []}', "not a JSON object"),
        (b'{"cells": [' + b"[" * 200_000, "nested too deeply"),
        (b'{"cells": ["\xff"]}', "not UTF-8"),
        (b"{}", "no `cells`"),
        (b'{"cells": 1}', "`cells` is not a list"),
        (b'{"cells": [1]}', "cell 1 is not an object"),
        (b'{"cells": [{"cell_type": "code"}]}', "`source` of cell 1"),
        (b'{"cells": [{"cell_type": "code", "source": [1]}]}', "`source` of cell 1"),
        (b'{"cells": [{"cell_type": "code", "source": 1}]}', "`source` of cell 1"),
        (b'{"worksheets": [{"cells": []}], "nbformat": 3}', "nbformat 3 or older"),
    ],
)
def test_what_is_no_notebook_is_refused_with_the_reason(raw, reason):
    with pytest.raises(ValueError, match=reason):
        read(raw)


@pytest.mark.parametrize(
    ("metadata", "is_python"),
    [
        ({}, True),
        ({"language_info": {"name": "python"}}, True),
        ({"kernelspec": {"language": "python", "name": "x"}}, True),
        ({"language_info": {"name": "julia"}}, False),
        ({"kernelspec": {"language": "R"}}, False),
        ({"language_info": {"name": "python"}, "kernelspec": {"language": "R"}}, True),
        ({"language_info": 3, "kernelspec": "x"}, True),
    ],
)
def test_other_languages_have_no_cells(metadata, is_python):
    raw = file(code("x = 1"), metadata=metadata)
    notebook = read(raw)
    assert bool(notebook.cells) is bool(notebook.text) is is_python
    assert notebook.apply(()) == raw


def test_a_cell_of_another_language_is_left_out():
    notebook = read(file(code("SELECT 1", vscode={"languageId": "sql"}), code("x")))
    assert notebook.text == "x\n"


def test_there_is_no_place_without_cells():
    with pytest.raises(ValueError, match="no Python"):
        read(file(prose("t"))).place(Span(1, 0, 1, 0))


def test_await_outside_of_functions_is_left():
    assert read(file(code("await f()"))).text == "await f()\n"


# --- magics


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        ("%time f(x)", "pass      "),
        ("    %time f(x)", "    pass      "),
        ("!ls", "0  "),
        ("!ls 'it", "pass   "),
        ("?f", "0 "),
        ("f?", "0 "),
        ("np.random??  # how", "pass              "),
        ("xs[0].shape?", "pass        "),
        ("%%time?", "pass   "),
        ("/f x", "pass"),
        ("    f?", "    0 "),
        ("x = !ls", "x = 0  "),
        ("x = %time f(y)", "x = 0         "),
        ("x['a b'], y.z = %env HOME", "x['a b'], y.z = 0        "),
        ("if a: x = !ls", "if a: x = 0  "),
        ("x = 1", "x = 1"),
        ("x != 1", "x != 1"),
        ("x %= 3", "x %= 3"),
        ("x = 'a = !b'", "x = 'a = !b'"),
        ("f('x = !b')", "f('x = !b')"),
        ("# why?", "# why?"),
        ("x  # why?", "x  # why?"),
        ("x = 'what?'", "x = 'what?'"),
        ("# x = !ls", "# x = !ls"),
    ],
)
def test_magics_become_python_of_the_same_width(line, masked):
    before, after = "if 1:\n    pass\n", "\nz = 1"
    if line.startswith(" "):
        before = "if 1:\n"
    text = text_of(before + line + after)
    assert text == before + masked + after + "\n"
    parse(text)


@pytest.mark.parametrize(
    "lines",
    [
        ("x = (a", "  % b)"),
        ("x = f(g(a),", "  h(b)", "  % b)"),
        ("x = a \\", "  % b"),
        ("x = '''", "%time", "!ls", "f?", "'''"),
        ("x = f'''", "%time {", "x", "}", "!ls'''"),
        ("x = [", "    # it's", "    1]"),
    ],
)
def test_what_goes_on_over_lines_holds_no_magic(lines):
    assert text_of(*lines) == "\n".join(lines) + "\n"


def test_a_magic_goes_on_after_a_backslash():
    text = text_of("!ls \\", "  'it", "x = 1", "y = !ls \\", " -l", "z = 2")
    rows = ["pass ", " " * 5, "x = 1", "y = 0    ", " " * 3, "z = 2", ""]
    assert text.split("\n") == rows


def test_quotes_in_a_magic_do_not_open_a_string():
    assert text_of("!echo it's", "%time", "x = 1").endswith("\npass \nx = 1\n")


@pytest.mark.parametrize("name", ["time", "timeit", "capture", "prun"])
def test_the_cell_of_a_measuring_magic_is_python(name):
    text = text_of(f"%%{name} -q", "x = 1", "%who")
    assert text == "pass".ljust(len(name) + 5) + "\nx = 1\npass\n"


@pytest.mark.parametrize("before", ["", "\n", "# comment\n \n"])
def test_the_cell_of_another_magic_is_blank(before):
    text = text_of(f"{before}%%bash", "echo 'it", "x = 1")
    assert not text.strip()
    assert [len(line) for line in text.split("\n")] == [
        len(line) for line in f"{before}%%bash\necho 'it\nx = 1\n".split("\n")
    ]


def test_a_cell_magic_further_down_is_only_a_line():
    assert text_of("x = 1", "%%bash", "y = 2") == "x = 1\npass  \ny = 2\n"


@pytest.mark.parametrize(
    ("cell", "python"),
    [
        ("    x = 1\n    y = 2", "x = 1\ny = 2\n"),
        ("\n\t@f\n\tdef g():\n\t\tpass\n# c\n\tg()", "\n@f\ndef g():\n\tpass\n# c\ng()\n"),
        ("  %time f(x)\n  y = 2", "pass      \ny = 2\n"),
        ("%%time\n    x = 1", "pass  \nx = 1\n"),
        ("  %%time\n    x = 1\n    y", "pass  \nx = 1\ny\n"),
        ("  %%bash\n  x = 1", "        \n       \n"),
        (">>> def f(x):\n...     return x\n>>> f(1)", "def f(x):\n    return x\nf(1)\n"),
        (">>> x = 1\n>>>\n1", "x = 1\n\n1\n"),
        ("In [1]: x = 1\n   ...: y = 2", "x = 1\ny = 2\n"),
        ("x = f?", "pass  \n"),
        ("if a:\n    y = f.g??  # how", "if a:\n    pass            \n"),
        ("x = [1]  # why?", "x = [1]  # why?\n"),
        ("x = a['b']?", "x = a['b']?\n"),
    ],
)
def test_a_cell_is_read_without_its_margin_and_prompts(cell, python):
    assert read(file(code(cell))).text == python


def test_places_and_edits_are_those_of_the_indented_cell():
    raw = file(code("z"), code("    import jax\n\n    x = jax.f(\n        1)\n# c\n    y = 2"))
    notebook = read(raw)
    assert notebook.text == "z\nimport jax\n\nx = jax.f(\n    1)\n# c\ny = 2\n"
    assert notebook.place(Span(4, 4, 5, 6)) == (2, Span(3, 8, 4, 10))
    assert notebook.place(Span(6, 0, 7, 1)) == (2, Span(5, 0, 6, 5))
    edits = [
        Edit(Span(2, 0, 2, 0), "import os\n"),
        Edit(Span(4, 4, 5, 6), "g(\n    2,\n\n    3)"),
        Edit(Span(7, 0, 7, 5), "y = (\n    3)"),
    ]
    cell = json.loads(notebook.apply(edits))["cells"][1]["source"]
    assert cell == (
        "    import os\n    import jax\n\n    x = g(\n        2,\n\n        3)\n# c\n"
        "    y = (\n        3)"
    )


def test_rows_with_prompts_are_not_edited():
    notebook = read(file(code(">>> x = 1\n... y")))
    assert notebook.place(Span(1, 0, 1, 1)) == (1, Span(1, 4, 1, 5))
    with pytest.raises(ValueError, match="touches a magic"):
        notebook.apply([replace(1, 0, 1, "z")])


@pytest.mark.parametrize(
    ("metadata", "is_python"),
    [
        ({"polyglot_notebook": {"kernelName": "csharp"}}, False),
        ({"dotnet_interactive": {"language": "python"}}, True),
        ({"kernel": "R"}, False),
        ({"kernel": "Python3"}, True),
        ({"vscode": {"languageId": 3}}, True),
    ],
)
def test_the_language_of_a_cell(metadata, is_python):
    assert bool(read(file(code("x", **metadata))).cells) is is_python


def test_cells_of_databricks_name_their_language():
    cells = code("%sql\nselect 'it"), code("%md-sandbox # t"), code("%pip install x"), code("y")
    databricks = {"application/vnd.databricks.v1+notebook": {"language": "python"}}
    text = read(file(*cells, metadata=databricks)).text
    assert text.split() == ["pass", "y"]
    assert "select" in read(file(*cells)).text


class Placeholders(ast.NodeTransformer):
    """Make what stands for a magic, here and in IPython's Python, the same."""

    def visit_Call(self, node):
        return ast.Constant(0) if "get_ipython" in ast.unparse(node.func) else node

    def visit_Pass(self, node):
        return ast.Expr(ast.Constant(0))


PARTS = (
    *("x = 1", "if x:", "    y = f(x)", "        z", "    %time f(x)", "%load_ext a", "!ls -l"),
    *("x = !ls", "f?", "x = f?", "# why?", "", "   ", "s = '''\n%no\n'''", "f(\n  1)"),
    *(">>> x = 1", ">>> def f():", "...     pass", "    def f():", "        return 1"),
)


def test_cells_are_read_as_ipython_reads_them():
    transformer = pytest.importorskip("IPython.core.inputtransformer2").TransformerManager()
    rng = random.Random(0)
    compared = 0
    for _ in range(2000):
        cell = "\n".join(rng.choices(PARTS, k=rng.randint(1, 6)))
        if ">>>" in cell and not cell.startswith(">>>"):  # versions of IPython differ
            continue
        try:
            trees = [parse(transformer.transform_cell(cell))]
        except (SyntaxError, ValueError):
            continue
        trees.append(parse(text_of(cell)))
        compared += 1
        assert len({ast.dump(Placeholders().visit(tree)) for tree in trees}) == 1, cell
    assert compared > 500


# --- cells that are no Python


BAD = code("for x in\n  y")
UNKNOWN = "jax.checkpoint(f, concrete=True)"


def test_a_cell_that_is_no_python_hides_no_other():
    found = jaxresid.linter.lint_source(file(code("import jax"), BAD, code(UNKNOWN)), "a.ipynb")
    assert {(v.code, v.cell, v.span.row) for v in found} == {
        ("invalid-syntax", 2, 1),
        ("JXR105", 3, 1),
        ("JXR505", 3, 1),
    }
    alone = jaxresid.linter.lint_source(file(code("import jax"), code(UNKNOWN)), "a.ipynb")
    assert {v.message for v in alone} < {v.message for v in found}


def test_only_what_a_comment_silences_is_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cells = code("    import jax"), BAD, code(f"    {UNKNOWN}")
    (tmp_path / "a.ipynb").write_bytes(file(*cells))
    assert run(["lint", "--add-noqa", "a.ipynb"]) == 1
    assert capsys.readouterr().err.startswith("Silenced 2 findings.\n")
    last = json.loads((tmp_path / "a.ipynb").read_bytes())["cells"][2]["source"]
    assert last == f"    {UNKNOWN}  # jaxresid: ignore[JXR105, JXR505]"


def test_fixes_are_made_beside_a_cell_that_is_no_python():
    cell = (
        "    import jax\n    jax.checkpoint(f)(x, policy=None)\n    jax.remat(abs, concrete=False)"
    )
    raw = file(BAD, code(cell))
    found = jaxresid.linter.lint_source(raw, "a.ipynb")
    assert {v.code for v in found} >= {"invalid-syntax", "JXR505"}
    fixed = json.loads(jaxresid.linter.fix_source(raw.decode(), "a.ipynb"))["cells"]
    assert fixed[0]["source"] == BAD["source"]
    assert "concrete" not in fixed[1]["source"]
    assert fixed[1]["source"].startswith("    import jax\n    jax.checkpoint(f)")


# --- writing


def test_an_edit_keeps_all_other_bytes():
    raw = (
        b'{"nbformat":4,\r\n "cells": [ {"source" : ["x = \\u0031\\n",\r\n\t"y = f( 2 )"],'
        b'"cell_type":"code" , "outputs":[1e5, "caf\xc3\xa9"]}\n],"metadata":{}} '
    )
    got = read(raw).apply([replace(2, 4, 5, "gg")])
    assert got == raw.replace(b"f( 2 )", b"gg( 2 )")


def test_several_edits_in_several_cells():
    raw = file(code(["a = 1\n", "b = 2"]), prose("t"), code("c = 3"))
    edits = [replace(3, 0, 1, "C"), replace(1, 4, 5, "10"), replace(1, 0, 1, "A")]
    assert read(raw).apply(edits) == file(code(["A = 10\n", "b = 2"]), prose("t"), code("C = 3"))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_lines_are_added_and_removed_in_the_style_of_the_list(newline, end):
    def of(*items):
        return file(code([*items[:-1], items[-1] + end]), newline=newline)

    notebook = read(of("a\n", "b\n", "c"))
    assert notebook.apply([Edit(Span(2, 0, 3, 0), "")]) == of("a\n", "c")
    assert notebook.apply([Edit(Span(3, 0, 4, 0), "")]) == (
        of("a\n", "b") if not end else file(code(["a\n", "b\n"]), newline=newline)
    )
    assert notebook.apply([Edit(Span(2, 0, 2, 0), "x\ny\n")]) == of("a\n", "x\n", "y\n", "b\n", "c")
    assert notebook.apply([Edit(Span(4, 0, 4, 0), "d\n")]) == of("a\n", "b\n", "c\n", "d")


def test_a_list_of_one_line_grows_as_it_is_indented():
    assert read(file(code(["a"]))).apply([Edit(Span(1, 0, 1, 0), "b\n")]) == file(
        code(["b\n", "a"])
    )
    inline = b'{"cells": [{"cell_type": "code", "source": ["a"]}]}'
    assert read(inline).apply([Edit(Span(1, 0, 1, 0), "b\n")]) == inline.replace(
        b'["a"]', b'["b\\n", "a"]'
    )


def test_lists_become_empty_and_come_from_empty_ones():
    assert json.loads(read(file(code(["a"]))).apply([replace(1, 0, 1, "")])) == json.loads(
        file(code([]))
    )
    got = read(file(code([]))).apply([replace(1, 0, 0, "a\nb")])
    assert json.loads(got) == json.loads(file(code(["a\n", "b"])))


def test_a_list_that_is_not_split_by_lines_still_joins_to_the_result():
    got = read(file(code(["a = ", "1\nb", " = 2\n"]))).apply([replace(2, 4, 5, "3")])
    assert "".join(json.loads(got)["cells"][0]["source"]) == "a = 1\nb = 3\n"


@pytest.mark.parametrize("style", [lambda s: s, lambda s: s.splitlines(keepends=True)])
@pytest.mark.parametrize("ensure_ascii", [False, True])
def test_escapes_are_written_as_the_notebook_writes_them(style, ensure_ascii):
    def of(text):
        return file(code(style(text)), prose("caf\u00e9"), ensure_ascii=ensure_ascii)

    raw = of('x = "\U0001f600"\ny = "\t"\n')
    assert read(raw).apply([replace(1, 6, 6, "\u00fc")]) == of('x = "\U0001f600\u00fc"\ny = "\t"\n')


def test_escapes_that_json_demands_say_nothing_of_the_others():
    raw = b'{"cells": [{"cell_type": "code", "source": "a\\u0007\\\\u00e9"}]}'
    got = read(raw).apply([replace(1, 0, 1, "\u00fc")])
    assert got == raw.replace(b'"a', '"\u00fc'.encode())


def test_compact_json_stays_compact():
    raw = b'{"cells":[{},{"cell_type":"code","source":["a\\n","b\\n","c"]}]}'
    assert read(raw).place(Span(1, 0, 1, 0))[0] == 2
    assert read(raw).apply([replace(2, 0, 0, "x\n")]) == raw.replace(b'"b', b'"x\\n","b')


def test_what_is_spelled_unusually_stays_so():
    raw = b'{"cells": [{"cell_type": "code", "source": "a = \\u003c\\/ + b"}]}'
    assert read(raw).apply([replace(1, 9, 10, "c")]) == raw.replace(b"+ b", b"+ c")


def test_a_lone_surrogate_is_written_as_an_escape():
    raw = b'{"cells": [{"cell_type": "code", "source": "x\xc3\xa9"}]}'
    assert b"\\ud800" in read(raw).apply([replace(1, 0, 1, "\ud800")])


def test_magics_are_written_back_as_they_were():
    raw = file(code(["%time x\n", "y = !ls\n", "z = 1"]))
    assert read(raw).apply([replace(3, 0, 1, "w")]) == file(
        code(["%time x\n", "y = !ls\n", "w = 1"])
    )


def test_a_byte_order_mark_stays():
    raw = b"\xef\xbb\xbf" + file(code("x"))
    assert read(raw).text == "x\n"
    assert read(raw).apply([replace(1, 0, 1, "y")]) == b"\xef\xbb\xbf" + file(code("y"))


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (Edit(Span(1, 0, 2, 1), ""), "spans two cells"),
        (Edit(Span(10, 0, 10, 0), "x"), "spans two cells"),
        (replace(2, 1, 1, "x"), "touches a magic"),
        (replace(3, 7, 7, "  # x"), "touches a magic"),
        (Edit(Span(2, 0, 3, 0), ""), "touches a magic"),
        (replace(5, 0, 0, "x"), "touches a magic"),
        (replace(7, 0, 0, "x\n"), "touches a magic"),
        (replace(8, 2, 2, "x"), "touches a magic"),
        (replace(9, 0, 0, "x\n"), "touches a magic"),
    ],
)
def test_edits_that_cannot_be_made_are_refused(edit, reason):
    raw = file(code("a"), code("%time\ny = !ls\nb"), code("%%time\nc"), code("%%html\nd"))
    with pytest.raises(ValueError, match=reason):
        read(raw).apply([edit])


def test_nothing_can_be_put_before_a_cell_magic():
    notebook = read(file(code("\n# c\n%%time\nx")))
    for row in (1, 2, 3):
        with pytest.raises(ValueError, match="touches a magic"):
            notebook.apply([replace(row, 0, 0, "y\n")])
    assert notebook.apply([replace(4, 0, 1, "y")]) == file(code("\n# c\n%%time\ny"))


def test_rows_beside_a_magic_can_be_edited():
    notebook = read(file(code("a\n%who\nb")))
    assert notebook.apply([replace(1, 0, 1, "c"), replace(3, 0, 1, "d")]) == file(
        code("c\n%who\nd")
    )
    assert notebook.apply([Edit(Span(1, 0, 2, 0), "")]) == file(code("%who\nb"))


def test_a_line_can_be_inserted_above_a_line_magic_and_after_a_cell_magic():
    raw = file(code("%time"), code("%%time\nc"))
    got = read(raw).apply([replace(1, 0, 0, "x\n"), replace(3, 0, 0, "y\n")])
    assert got == file(code("x\n%time"), code("%%time\ny\nc"))


def test_overlapping_edits_are_refused():
    with pytest.raises(ValueError, match="overlap"):
        read(file(code("abc"))).apply([replace(1, 0, 2, "x"), replace(1, 1, 3, "y")])


# --- round trips

LINES = st.text(
    st.sampled_from([*"ab =()#'\"\\%!?\t\r\x0c\u00e9\u2028\U0001f600\ud800"]), max_size=8
)
SOURCES = st.lists(LINES, max_size=4).map("\n".join)
CELLS = st.lists(
    st.builds(
        lambda make, split, source: make(source.splitlines(keepends=True) if split else source),
        st.sampled_from([code, prose]),
        st.booleans(),
        SOURCES,
    ),
    max_size=4,
)


@st.composite
def notebooks(draw):
    return file(
        *draw(CELLS),
        ensure_ascii=True,
        newline=draw(st.sampled_from(["\n", "\r\n"])),
        sort_keys=draw(st.booleans()),
    )


@given(notebooks())
def test_no_edits_change_no_bytes(raw):
    notebook = read(raw)
    assert notebook.apply(()) == raw
    assert len(notebook.text) == sum(len(c.text) - sum(c.cuts) for c in notebook.cells)


@given(notebooks(), st.data(), SOURCES)
def test_an_edit_changes_its_cell_and_nothing_else(raw, data, new):
    notebook = read(raw)
    rows = [(c, r) for c in notebook.cells for r in range(1, len(notebook.lines(c.number)) + 1)]
    rows = [(c, r) for c, r in rows if r >= c.first and r not in c.magic_rows]
    if not rows:
        return
    cell, row = data.draw(st.sampled_from(rows))
    line = notebook.lines(cell.number)[row - 1]
    cut = cell.cut(row)
    start = data.draw(st.integers(cut, len(line)))
    end = data.draw(st.integers(start, len(line)))
    new = new.replace("\n", "") if cut else new
    after = notebook.apply([replace(cell.row + row - 1, start - cut, end - cut, new)])
    want = json.loads(raw)
    starts = [0]
    for each in notebook.lines(cell.number):
        at = starts[-1] + len(each)
        starts.append(at + (2 if cell.text.startswith("\r\n", at) else 1))
    at = starts[row - 1]
    text = cell.text[: at + start] + new + cell.text[at + end :]
    if not cell.source.endswith("\n"):
        text = text[:-1]
    got = json.loads(after)
    edited = got["cells"][cell.number - 1]
    assert "".join(edited["source"]) == text
    assert type(edited["source"]) is type(want["cells"][cell.number - 1]["source"])
    edited["source"] = want["cells"][cell.number - 1]["source"]
    assert got == want
