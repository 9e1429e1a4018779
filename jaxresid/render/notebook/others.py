"""Results other than reports as notebooks show them: the first lines of the text, then the rest."""

from __future__ import annotations

import contextlib

from jaxresid.render.notebook.parts import answered, folded, pictured, plain_lines, printed, view
from jaxresid.render.svg.frontier import comparison_frontier, plan_frontier
from jaxresid.results import (
    Comparison,
    CompiledReport,
    Difference,
    OomReport,
    Plan,
    ResidualGroups,
    Sweep,
)
from jaxresid.results.display import render

_MOST = 4  # lines of an answer
_WIDE = 140
_FEW = 12

Other = Comparison | CompiledReport | Difference | OomReport | Plan | Sweep


def result_html(value: Other) -> str:
    """Return a result as HTML: what its text begins with, its picture, and all of the text."""
    text = render(value, "utf-8")
    lines = plain_lines([text], _WIDE)
    answer = lines[: lines.index("")] if "" in lines else lines
    return view(answered(answer[:_MOST]), _picture(value), folded("all of it", printed(text)))


def _picture(value: Other) -> str:
    """Return the picture of a result; nothing for one that has none."""
    if isinstance(value, Plan):
        return pictured(plan_frontier(value))
    if isinstance(value, Comparison):
        with contextlib.suppress(ValueError):  # no row has figures
            return pictured(comparison_frontier(value))
    return ""


def groups_html(groups: ResidualGroups) -> str:
    """Return sums of residuals as HTML: all in all, and the table, folded where it is long."""
    text = render(groups, "utf-8")
    answer = plain_lines([text])[-1:]
    by = " and ".join(groups.by)
    is_short = len(groups.rows) <= _FEW
    return view(answered(answer), folded(f"by {by}", printed(text), is_open=is_short))
