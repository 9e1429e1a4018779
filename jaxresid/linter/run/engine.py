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

from jaxresid.base.violations import OVER_LIMIT, Fix, Linted, Violation
from jaxresid.linter.text import prefilter, time_limit
from jaxresid.linter.text.document import INVALID_SYNTAX, Document, Parsed, broken, read
from jaxresid.linter.text.syntax import UnparsableError
from jaxresid.linter.text.trees import walk

if TYPE_CHECKING:
    from jaxresid.linter.resolve.neighbours import ParsedModule
    from jaxresid.linter.resolve.project import Project
    from jaxresid.linter.rule import Rule


UNREADABLE = "unreadable"
_TEST_MODULE = re.compile(r"test_.*\.py|.*_tests?\.py|tests?\.py|conftest\.py")
_TEST_FOLDERS = frozenset({"test", "tests"})
# A fix may enable another; ruff stops after as many rounds.
_MAX_ROUNDS = 100


@dataclass(frozen=True)
class LintSettings:
    """The settings that linting one file needs.

    Attributes:
      known: code -> name of every rule there is, for suppression comments.
      optional: the codes of those that are off by default.
      target_jax: the jax that the code is written for; None for the newest.
    """

    rules: tuple[type[Rule], ...]
    known: Mapping[str, str]
    optional: frozenset[str] = frozenset()
    target_jax: tuple[int, int] | None = None
    unsafe_fixes: bool = False
    ignore_noqa: bool = False
    fixable: frozenset[str] | None = None  # all of them

    @cached_property
    def markers(self) -> frozenset[bytes]:
        """The words to look for: a file with none of them concerns none of the rules."""
        return frozenset(m for rule in self.rules for m in rule.markers)


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
    """Lint one file's content; `path` is how it is shown, and `file` where it is in the project."""
    if not prefilter.mentions(raw, settings.markers):
        return Linted(path, ())
    document = read(raw, path)
    if isinstance(document, Violation):
        return Linted(path, (document,))
    unordered = violations_in(document, settings, project=project, file=file)
    ordered = sorted(map(document.relative_to_cell, unordered), key=lambda v: v.sort_key)
    violations = tuple(dict.fromkeys(ordered))
    return Linted(path, violations, document.lines(violations))


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
    source, tree = parsed.document.source, parsed.tree
    violations: list[Violation] = []
    if prefilter.confirms(tree, settings.markers, source):
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
        path = file or PurePath(source.path)
        folders = {path.parent.name, *(module.name.split(".")[:-1] if module else ())}
        lenient = _TEST_MODULE.fullmatch(path.name) or not _TEST_FOLDERS.isdisjoint(folders)
        for rule in settings.rules:
            of_rule = rule().find(facts)
            if lenient and rule.lenient_in_tests:
                of_rule = (replace(violation, severity="info") for violation in of_rule)
            violations += of_rule
        if violations:
            expected = _rows_expected_to_fail(tree)
            violations = [v for v in violations if v.span.row not in expected]
    may_suppress = "jaxresid:" in source.text or "noqa" in source.text.lower()
    if may_suppress and not settings.ignore_noqa:
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
    if settings.fixable is None:
        return violations
    return [v if v.code in settings.fixable else replace(v, fix=None) for v in violations]


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
      project: returns the project as the file sees it, with its content after each round.
    """
    fixes: list[Violation] = []
    refused: set[Fix] = set()
    for _ in range(_MAX_ROUNDS):
        if not prefilter.mentions(raw, settings.markers):
            break
        document = read(raw, path)
        if isinstance(document, Violation):
            break
        violations = violations_in(document, settings, project=project(raw), file=file)
        chosen = [
            v for v in _fixes_of_round(document, violations, settings) if v.fix not in refused
        ]
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
        fixes += chosen
    return FixResult(
        raw, tuple(fixes), lint_bytes(raw, path, settings, project=project(raw), file=file)
    )


def _fixes_of_round(
    document: Document, violations: Sequence[Violation], settings: LintSettings
) -> list[Violation]:
    """Return the violations to fix in one round, in source order, none of which overlap."""
    source = document.source
    taken: list[tuple[int, int]] = []
    chosen = []
    for violation in sorted(violations, key=lambda v: v.sort_key):
        fix = violation.fix
        if fix is None or (fix.applicability == "unsafe" and not settings.unsafe_fixes):
            continue
        ranges = [(source.start(e.span), source.end(e.span)) for e in fix.edits]
        # Where they touch, their order would matter.
        if any(r[0] <= t[1] and t[0] <= r[1] for r in ranges for t in taken):
            continue
        taken += ranges
        chosen.append(violation)
    return chosen


def _applied(document: Document, violations: Sequence[Violation]) -> bytes | None:
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
