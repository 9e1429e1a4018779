"""Join the findings of several targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from jaxresid.advice.check.budgets import BUDGET_CODES
from jaxresid.base.violations import Linted, Violation


def merged(results: Iterable[tuple[str, Iterable[Linted]]]) -> tuple[Linted, ...]:
    """Return the findings of several targets by file, sorted by path, each once.

    A message that does not name its target itself ends with those that it holds for.
    """
    by_path: dict[str, dict[object, tuple[Violation, list[str]]]] = {}
    lines: dict[str, dict[int | None, tuple[str, ...]]] = {}
    for name, by_file in results:
        for linted in by_file:
            file = by_path.setdefault(linted.path, {})
            lines.setdefault(linted.path, {}).update(linted.lines)
            for v in linted.violations:
                key = v.code, v.cell, v.span, v.message, v.severity
                _, names = file.setdefault(key, (v, []))
                names.append(name)
    merged_files = []
    for path, file in sorted(by_path.items()):
        violations = [_named(violation, names) for violation, names in file.values()]
        violations.sort(key=lambda v: v.sort_key)
        merged_files.append(Linted(path, tuple(violations), lines[path]))
    return tuple(merged_files)


def _named(violation: Violation, names: list[str]) -> Violation:
    message, measured = violation.message, violation.measured
    if violation.code not in BUDGET_CODES:
        message = f"{message} (target{'s' * (len(names) > 1)} {', '.join(names)})"
    added: Mapping[str, object] = {**measured, "targets": ", ".join(names)}
    return replace(violation, message=message, measured=added)
