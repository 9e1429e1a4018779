"""All findings of a report: checkpoints that are not worth it, and what else was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from jaxresid.render.report.checkpoints import STYLES
from jaxresid.render.report.overview.checkpoints import GOOD, grouped, places_text
from jaxresid.render.style.words import place_text, source_notes, verdict_text
from jaxresid.render.style.wrapping import FlowingParts
from jaxresid.results import Finding, Report

_INDENT = 2


@dataclass(frozen=True, slots=True)
class FindingLines:
    """One finding: what it is, where, and what is said of it."""

    head: str
    style: str
    where: tuple[str, ...]
    texts: tuple[str, ...]


def finding_lines(report: Report) -> tuple[FindingLines, ...]:
    """Return all findings: of checkpoints the verdicts that are no good, then the others."""
    return (*_of_verdicts(report), *_of_checkpoints(report), *_of_code(report))


def _of_verdicts(report: Report) -> Iterator[FindingLines]:
    for group in grouped(report.checkpoints):
        c = group.first
        if c.verdict in GOOD:
            continue
        reasons = tuple(dict.fromkeys(each.reason for each in group.checkpoints))
        style = STYLES.get(c.verdict, "bold yellow")
        places = (f"checkpoint of {c.function}", places_text(group, len(group.checkpoints)))
        yield FindingLines(verdict_text(c.verdict), style, places, reasons)


def _of_checkpoints(report: Report) -> Iterator[FindingLines]:
    findings = (finding for c in report.checkpoints for finding in c.findings)
    for finding in dict.fromkeys(findings):
        yield _finding_lines(finding.name, finding)


def _of_code(report: Report) -> Iterator[FindingLines]:
    for finding in report.findings:
        yield _finding_lines(finding.name, finding)


def _finding_lines(name: str, finding: Finding) -> FindingLines:
    where = [place_text(finding.location)] if finding.location is not None else []
    texts = [finding.message] + [f"help: {finding.help}"] * bool(finding.help)
    is_refuted = finding.compiled is not None and finding.compiled.verdict == "refuted"
    style = "dim" if is_refuted else "bold yellow"
    return FindingLines(name, style, (*where, *source_notes(finding.source)), tuple(texts))


def render_findings(found: Sequence[FindingLines]) -> Iterator[RenderableType]:
    """Yield the block on findings."""
    yield Text(f"{len(found)} finding{'s' * (len(found) != 1)}", style="bold")
    for each in found:
        head = [Text(each.head, style=each.style), *map(Text, filter(None, each.where))]
        yield FlowingParts(head, separator="  ", indent=_INDENT)
        for text in each.texts:
            yield Padding(Text(text), (0, 0, 0, _INDENT))
