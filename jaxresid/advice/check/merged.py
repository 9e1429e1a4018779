"""Join the findings of several targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from jaxresid.advice.check.budgets import BUDGET_CODES
from jaxresid.base.violations import Linted, Violation


def merged(results: Iterable[tuple[str, Iterable[Linted]]]) -> tuple[Linted, ...]:
    """Return the findings of several targets by file, sorted by path, each once.

    A message that does not name its target itself ends with those that it holds for.

    Args:
      results: The name of each target, and its findings by file.
    """
    found: dict[str, dict[object, tuple[Violation, list[str]]]] = {}
    lines: dict[str, dict[int | None, tuple[str, ...]]] = {}
    for name, by_file in results:
        for linted in by_file:
            file = found.setdefault(linted.path, {})
            lines.setdefault(linted.path, {}).update(linted.lines)
            for violation in linted.violations:
                _, names = file.setdefault(_key(violation), (violation, []))
                names.append(name)
    return tuple(
        Linted(path, _sorted(_named(v, names) for v, names in found[path].values()), lines[path])
        for path in sorted(found)
    )


def _key(violation: Violation) -> object:
    span = violation.span
    return violation.code, violation.cell, span, violation.message, violation.severity


def _named(violation: Violation, names: list[str]) -> Violation:
    message, measured = violation.message, violation.measured
    if violation.code not in BUDGET_CODES:
        message = f"{message} (target{'s' * (len(names) > 1)} {', '.join(names)})"
    added: Mapping[str, object] = {**measured, "targets": ", ".join(names)}
    return replace(violation, message=message, measured=added)


def _sorted(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    return tuple(sorted(violations, key=lambda v: v.sort_key))
