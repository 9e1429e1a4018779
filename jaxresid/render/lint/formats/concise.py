"""The `concise` format: one line per finding, in the shape that editors and `grep` know."""

from __future__ import annotations

from jaxresid.base.text.safe_text import one_line, visible
from jaxresid.base.violations import Violation
from jaxresid.render.lint.layout import Paint, painter
from jaxresid.render.lint.run import Run, label, position
from jaxresid.render.lint.summary import summary_lines


def render(run: Run) -> str:
    """Return one line for each finding, and the summary."""
    paint = painter(run.color)
    lines = [_line(run, v, paint) for v in run.violations]
    return "".join(f"{line}\n" for line in [*lines, *summary_lines(run, paint)])


def _line(run: Run, v: Violation, paint: Paint) -> str:
    where = paint("bold", visible(position(run.relative(v.path), v.cell, v.span)))
    mark = f"[{paint('info', '*')}] " if run.fixable(v) else ""
    return f"{where}: {paint(v.severity, visible(label(v)))} {mark}{one_line(v.message)}"
