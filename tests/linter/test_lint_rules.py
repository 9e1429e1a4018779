"""Every rule against its examples, its own and those of tests/linter/rules, and the paperwork."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re

import pytest
from rule_examples import FOLDER, MARK, examples, marked

from jaxresid.linter import rules
from jaxresid.linter.resolve.project import Project, ProjectModule
from jaxresid.linter.rule import SECTIONS, documentation
from jaxresid.linter.rules import all_rules
from jaxresid.linter.run.engine import LintSettings, fix_bytes, lint_bytes

RULES = all_rules()
KNOWN = {r.code: r.name for r in RULES}
CASES = [
    pytest.param(rule, example, id=f"{rule.code}-{name}")
    for rule in RULES
    for name, example in examples(rule.code).items()
]
REPORTED = [case for case in CASES if marked(case.values[1].source)]
SILENT = [case for case in CASES if not marked(case.values[1].source)]


def project_of(example, root, raw):
    """The example's other files and itself, on disk because the index reads files."""
    contents = {"module.py": raw, **{n: s.encode() for n, s in example.files.items()}}
    modules = []
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        modules.append(ProjectModule(path, dotted))
    shown = {root / n: n for n in contents}
    return Project(lambda: modules, complete=True, display_paths=shown)


def lint(rule, example, source, root):
    settings = LintSettings(needed(rule), KNOWN, target_jax=example.jax)
    raw = source.encode()
    project = project_of(example, root, raw)
    linted = lint_bytes(raw, "module.py", settings, project=project, file=root / "module.py")
    return linted.violations


def needed(rule):
    """The rules to run for a rule's examples: a suppression is unused only if its rule was on."""
    return RULES if rule.code == "JXR001" else (rule,)


def with_marks(source, rows):
    """The source with marks in these rows instead of its own, which shows what is reported."""
    lines = enumerate(MARK.sub("", source).split("\n"), 1)
    return "\n".join(f"{line}  # !" if row in rows else line for row, line in lines)


@pytest.mark.parametrize(("rule", "example"), REPORTED)
def test_bad_examples_are_reported_where_marked(rule, example, tmp_path):
    found = lint(rule, example, example.source, tmp_path)
    assert with_marks(example.source, {v.span.row for v in found}) == example.source
    assert len(found) == len(marked(example.source))
    assert {v.code for v in found} == {rule.code}
    for violation in found:
        assert violation.span.row in violation.noqa_rows
        assert violation.message and (violation.why or violation.help)
        assert "\n" not in violation.message and not violation.message.endswith(".")
        assert violation.fix is None or rule.fixes is not None


@pytest.mark.parametrize(("rule", "example"), SILENT)
def test_good_examples_are_silent(rule, example, tmp_path):
    assert lint(rule, example, example.source, tmp_path) == ()


@pytest.mark.parametrize(("rule", "example"), REPORTED)
def test_fixes_give_exactly_the_fixed_text(rule, example, tmp_path):
    source = MARK.sub("", example.source)
    settings = LintSettings(needed(rule), KNOWN, target_jax=example.jax, unsafe_fixes=True)

    def fix(raw):
        return fix_bytes(
            raw,
            "module.py",
            settings,
            project=lambda now: project_of(example, tmp_path, now),
            file=tmp_path / "module.py",
        )

    fixed = fix(source.encode())
    assert fixed.raw.decode() == (source if example.fixed is None else example.fixed)
    if example.fixed is not None:
        assert fixed.linted.violations == ()
        again = fix(fixed.raw)
        assert again.raw == fixed.raw and again.fixes == ()
        if {v.fix.applicability for v in fixed.fixes} == {"unsafe"}:
            safe = dataclasses.replace(settings, unsafe_fixes=False)
            kept = fix_bytes(source.encode(), "module.py", safe)
            assert kept.raw.decode() == source


@pytest.mark.parametrize(("rule", "example"), CASES)
def test_examples_are_python(rule, example):
    ast.parse(example.source)
    if example.fixed is not None:
        ast.parse(example.fixed)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)
def test_paperwork(rule):
    assert re.fullmatch(r"JXR\d{3}", rule.code)
    assert rule.__module__.rpartition(".")[2] == rule.name.replace("-", "_")
    assert rule.__name__ == "".join(w.capitalize() for w in rule.name.split("-"))
    assert rule.severity in {"error", "warning", "info"}
    summary, sections = documentation(rule)
    assert summary.endswith(".") and len(summary) <= 100
    needed = set(SECTIONS) if rule.fixes else set(SECTIONS) - {"Is the fix safe?"}
    assert set(sections) == needed
    assert all(sections.values())
    assert len(rule.bad) == 1 and marked(rule.bad[0].source)
    assert len(rule.good) in {1, 2} and not any(marked(e.source) for e in rule.good)
    sources = [e.source for e in examples(rule.code).values()]
    reported = [source for source in sources if marked(source)]
    assert len(sources) > 2 * len(reported)
    assert bool(rule.fixes) == any(e.fixed is not None for e in examples(rule.code).values())


def test_codes_and_names_are_unique():
    assert len({r.code for r in RULES}) == len(RULES) == len({r.name for r in RULES})


def test_the_index_agrees_with_the_rules():
    """A clean run imports no rule, so the rows in `rules/__init__.py` must be true."""
    modules = {m.name for m in pkgutil.iter_modules(rules.__path__)}
    assert modules == {r.name.replace("-", "_") for r in RULES}
    shown = [(r.code, r.name, r.severity, r.markers) for r in RULES]
    assert shown == [tuple(entry) for entry in rules.INDEX]
    assert [e.is_default for e in rules.INDEX] == [r.is_default() for r in RULES]
    assert [e.code for e in rules.INDEX] == sorted(e.code for e in rules.INDEX)


def test_every_file_of_an_example_is_read():
    assert {folder.name for folder in FOLDER.iterdir()} <= set(KNOWN)
    read = sum(
        (e.fixed is not None) + (name not in {"bad", "good", "good_2"} and 1 + len(e.files))
        for rule in RULES
        for name, e in examples(rule.code).items()
    )
    assert read == sum("__pycache__" not in path.parts for path in FOLDER.rglob("*.*"))


def test_examples_are_written_as_blocks():
    """One reads a module as it is, not a string full of line ends."""
    for rule in RULES:
        for call in ast.walk(ast.parse(inspect.getsource(_module(rule)))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "examples":
                for node in ast.walk(call):
                    text = getattr(node, "value", None)
                    if isinstance(node, ast.Constant) and isinstance(text, str):
                        assert "\n" not in text or text.startswith("\n"), (rule.code, text)


def _module(rule):
    return importlib.import_module(rule.__module__)
