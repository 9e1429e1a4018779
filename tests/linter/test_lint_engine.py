"""What the engine does around the rules."""

import pytest

from jaxresid.base.violations import Edit, Fix, Span
from jaxresid.linter.resolve.project import Project, ProjectModule
from jaxresid.linter.rule import Rule
from jaxresid.linter.rules import all_rules
from jaxresid.linter.run.engine import LintSettings, fix_bytes, lint_bytes
from jaxresid.linter.run.files import LintRun
from jaxresid.settings.config import Config

RULES = tuple(r for r in all_rules() if r.is_default())
SETTINGS = LintSettings(RULES, {r.code: r.name for r in all_rules()})
WHOLE = """\
import jax


def loss(w):
    return (w * w).sum()


def step(w):
    return jax.grad(jax.checkpoint(loss))(w)
"""


def found(source, path="module.py"):
    return lint_bytes(source.encode(), path, SETTINGS).violations


@pytest.mark.parametrize(
    ("path", "severity"),
    [
        *(
            (path, "info")
            for path in """
            test_remat.py pkg/remat_test.py pkg/remat_tests.py pkg/conftest.py pkg/tests.py
            tests/tests.py tests/model.py pkg/test/model.py /home/me/tests/model.py
            """.split()
        ),
        *((path, "warning") for path in "model.py contest.py pkg/latest.py testing/m.py".split()),
    ],
)
def test_placement_is_an_info_in_a_test_module(path, severity):
    (violation,) = found(WHOLE, path)
    assert (violation.code, violation.severity) == ("JXR101", severity)


def test_what_stands_below_a_folder_of_tests_is_a_test_wherever_it_is_linted_from(
    tmp_path, monkeypatch
):
    (tmp_path / "pyproject.toml").touch()
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(WHOLE)
    for where, path in ((tmp_path, "tests/unit/model.py"), (folder, "model.py")):
        monkeypatch.chdir(where)
        linted = LintRun(Config(tmp_path)).run([path], jobs=1)
        assert [v.severity for file in linted for v in file.violations] == ["info"]


@pytest.mark.parametrize(
    "test",
    [
        "def test(f):\n    with pytest.raises(TypeError):\n        @jax.checkpoint(policy=None)\n"
        "        def g(x):\n            return x\n",
        "class T(TestCase):\n    def test(self, f):\n"
        "        with self.assertRaisesRegex(TypeError, 'x'):\n"
        "            jax.checkpoint(f, 1)\n",
        "class T(TestCase):\n    def test(self, f):\n"
        "        self.assertRaises(TypeError, lambda: jax.checkpoint(f, 1))\n",
    ],
)
def test_a_mistake_that_is_expected_to_raise_is_meant(test):
    source = f"import jax\nimport pytest\nfrom unittest import TestCase\n\n\n{test}"
    assert found(source) == ()
    meant = source.replace("pytest.raises", "open").replace("assertRaises", "run")
    assert {v.severity for v in found(meant)} == {"error"}


def test_a_suppression_of_a_project_rule_is_unused_only_where_the_project_is_seen(tmp_path):
    source = "import jax\n\n\ndef f(p):\n    return p  # jaxresid: ignore[JXR301]\n"
    path = tmp_path / "module.py"
    path.write_text(source)
    whole = Project(lambda: [ProjectModule(path, "module")], complete=True)
    part = Project(lambda: [ProjectModule(path, "module")])
    codes = [
        [v.code for v in lint_bytes(source.encode(), "module.py", SETTINGS, project=p).violations]
        for p in (whole, part, None)
    ]
    assert codes == [["JXR001"], [], []]


def rewriting(code, **replacements):
    """A rule that reports each name and replaces it by some text."""

    class Rewriting(Rule):
        name = code.lower()
        severity = "warning"
        fixes = "safe"

        def find(self, facts):
            for node in facts.names.names:
                if node.id in replacements:
                    edit = Edit(facts.source.span(node), replacements[node.id])
                    yield self.report(facts, node, "m", fix=Fix("t", (edit,), "safe"))

    Rewriting.code = code
    return Rewriting


