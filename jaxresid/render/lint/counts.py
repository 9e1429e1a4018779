"""The number of findings of each rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from jaxresid.base.text.safe_text import json_text, visible
from jaxresid.base.violations import Linted, RuleInfo, Violation
from jaxresid.render.lint.run import is_fixable


@dataclass(frozen=True, slots=True)
class Count:
    """The findings of a rule, counted. The fields are JSON keys.

    Attributes:
      code: the code of the rule.
      name: the name of the rule.
      count: how many findings there are.
      fixable: whether `--fix` fixes all of them.
      fixable_count: how many of them `--fix` fixes.
    """

    code: str
    name: str
    count: int
    fixable: bool
    fixable_count: int


def counts(
    results: Sequence[Linted], rules: Sequence[RuleInfo], *, unsafe_fixes: bool
) -> list[Count]:
    """Return the counts of the rules with findings, by frequency, then by code."""
    names = {rule.code: rule.name for rule in rules}
    found: dict[str, list[Violation]] = {}
    for linted in results:
        for v in linted.violations:
            found.setdefault(v.code, []).append(v)
    counted = []
    for code, violations in found.items():
        mended = sum(is_fixable(v, unsafe_fixes) for v in violations)
        n = len(violations)
        counted.append(
            Count(code, names.get(code, violations[0].name), n, bool(mended == n), mended)
        )
    return sorted(counted, key=lambda c: (-c.count, c.code))


def counts_json(counted: Sequence[Count]) -> str:
    """Return counts as a JSON array."""
    return json_text([asdict(c) for c in counted]) + "\n"


def counts_text(counted: Sequence[Count]) -> str:
    """Return counts as a table, one line for each rule."""
    digits = max((len(str(c.count)) for c in counted), default=0)
    code = max((len(c.code) for c in counted), default=0)
    return "".join(
        visible(f"{c.count:{digits}}  {c.code:{code}}  [{_mark(c)}] {c.name}") + "\n"
        for c in counted
    )


def _mark(counted: Count) -> str:
    """Return `*` where `--fix` fixes all findings, `-` where some, else a space."""
    return "*" if counted.fixable else "-" if counted.fixable_count else " "
