"""Turn source into violations, and violations into fixed source.

Everything here is pure: no files are read or written.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from jaxresid.base.violations import OVER_LIMIT, Fix, Linted, Span, Violation
from jaxresid.linter.text import prefilter as funnel
from jaxresid.linter.text import time_limit
from jaxresid.linter.text.document import Document, Parsed, read
from jaxresid.linter.text.syntax import UnparsableError
from jaxresid.linter.text.trees import walk

if TYPE_CHECKING:
    from jaxresid.linter.resolve.neighbours import ParsedModule
    from jaxresid.linter.resolve.project import Project
    from jaxresid.linter.rule import Rule

INVALID_SYNTAX = "invalid-syntax"
UNREADABLE = "unreadable"
_TEST_MODULE = re.compile(r"test_.*\.py|.*_tests?\.py|tests?\.py|conftest\.py")
_TEST_FOLDERS = frozenset({"test", "tests"})
# A fix may enable another; ruff stops after as many rounds.
_MAX_ROUNDS = 100


@dataclass(frozen=True)
class LintSettings:
    """The settings that linting one file needs.

    Attributes:
      rules: the rules that are on for this file.
      known: code -> name of every rule there is, for suppression comments.
      optional: the codes of those that are off by default.
      target_jax: the jax that the code is written for; None for the newest.
      unsafe_fixes: whether unsafe fixes are made too.
      ignore_noqa: whether to report what comments silence as well.
      fixable: whether the fixes of a code may be made.
    """

    rules: tuple[type[Rule], ...]
    known: Mapping[str, str]
    optional: frozenset[str] = frozenset()
    target_jax: tuple[int, int] | None = None
    unsafe_fixes: bool = False
    ignore_noqa: bool = False
    fixable: Callable[[str], bool] = lambda _: True

    @cached_property
    def markers(self) -> frozenset[bytes]:
        """The words to look for: a file with none of them concerns none of the rules."""
        return frozenset(m for rule in self.rules for m in rule.markers)


def broken(path: str, name: str, message: str, row: int = 1, column: int = 0) -> Violation:
    """Return the violation that reports a file that cannot be linted.

    Args:
      path: the file as it is shown.
      name: the code and name of the violation.
      message: why it cannot be linted.
      row: the 1-based row of the problem.
      column: the 0-based column of the problem, in code points.
    """
    span = Span(row, column, row, column + 1)
    return Violation(name, name, "error", message, path, span)


def unreadable(path: str, reason: str) -> Linted:
    """Return the result of linting a file that cannot be read."""
    return Linted(path, (broken(path, UNREADABLE, f"cannot be read: {reason}"),))


def over_limit(path: str) -> Linted:
    """Return the result of a file that takes too long to lint."""
    reason = f"not linted, as that takes over {time_limit.SECONDS:g} s of CPU time"
    return Linted(path, (broken(path, OVER_LIMIT, reason),))


def lint_bytes(
    raw: bytes,
    path: str,
    settings: LintSettings,
    *,
    project: Project | None = None,
    file: Path | None = None,
) -> Linted:
    """Lint one file's content.

    Args:
      raw: the file's bytes.
      path: the file as it is shown; its suffix tells a notebook.
      settings: what to look for.
      project: the files around it, as it sees them.
      file: where it is, for the project's index.
    """
    if not funnel.mentions(raw, settings.markers):
        return Linted(path, ())
    document = read(raw, path)
    if isinstance(document, Violation):
        return Linted(path, (document,))
    return lint_document(document, settings, project=project, file=file)


def lint_document(
    document: Document,
    settings: LintSettings,
    *,
    project: Project | None = None,
    file: Path | None = None,
) -> Linted:
    """Lint a file that has been decoded."""
    found = violations_in(document, settings, project=project, file=file)
    return _linted(document, [document.relative_to_cell(v) for v in found])


def violations_in(
    document: Document,
    settings: LintSettings,
    *,
    project: Project | None = None,
    file: Path | None = None,
) -> list[Violation]:
    """Return the violations of a document, in the coordinates of its module."""
    path = document.source.path
    known = None
    if project is not None and file is not None and not document.is_notebook:
        known = project.parsed(file, document.source.text)
    try:
        parsed = document.parsed() if known is None else Parsed(document, known.tree)
    except UnparsableError as e:
        return [broken(path, INVALID_SYNTAX, f"{e}", e.row, e.column)]
    errors = [broken(path, INVALID_SYNTAX, f"{e}", e.row, e.column) for e in parsed.errors]
    try:
        return errors + _found_in(parsed, known, settings, project, file)
    except RecursionError:
        return [broken(path, INVALID_SYNTAX, "too deeply nested to be linted")]


def _found_in(
    parsed: Parsed,
    known: ParsedModule | None,
    settings: LintSettings,
    project: Project | None,
    file: Path | None,
) -> list[Violation]:
    """Return the violations of a tree, without suppressed ones."""
    source, tree = parsed.document.source, parsed.tree
    violations: list[Violation] = []
    if funnel.confirms(tree, settings.markers, source):
        from jaxresid.linter.resolve.facts import Facts

        module = project.module_at(file) if project is not None and file is not None else None
        facts = Facts(
            source,
            tree,
            module=module.name if module else "",
            is_package=module.is_package if module else False,
            names=known.names if known is not None else None,
            project=project,
            target_jax=settings.target_jax,
            path=file,
        )
        lenient = _is_test(file or PurePath(source.path), module.name if module else "")
        for rule in settings.rules:
            found = rule().find(facts)
            if lenient and rule.lenient_in_tests:
                found = (replace(violation, severity="info") for violation in found)
            violations += found
        if violations:
            expected = _rows_expected_to_fail(tree)
            violations = [v for v in violations if v.span.row not in expected]
    if not settings.ignore_noqa and _may_suppress(source.text):
        from jaxresid.linter.text import suppress

        # A rule that saw only a part of its project was silent for that reason, perhaps.
        sees_all = project is not None and project.complete
        on = {rule.code for rule in settings.rules if sees_all or not rule.project}
        kept, unused = suppress.apply(
            sorted(violations, key=lambda v: v.sort_key),
            suppress.parse(source.text),
            enabled=on.__contains__,
            known=settings.known,
            optional=settings.optional,
            path=source.path,
        )
        violations = [*kept, *(unused if suppress.CODE in on else ())]
    return [
        v if v.fix is None or settings.fixable(v.code) else replace(v, fix=None) for v in violations
    ]


def _is_test(path: PurePath, module: str) -> bool:
    """Return whether a file is a test, or stands with tests.

    Args:
      path: the file.
      module: its dotted name; "" where it has none.
    """
    folders = {path.parent.name, *module.split(".")[:-1]}
    return _TEST_MODULE.fullmatch(path.name) is not None or not _TEST_FOLDERS.isdisjoint(folders)


class FixResult(NamedTuple):
    """The result of fixing one file.

    Attributes:
      raw: the file's new bytes; the old ones where nothing was fixed.
      fixes: the violations whose fixes were made.
      linted: what is left.
    """

    raw: bytes
    fixes: tuple[Violation, ...]
    linted: Linted


def fix_bytes(
    raw: bytes,
    path: str,
    settings: LintSettings,
    *,
    project: Callable[[bytes], Project | None] = lambda _: None,
    file: Path | None = None,
) -> FixResult:
    """Make the fixes of one file until none is left, in rounds of fixes that do not overlap.

    A round whose result would not parse is taken apart: the fixes that break it are left out.

    Args:
      raw: the file's bytes.
      path: the file as it is shown; its suffix tells a notebook.
      settings: what to look for.
      project: returns the project as the file sees it, with its content after each round.
      file: where the file is, for the project's index.
    """
    made: list[Violation] = []
    refused: set[Fix] = set()
    for _ in range(_MAX_ROUNDS):
        if not funnel.mentions(raw, settings.markers):
            break
        document = read(raw, path)
        if isinstance(document, Violation):
            break
        found = violations_in(document, settings, project=project(raw), file=file)
        chosen = [v for v in _fixes_of_round(document, found, settings) if v.fix not in refused]
        if not chosen:
            break
        after = _applied(document, chosen)
        if after is None:
            # At least one breaks the file; find out which, one at a time.
            alone = {v.fix: _applied(document, [v]) for v in chosen}
            broken_fixes = {f for f, result in alone.items() if result is None and f is not None}
            refused |= broken_fixes or {v.fix for v in chosen[1:] if v.fix is not None}
            continue
        if after == raw:
            break
        raw = after
        made += chosen
    return FixResult(
        raw, tuple(made), lint_bytes(raw, path, settings, project=project(raw), file=file)
    )


def _fixes_of_round(
    document: Document, violations: Sequence[Violation], settings: LintSettings
) -> list[Violation]:
    """Return the violations to fix in one round, in source order.

    Overlapping ones are left for the next round.
    """
    source = document.source
    taken: list[tuple[int, int]] = []
    chosen = []
    for violation in sorted(violations, key=lambda v: v.sort_key):
        fix = violation.fix
        if fix is None or (fix.applicability == "unsafe" and not settings.unsafe_fixes):
            continue
        ranges = [(source.start(e.span), source.end(e.span)) for e in fix.edits]
        if any(_overlap(r, t) for r in ranges for t in taken):
            continue
        taken += ranges
        chosen.append(violation)
    return chosen


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether two ranges share text, or are so close that their order would matter."""
    return one[0] <= other[1] and other[0] <= one[1]


