"""The last lines of the formats for people."""

from __future__ import annotations

from collections.abc import Sequence

from jaxresid.base.violations import Violation
from jaxresid.render.lint.layout import Paint
from jaxresid.render.lint.run import Run


def summary_lines(run: Run, paint: Paint) -> list[str]:
    """Return how much was found, and how much of it `--fix` would fix.

    There are no lines where the run wants no summary.
    """
    if not run.summary:
        return []
    lines = [f"Fixed {_counted(run.fixed, 'finding')}."] if run.fixed else []
    if not run.violations:
        return [*lines, paint("good", "All checks passed!")]
    found = _counted(len(run.violations), "finding")
    lines.append(f"Found {found} ({_severities(run.violations)}).")
    fixable = sum(map(run.fixable, run.violations))
    more = sum(v.fix is not None for v in run.violations) - fixable
    if fixable:
        tail = f" ({more} more with --unsafe-fixes)" if more else ""
        lines.append(f"[*] {fixable} fixable with --fix{tail}.")
    elif more:
        lines.append(f"{more} fixable with --fix --unsafe-fixes.")
    return lines


def _severities(violations: Sequence[Violation]) -> str:
    counts = dict.fromkeys(("error", "warning", "info"), 0)
    for v in violations:
        counts[v.severity] += 1
    return ", ".join(_counted(n, kind) for kind, n in counts.items() if n)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
