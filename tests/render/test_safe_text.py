"""Whatever names, messages and caches hold, nothing of it acts on what shows it."""

import dataclasses
import json
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxresid.base.text.safe_text import inert, json_text, lines, quoted_path, safe_value, visible
from jaxresid.base.violations import Edit, Fix, Linted, Related, Span, Violation
from jaxresid.cli.main import rendered
from jaxresid.linter.run.diffing import unified_diff
from jaxresid.render.lint import FORMATS, render
from jaxresid.render.notebook.report import report_html
from jaxresid.render.report.compiled import render_compiled
from jaxresid.render.report.rows import GROUPS, View
from jaxresid.render.report.text import render_report
from jaxresid.results import Compiled, CompiledReport, CompilerWarning
from jaxresid.serialization.encoding import json_document

EVIL = "\x00\x07\x08\x0b\x0c\r\x1b\x7f\x85\x90\x9b\x9d\u2028\u2029\u202e\u2066\u200f\ud800\udcff"
ACTING = re.compile(f"[{EVIL}\x01-\x06\x0e-\x1f\x80-\x9f\u202a-\u202d]")
COMMAND = re.compile(r"^\s*::|##\[|##vso\[", re.MULTILINE)
SOURCES = ("\n::error::x", "\x1b]0;x\x07", "##[error]x", "##vso[task.x]", "a", " ", "\t", "é", "%")
FEW = settings(max_examples=25, deadline=None)
TEXT = st.lists(st.sampled_from((*EVIL, *SOURCES)), min_size=1, max_size=6).map("".join)


def assert_quiet(text, *, several=True):
    assert not ACTING.search(text), repr(text)
    assert not COMMAND.search(text), repr(text)
    text.encode("utf-8")


@FEW
@given(TEXT)
def test_one_line_and_several(text):
    assert len(visible(text).splitlines()) <= 1
    assert len(visible(text)) == len(text)
    assert visible(visible(text)) == visible(text)
    assert_quiet(lines(text))
    assert lines(text).count("\n") == text.count("\n")
    assert inert(inert(text)) == inert(text)


@FEW
@given(TEXT)
def test_json_is_what_it_was(text):
    for indent in (None, 2):
        written = json_text({text: [text, 1, None]}, indent=indent)
        assert_quiet(written)
        clean = re.sub("[\ud800-\udfff]", "\ufffd", text)
        assert json.loads(written) == {clean: [clean, 1, None]}


def violation(text):
    span = Span(1, 0, 1, 3)
    return Violation(
        code="JXR201",
        name="x",
        severity="error",
        message=text,
        path=f"d/{text}.py",
        span=span,
        why=text,
        help=text,
        fix=Fix(text, (Edit(span, text),), "safe"),
        related=(Related(text, f"e/{text}", span),),
        measured={"figure": text, "list": [text]},
    )


@pytest.mark.parametrize("format", FORMATS)
@FEW
@given(text=TEXT, message=TEXT)
def test_the_linters_formats(format, text, message):
    found = violation(text.replace("\0", ""))
    found = dataclasses.replace(found, message=message)
    several = (found, dataclasses.replace(found, severity="info", cell=2))
    for results in ([Linted(found.path, several, {None: (text,)})], []):
        out = render(format, results, [], Path("/r"), version="1")
        if format == "github":
            assert not ACTING.search(out)
            assert all(
                line.startswith("::error ") or line.startswith("::notice ")
                for line in out.splitlines()
            )
            assert len(out.splitlines()) == sum(len(r.violations) for r in results)
        else:
            assert_quiet(out)
        if format == "junit":
            ET.fromstring(out)
        if format in ("json", "sarif", "gitlab", "rdjson", "lsp"):
            json.loads(out)


def renamed(value, text):
    """A value of the model whose every text is another."""
    if isinstance(value, str) and type(value) is str:
        return text
    if dataclasses.is_dataclass(value):
        changes = {
            f.name: renamed(getattr(value, f.name), text)
            for f in dataclasses.fields(value)
            if f.name not in LITERALS
        }
        return dataclasses.replace(value, **changes)
    if isinstance(value, tuple):
        return tuple(renamed(v, text) for v in value)
    return value


# Fields that are looked up in tables.
LITERALS = {
    "breakdown",
    "kind",
    "memory",
    "dtype",
    "phase",
    "profile",
    "mode",
    "source",
    "flags",
    "on",
    "spec",
}


@pytest.fixture(scope="module")
def report():
    import jax
    import jax.numpy as jnp
    from jax.ad_checkpoint import checkpoint_name

    @jax.checkpoint
    def block(x, w):
        with jax.named_scope("scope"):
            return checkpoint_name(jnp.sin(x @ w), "name")

    def loss(x, w):
        return jnp.sum(jax.lax.fori_loop(0, 2, lambda i, c: block(c, w), x) ** 2)

    from jaxresid.inspector.call.question import Question
    from jaxresid.inspector.report import inspection

    spec = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    return inspection(Question(loss, (spec, spec))).report


@pytest.mark.integration
@settings(max_examples=8, deadline=None)
@given(text=TEXT)
def test_reports(report, text):
    evil = renamed(report, text)
    for group in (None, *GROUPS):
        assert_quiet(inert(rendered(render_report(evil, View(group_by=group, all=True)), None)))
    assert not ACTING.search(report_html(evil))
    assert_quiet(json_document(evil))


@FEW
@given(text=TEXT)
def test_what_xla_says(report, text):
    warning = CompilerWarning("resharding", said=text, shape=text, op_name=text)
    compiled = Compiled(on=text, error=text, notes=(text,), compiler=text, warnings=(warning,))
    found = CompiledReport(
        renamed(report.target, text),
        report.jax,
        (renamed(report.place, text),),
        (compiled,),
        warnings=(text,),
    )
    assert_quiet(inert(rendered(render_compiled(found), None)))
    assert_quiet(json_document(found))


def test_what_is_shown_already_is_the_same(report):
    assert safe_value(report) is report


def test_a_diff_of_a_file_of_any_name_is_one(tmp_path):
    name = 'a\n::error::"\x1b\\.py'
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / name).write_text("1\n")
    text = "".join(unified_diff(b"1\n", b"2\n", f"a/{name}", f"b/{name}"))
    assert not ACTING.search(text)
    subprocess.run(["git", "apply"], input=text, text=True, cwd=tmp_path, check=True)
    assert (tmp_path / name).read_text() == "2\n"
    assert quoted_path("a b/é.py") == "a b/é.py"