def _applied(document: Document, violations: Sequence[Violation]) -> bytes | None:
    """Return the bytes after some fixes, None where the result is not what it should be."""
    edits = dict.fromkeys(e for v in violations if v.fix is not None for e in v.fix.edits)
    try:
        raw = document.edited(edits)
        after = read(raw, document.source.path)
        if isinstance(after, Violation):
            return None
        if len(after.parsed().errors) > len(document.parsed().errors):
            return None
    except ValueError:  # overlaps, encodings, syntax
        return None
    return raw


def _rows_expected_to_fail(tree: ast.Module) -> frozenset[int]:
    """Return the rows inside `with pytest.raises(...)` and `assertRaises`.

    A mistake there is intended.
    """
    rows: set[int] = set()
    for node in walk(tree):
        match node:
            case ast.With(items=items):
                calls: list[ast.expr] = [i.context_expr for i in items]
            case ast.Call():
                calls = [node]
            case _:
                continue
        for call in calls:
            name = getattr(getattr(call, "func", None), "attr", "")
            if name in {"raises", "deprecated_call"} or name.startswith("assertRaises"):
                rows.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return frozenset(rows)


def _may_suppress(text: str) -> bool:
    return "jaxresid:" in text or "noqa" in text.lower()


def _linted(document: Document, violations: Sequence[Violation]) -> Linted:
    ordered = tuple(dict.fromkeys(sorted(violations, key=lambda v: v.sort_key)))
    return Linted(document.source.path, ordered, document.lines(ordered))
