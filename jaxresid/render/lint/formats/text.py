"""The `text` format, for a terminal.

Each finding is shown with its source, why it matters, and what to do.
"""

from __future__ import annotations

import math

from jaxresid.render.lint.excerpt import excerpt, gutter_width
from jaxresid.render.lint.layout import Paint, labelled, painter
from jaxresid.render.lint.run import Run, label, plain, position
from jaxresid.render.lint.summary import summary_lines
from jaxresid.safe_text import one_line, visible
from jaxresid.units import format_bytes, format_flops
from jaxresid.violations import Fix, Violation


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
    lines = [
        _header(run, v, paint),
        f"{margin}{paint('gutter', '-->')} {_position(run, v.path, v)}",
        *excerpt(source, v.span, run.width, paint, v.severity),
    ]
    if v.why:
        lines += labelled("why", v.why, run.width, paint)
    if v.help:
        lines += labelled("help", v.help, run.width, paint)
    if v.measured:
        measured = "; ".join(_figure(key, value) for key, value in v.measured.items())
        lines += labelled("measured", measured, run.width, paint)
    for related in v.related:
        where = visible(position(run.relative(related.path), related.cell, related.span))
        lines.append(f"{paint('label', 'note:')} {where}: {one_line(related.message)}")
    if v.fix is not None:
        lines += labelled("fix", f"{v.fix.title} ({_applicability(v.fix)})", run.width, paint)
    return lines


def _position(run: Run, path: str, v: Violation) -> str:
    return visible(position(run.relative(path), v.cell, v.span))


def _header(run: Run, v: Violation, paint: Paint) -> str:
    parts = [paint(v.severity, f"{v.severity}:"), paint("bold", visible(label(v)))]
    if run.fixable(v):
        parts.append(f"[{paint('info', '*')}]")
    parts.append(paint("bold", one_line(v.message)))
    if v.code != v.name:
        parts.append(paint("dim", visible(f"({v.name})")))
    return " ".join(parts)


def _applicability(fix: Fix) -> str:
    return "safe" if fix.applicability == "safe" else "unsafe: --unsafe-fixes"


def _figure(key: str, value: object) -> str:
    """Return a measured value as text; its unit is in its key."""
    if isinstance(value, int) and key.endswith("nbytes"):
        return f"{key.removesuffix('_nbytes')} {format_bytes(value)}"
    if isinstance(value, int) and key.endswith("flops"):
        return f"{key.removesuffix('_flops')} {format_flops(value)}"
    if isinstance(value, float) and math.isfinite(value):
        return f"{key} {value:.3g}"
    return f"{key} {plain(value)}"
