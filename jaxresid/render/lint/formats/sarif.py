"""The `sarif` format: SARIF 2.1.0, for code scanning services and viewers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jaxresid.base.text.safe_text import json_text
from jaxresid.base.urls import rule_page
from jaxresid.base.violations import Fix, Related, RuleInfo, Span, Violation
from jaxresid.render.lint.run import Run, fingerprints, message_lines, plain, position_inside
from jaxresid.render.lint.uris import file_uri, relative_uri

_BASE = "%SRCROOT%"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_PROBLEM_SEVERITIES = {"error": "error", "warning": "warning", "info": "recommendation"}


def render(run: Run) -> str:
    """Return the findings as a SARIF log."""
    rules = _rules(run)
    index = {rule["id"]: i for i, rule in enumerate(rules)}
    marks = fingerprints(run)
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "jaxresid", "version": run.version, "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {_BASE: {"uri": _base_uri(run)}},
                "results": [
                    _result(run, v, index[v.code], f"{digest}:{number}")
                    for v, (digest, number) in zip(run.violations, marks, strict=True)
                ],
            }
        ],
    }
    return json_text(log) + "\n"


def _base_uri(run: Run) -> str:
    return file_uri(run, ".").removesuffix("/") + "/"


def _rules(run: Run) -> list[dict[str, Any]]:
    """Return the rules that occur, and an entry for each reason not to lint a file."""
    known = {rule.code: rule for rule in run.rules}
    names = {v.code: v.name for v in run.violations}
    return [
        _rule(known[code]) if code in known else {"id": code, "name": names[code]}
        for code in sorted(names)
    ]


def _rule(rule: RuleInfo) -> dict[str, Any]:
    described = {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "defaultConfiguration": {"enabled": rule.default, "level": _LEVELS[rule.severity]},
        "properties": {
            "tags": ["jax", "memory"],
            "problem.severity": _PROBLEM_SEVERITIES[rule.severity],
            "fix": rule.fix,
            "since": rule.since,
            "jax": rule.jax,
        },
    }
    url = rule_page(rule.name)
    if url is not None:
        described["helpUri"] = url
    if rule.sections:
        described["fullDescription"] = {"text": next(iter(rule.sections.values()))}
        described["help"] = {
            "text": _joined(rule.sections, "{}\n{}"),
            "markdown": _joined(rule.sections, "## {}\n\n{}"),
        }
    return described


def _joined(sections: Mapping[str, str], template: str) -> str:
    return "\n\n".join(template.format(*section) for section in sections.items())


def _result(run: Run, v: Violation, rule_index: int, mark: str) -> dict[str, Any]:
    result = {
        "ruleId": v.code,
        "ruleIndex": rule_index,
        "level": _LEVELS[v.severity],
        "message": {"text": "\n".join(message_lines(v))},
        "locations": [_location(run, v.path, v.cell, v.span)],
        "partialFingerprints": {"primaryLocationLineHash": mark},
    }
    if v.related:
        result["relatedLocations"] = [_related(run, i, r) for i, r in enumerate(v.related)]
    if v.fix is not None and v.cell is None:  # a cell's rows are not the notebook file's
        result["fixes"] = [_fix(run, v.path, v.fix)]
    properties = dict(_properties(v))
    if properties:
        result["properties"] = properties
    return result


def _properties(v: Violation) -> Iterable[tuple[str, object]]:
    if v.cell is not None:
        span = v.span
        yield "cell", v.cell
        yield "cellRegion", _region(span)
    if v.fix is not None:
        yield "fixApplicability", v.fix.applicability
    if v.measured:
        yield "measured", plain(v.measured)


def _location(run: Run, path: str, cell: int | None, span: Span) -> dict[str, Any]:
    region = _region(span) if cell is None else {"startLine": 1}
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": _artifact(run, path), "region": region}
    }
    if cell is not None:
        location["logicalLocations"] = [
            {"name": f"cell {cell}", "fullyQualifiedName": position_inside(cell, span)}
        ]
    return location


def _related(run: Run, number: int, related: Related) -> dict[str, Any]:
    location = _location(run, related.path, related.cell, related.span)
    return {"id": number, "message": {"text": related.message}, **location}


def _artifact(run: Run, path: str) -> dict[str, str]:
    relative = relative_uri(run, path)
    if relative is None:
        return {"uri": file_uri(run, path)}
    return {"uri": relative, "uriBaseId": _BASE}


def _region(span: Span) -> dict[str, int]:
    return {
        "startLine": span.row,
        "startColumn": span.column + 1,
        "endLine": span.end_row,
        "endColumn": span.end_column + 1,
    }


def _fix(run: Run, path: str, fix: Fix) -> dict[str, Any]:
    replacements = [
        {"deletedRegion": _region(edit.span), "insertedContent": {"text": edit.text}}
        for edit in fix.edits
    ]
    change = {"artifactLocation": _artifact(run, path), "replacements": replacements}
    return {"description": {"text": fix.title}, "artifactChanges": [change]}
