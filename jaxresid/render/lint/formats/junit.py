"""The `junit` format: XML for viewers of test reports, a suite per file and a case per finding.

A finding is a failed case, unless its severity is `info`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from jaxresid.base.text.safe_text import lines, visible
from jaxresid.base.violations import Violation
from jaxresid.render.lint.run import Run, position, why_and_help

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(run: Run) -> str:
    """Return the findings as JUnit's XML."""
    top = ET.Element("testsuites", {"name": "jaxresid", **_counts(run.violations)})
    for path, violations in run.by_file():
        relative = run.relative(path)
        suite = ET.SubElement(top, "testsuite", {"name": visible(relative), **_counts(violations)})
        for violation in violations:
            _case(suite, visible(relative), violation)
    if not run.violations:
        suite = ET.SubElement(top, "testsuite", {"name": "jaxresid", **_counts(())})
        ET.SubElement(suite, "testcase", {"name": "No findings", "classname": "jaxresid"})
    ET.indent(top)
    body = ET.tostring(top, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _counts(violations: Sequence[Violation]) -> dict[str, str]:
    return {
        "tests": str(len(violations) or 1),
        "failures": str(sum(v.severity != "info" for v in violations)),
        "errors": "0",
        "skipped": "0",
    }


def _case(suite: ET.Element, path: str, v: Violation) -> None:
    where = position(path, v.cell, v.span)  # the path is visible already
    attributes = {"name": f"{v.code} {where}", "classname": path, "file": path}
    if v.cell is None:
        attributes["line"] = str(v.span.row)
    cleaned = {key: _xml(value) for key, value in attributes.items()}
    case = ET.SubElement(suite, "testcase", cleaned)
    text = _xml("\n".join([f"{where}: {v.code} {v.message}", *why_and_help(v)]))
    if v.severity == "info":
        ET.SubElement(case, "system-out").text = text
    else:
        failure = {"message": _xml(v.message), "type": v.severity}
        ET.SubElement(case, "failure", failure).text = text


def _xml(text: str) -> str:
    """Return lines of text without the characters that XML has no way to write."""
    return _NOT_XML.sub("", lines(text))