def fixed(source, *rules, **options):
    settings = LintSettings(rules, {r.code: r.name for r in rules}, **options)
    return fix_bytes(f"from jax import remat\n{source}".encode(), "m.py", settings)


def test_fixes_are_made_until_none_is_left():
    result = fixed("remat(a)\n", rewriting("JXR901", a="b", b="c", c="d"))
    assert result.raw.endswith(b"remat(d)\n")
    assert len(result.fixes) == 3
    assert result.linted.violations == ()


def test_fixes_that_never_settle_end():
    result = fixed("remat(a)\n", rewriting("JXR901", a="b", b="a"))
    assert len(result.fixes) == 100
    assert len(result.linted.violations) == 1


def test_a_fix_that_would_not_parse_is_never_written():
    result = fixed("remat(a, b, c)\n", rewriting("JXR901", a="1", b="(", c="3"))
    assert result.raw.endswith(b"remat(1, b, 3)\n")
    assert [v.span.column for v in result.linted.violations] == [9]


def test_fixes_of_the_same_text_do_not_mix():
    result = fixed("remat(a)\n", rewriting("JXR901", a="one"), rewriting("JXR902", a="two"))
    assert result.raw.endswith(b"remat(one)\n")
    assert len(result.fixes) == 1


def test_fixes_side_by_side_are_made_in_one_round():
    rounds = []

    def project(raw):
        rounds.append(raw)

    rule = rewriting("JXR901", a="1", b="2")
    settings = LintSettings((rule,), {rule.code: rule.name})
    source = b"from jax import remat\nremat(a)\nremat(b)\n"
    result = fix_bytes(source, "m.py", settings, project=project)
    assert result.raw.endswith(b"remat(1)\nremat(2)\n")
    assert len(rounds) == 3  # the round, one that finds nothing, the report


@pytest.mark.parametrize(("fixable", "made"), [(lambda _: True, 1), (lambda _: False, 0)])
def test_only_fixable_codes_are_fixed(fixable, made):
    result = fixed("remat(a)\n", rewriting("JXR901", a="1"), fixable=fixable)
    assert len(result.fixes) == made
    assert [v.fix for v in result.linted.violations] == [None] * (1 - made)


def test_a_fix_that_the_encoding_cannot_hold_is_not_written():
    raw = "# coding: latin-1\nfrom jax import remat\nremat(a)  # \xe9\n".encode("latin-1")
    rule = rewriting("JXR901", a="'\N{SNOWMAN}'")
    result = fix_bytes(raw, "m.py", LintSettings((rule,), {rule.code: rule.name}))
    assert result.raw == raw


def test_violations_say_where_a_comment_silences_them():
    decorated = (
        "import jax\n\n\n@jax.jit\n@jax.checkpoint(\n    policy=None\n)\ndef f(\n    x,\n):\n"
        "    return x\n"
    )
    (violation,) = found(decorated)
    assert violation.code == "JXR501"
    assert violation.noqa_rows == (5, 6, 7, 8)
    spread = "import jax\nf = 1\ng = jax.checkpoint(\n    f,\n    1,\n)(\n    2\n)\n"
    (violation,) = found(spread)
    assert violation.noqa_rows == (3, 4, 5, 6, 7, 8)


def test_broken_text_is_one_finding_where_it_is():
    (violation,) = found("from jax import remat\nremat(\nx = = 1\n")
    assert (violation.code, violation.severity) == ("invalid-syntax", "error")
    assert violation.span.row in {2, 3}
    assert violation.span.__class__ is Span
    (violation,) = lint_bytes(b"from jax import remat\nx = '\xff'\n", "m.py", SETTINGS).violations
    assert (violation.code, "utf-8" in violation.message) == ("invalid-syntax", True)
    assert lint_bytes(b"import os\nx = '\xff'\n", "m.py", SETTINGS).violations == ()
