"""Differences as Markdown, for a comment on a pull request: a table each, the details folded."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence

from jaxresid.base.text.safe_text import one_line, safe_value
from jaxresid.base.text.units import format_bytes
from jaxresid.render.diff import words
from jaxresid.results import Difference, LineDifference

# A comment is read by people, and platforms cut long ones.
_LINES, _CHECKPOINTS, _VALUES = 50, 50, 4


def render_markdown(differences: Sequence[Difference]) -> str:
    """Return differences as Markdown, each under a heading that says what changed."""
    return "\n\n".join("\n".join(_parts(safe_value(each))) for each in differences)


def _parts(difference: Difference) -> Iterator[str]:
    name = difference.after.target.name
    sentence = words.headline(difference)
    yield f"### {code(name)}: {_escaped(sentence[0].lower() + sentence[1:].rstrip('.'))}"
    yield ""
    first, *parts = words.sides_parts(difference)
    yield _escaped(" · ".join((first.removeprefix(f"{name}: "), *parts)))
    if difference.notes:
        yield ""
        yield from (f"- {_escaped(note)}" for note in difference.notes)
    if difference.is_same:
        return
    labels = (_escaped(side.label) for side in (difference.before, difference.after))
    if figures := list(words.figures(difference)):
        yield ""
        yield from _table(("", *labels, "difference"), figures, ":--|--:|--:|--:")
    if difference.lines:
        yield from _folded(
            words.lines_summary(difference.lines),
            _table(
                ("difference", "before", "after", "line", "values"),
                _rows(difference),
                "--:|--:|--:|:--|:--",
            ),
        )
    if difference.checkpoints:
        rows = (
            (
                code(words.checkpoint_heading(each)),
                _escaped(" · ".join(words.checkpoint_notes(each))),
            )
            for each in difference.checkpoints[:_CHECKPOINTS]
        )
        count = len(difference.checkpoints)
        yield from _folded(
            f"{count} checkpoint{'s' * (count != 1)}",
            _table(("checkpoint", "what differs"), rows, ":--|:--"),
        )
    if difference.inputs:
        values = (f"- {code(words.value_text(value))}" for value in difference.inputs[:_LINES])
        yield from _folded("arguments that the backward pass reads", values)
    if difference.found or difference.gone:
        yield from _folded("findings", _findings(difference))


def _rows(difference: Difference) -> Iterator[tuple[str, ...]]:
    ordered = words.by_size(difference.lines)
    for line in ordered[:_LINES]:
        yield (
            words.line_growth(line),
            *map(format_bytes, words.line_figures(line)),
            _line(line),
            _escaped(" · ".join(words.line_notes(line, _VALUES))),
        )
    if rest := ordered[_LINES:]:
        yield "", "", "", f"{words.lines_summary(rest)}", ""


def _line(line: LineDifference) -> str:
    where = code(words.where_text(line.location, line.scope))
    if words.is_gone(line):
        where += f" {words.EARLIER}"
    return where if line.location is None else f"{where}<br>{code(line.location.code)}"


def _findings(difference: Difference) -> Iterator[str]:
    for word, findings in (("new", difference.found), ("gone", difference.gone)):
        for finding in findings:
            at = f" at {code(words.where_text(finding.location))}" if finding.location else ""
            yield f"- {word}: {_escaped(finding.name)}{at}: {_escaped(finding.message)}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], alignment: str) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{alignment}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _folded(summary: str, body: Iterator[str]) -> Iterator[str]:
    yield ""
    yield f"<details><summary>{html.escape(one_line(summary))}</summary>"
    yield ""
    yield from body
    yield ""
    yield "</details>"


def code(text: str) -> str:
    """Return text as inline code of Markdown that can stand in a table."""
    shown = one_line(text).replace("|", "\\|")
    runs = [len(run) for run in re.findall("`+", shown)]
    fence = "`" * (max(runs, default=0) + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}" if shown else ""


def _escaped(text: str) -> str:
    """Return text in which nothing is Markdown, HTML or a link, and no user is mentioned."""
    shown = re.sub(r"([\\`*_{}\[\]<>|~#&$]|:(?=//)|(?<=www)\.)", r"\\\1", one_line(text))
    return shown.replace("@", "@\u200b")
