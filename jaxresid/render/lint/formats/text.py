"""The `text` format, for a terminal.

Each finding is shown with its source, why it matters, and what to do. That of a trace says first
what is wrong, and its figures and the reason below the source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from jaxresid.base.text.safe_text import one_line, visible
from jaxresid.base.violations import Fix, Violation
from jaxresid.render.lint.excerpt import excerpt, gutter_width
from jaxresid.render.lint.layout import Paint, labelled, painter
from jaxresid.render.lint.run import Run, label, position
from jaxresid.render.lint.summary import summary_lines


def render(run: Run) -> str:
    """Return each finding with its source, and the summary."""
    paint = painter(run.color)
    lines: list[str] = []
    for violation in run.violations:
        lines += [*_finding(run, violation, paint), ""]
    return "".join(f"{line}\n" for line in [*lines, *summary_lines(run, paint)])


def _finding(run: Run, v: Violation, paint: Paint) -> list[str]:
    source = run.lines(v.path, v.cell)
    margin = " " * gutter_width(source, v.span)
    said, why = _said(v)
    lines = [
        _header(run, v, said, paint),
        f"{margin}{paint('gutter', '-->')} {_position(run, v.path, v)}",
        *excerpt(source, v.span, run.width, paint, v.severity),
    ]
    if why:
        lines += labelled("why", why, run.width, paint)
    if v.help:
        lines += labelled("help", v.help, run.width, paint)
    if by := _by(v.measured):
        lines += labelled("figures", by, run.width, paint)
    for related in v.related:
        where = visible(position(run.relative(related.path), related.cell, related.span))
        lines.append(f"{paint('label', 'note:')} {where}: {one_line(related.message)}")
    if v.fix is not None:
        lines += labelled("fix", f"{v.fix.title} ({_applicability(v.fix)})", run.width, paint)
    return lines


def _position(run: Run, path: str, v: Violation) -> str:
    return visible(position(run.relative(path), v.cell, v.span))


def _said(v: Violation) -> tuple[str, str]:
    """Return what is wrong, and why.

    The message of a finding of a trace says both, the reason after its first colon or sentence.
    """
    if v.why or not v.measured:
        return v.message, v.why
    parts = re.split(r"(?<!\d): |\. (?=[A-Z])", v.message, maxsplit=1)
    return parts[0], "".join(parts[1:])


def _header(run: Run, v: Violation, said: str, paint: Paint) -> str:
    parts = [paint(v.severity, f"{v.severity}:"), paint("bold", visible(label(v)))]
    if run.fixable(v):
        parts.append(f"[{paint('info', '*')}]")
    parts.append(paint("bold", one_line(said)))
    if v.code != v.name:
        parts.append(paint("dim", visible(f"({v.name})")))
    return " ".join(parts)


def _applicability(fix: Fix) -> str:
    return "safe" if fix.applicability == "safe" else "unsafe: --unsafe-fixes"


def _by(measured: Mapping[str, object]) -> str:
    """Return whose figures those in a message are: `estimated for gpu:h100, jax 0.12.0`.

    The text is empty where the place is not known.
    """
    on = measured.get("on")
    if on is None:
        return ""
    if measured.get("by") == "trace":
        text = f"exact, of the trace for {on}"
    elif measured.get("by") == "xla" or measured.get("profile") is None:
        text = f"XLA's for {on}"
    else:
        text = f"estimated for {on}"
    if "jax" in measured:
        text += f", jax {measured['jax']}"
    unconfirmed = measured.get("unconfirmed")
    return f"{text}; unconfirmed by XLA: {unconfirmed}" if unconfirmed else text
