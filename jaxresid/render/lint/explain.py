"""The explanation of a rule, and the list of all rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jaxresid.base.text.safe_text import json_text
from jaxresid.base.violations import RuleInfo
from jaxresid.render.lint.layout import Paint, painter, wrap

_MARK = re.compile(r"(?<![ \t])[ \t]*+# !$", re.MULTILINE)
_VERBATIM = re.compile(r"^(\s|```|[-*>|] |\d+\. )", re.MULTILINE)
_INDENT = 4


def explain(rule: RuleInfo, format: str, *, color: bool = False, width: int = 80) -> str:
    """Return what one rule finds, why, what to write instead, and an example of each.

    Args:
      rule: the rule.
      format: `text` or `json`.
      color: whether the text is coloured.
      width: the width of the terminal, in columns.

    Raises:
      ValueError: there is no such format.
    """
    if _checked(format) == "json":
        return _dump(_rule(rule))
    paint = painter(color)
    lines = [
        f"{paint('bold', rule.code)} {paint('bold', rule.name)}",
        "",
        *_paragraphs(rule.summary, width),
        "",
        *_facts(rule, paint, width),
    ]
    for heading, body in rule.sections.items():
        lines += ["", paint("label", heading), *_paragraphs(body, width)]
    pointer = f"  # <-- {rule.code}"
    for heading, sources in (("Bad", rule.bad), ("Good", rule.good)):
        if sources:
            source = _MARK.sub(pointer, sources[0].strip("\n"))
            lines += ["", paint("label", heading), *_indented(source)]
    return "\n".join(lines) + "\n"


def explain_in_markdown(rule: RuleInfo) -> str:
    """Return what `explain` says of one rule, as Markdown for a window of an editor."""
    pointer = f"  # <-- {rule.code}"
    facts = [f"{key} {fact}" for key, fact in _fact_table(rule).items()]
    parts = [f"**{rule.code}** `{rule.name}`", rule.summary, f"*{' · '.join(facts)}*"]
    for heading, body in rule.sections.items():
        parts += [f"### {heading}", body]
    for heading, sources in (("Bad", rule.bad), ("Good", rule.good)):
        if sources:
            source = _MARK.sub(pointer, sources[0].strip("\n"))
            parts += [f"### {heading}", f"```python\n{source}\n```"]
    return "\n\n".join(parts) + "\n"


def rule_table(rules: Sequence[RuleInfo], format: str, *, width: int = 80) -> str:
    """Return all rules in the order given, as a table or as a JSON array.

    The table has a row for each rule; the array has the objects that `explain` returns as JSON.

    Args:
      rules: the rules.
      format: `text` or `json`.
      width: the width of the terminal, in columns.

    Raises:
      ValueError: there is no such format.
    """
    if _checked(format) == "json":
        return _dump([_rule(rule) for rule in rules])
    if not rules:
        return ""
    cells = [("code", "name", "severity", "fix", "default"), *map(_cells, rules)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rows = ["  ".join(f"{c:{w}}" for c, w in zip(row, widths, strict=True)) for row in cells]
    room = width - len(rows[0]) - 2
    summaries = ["summary", *(rule.summary for rule in rules)]
    lines: list[str] = []
    for row, summary in zip(rows, summaries, strict=True):
        if room >= _INDENT * 5:
            first, *rest = wrap(summary, room) or [""]
            lines += [f"{row}  {first}", *(f"{'':{len(row) + 2}}{line}" for line in rest)]
        else:  # a narrow terminal: under the row
            lines += [row, *(f"{'':{_INDENT}}{line}" for line in wrap(summary, width - _INDENT))]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _checked(format: str) -> str:
    if format not in ("text", "json"):
        raise ValueError(f"format must be text or json, not {format!r}")
    return format


def _cells(rule: RuleInfo) -> tuple[str, ...]:
    return rule.code, rule.name, rule.severity, rule.fix or "", "on" if rule.default else "off"


def _facts(rule: RuleInfo, paint: Paint, width: int) -> list[str]:
    facts = _fact_table(rule) | {"severity": paint(rule.severity, rule.severity)}
    return [f"{paint('dim', f'{key}:'.ljust(10))}{fact}" for key, fact in facts.items()]


def _fact_table(rule: RuleInfo) -> dict[str, str]:
    fix = f"sometimes, {rule.fix}" if rule.fix else "none"
    return {
        "severity": rule.severity,
        "default": "on" if rule.default else f"off; --extend-select {rule.code} turns it on",
        "fix": fix,
        "since": f"jaxresid {rule.since}",
        "jax": rule.jax or "every version",
        "needs": _needs(rule),
    }


def _needs(rule: RuleInfo) -> str:
    if rule.traced:
        return "a trace, which check makes"
    return "the whole project" if rule.project else "one file"


def _paragraphs(text: str, width: int) -> list[str]:
    """Return text as lines: prose is wrapped; lists, tables and code are left as they are."""
    lines: list[str] = []
    for paragraph in re.split(r"\n[ \t]*\n", text.strip("\n")):
        kept = _VERBATIM.search(paragraph) is not None
        body = paragraph.splitlines() if kept else wrap(" ".join(paragraph.split()), width)
        lines += [*([""] if lines else []), *body]
    return lines


def _indented(source: str) -> list[str]:
    return [f"{'':{_INDENT}}{line}" if line.strip() else "" for line in source.splitlines()]


def _rule(rule: RuleInfo) -> dict[str, Any]:
    return {
        "name": rule.name,
        "code": rule.code,
        "linter": "jaxresid",
        "summary": rule.summary,
        "fix": rule.fix,
        "fix_availability": "Sometimes" if rule.fix else "None",
        "explanation": "\n\n".join(f"## {key}\n{text}" for key, text in rule.sections.items()),
        "severity": rule.severity,
        "default": rule.default,
        "since": rule.since,
        "jax": rule.jax,
        "project": rule.project,
        **({"traced": True} if rule.traced else {}),
        "examples": {"bad": _sources(rule.bad), "good": _sources(rule.good)},
    }


def _sources(sources: Sequence[str]) -> list[str]:
    return [_MARK.sub("", source) for source in sources]


def _dump(value: Any) -> str:
    return json_text(value) + "\n"
