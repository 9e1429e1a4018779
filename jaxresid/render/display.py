"""Registration of the renderers of each value of `jaxresid.results`.

Renderers are imported when they are called.
"""

from __future__ import annotations

from typing import Any

from jaxresid.base.option_types import GroupBy, PictureView, ReportView
from jaxresid.results.comparison.comparison import Comparison
from jaxresid.results.comparison.difference import Difference
from jaxresid.results.comparison.sweep import Sweep
from jaxresid.results.compiled import CompiledReport
from jaxresid.results.display import html_writer, printer, renderer, svg_writer
from jaxresid.results.out_of_memory import OomReport
from jaxresid.results.plan.plan import Plan
from jaxresid.results.report.report import Report
from jaxresid.results.report.rows import ResidualGroups


@printer.register
def _(
    value: Report,
    *,
    view: ReportView | None = None,
    verbose: bool = False,
    group_by: GroupBy | None = None,
    top: int | None = None,
    all: bool = False,
) -> None:
    from jaxresid.render.report.text import print_report

    print_report(value, view=view, verbose=verbose, group_by=group_by, top=top, all=all)


@printer.register
def _(value: Comparison) -> None:
    from jaxresid.render.tables.compare import print_comparison

    print_comparison(value)


@printer.register
def _(value: CompiledReport) -> None:
    from jaxresid.render.report.compiled import print_compiled

    print_compiled(value)


@printer.register
def _(value: Plan) -> None:
    from jaxresid.render.tables.plan import print_plan

    print_plan(value)


@printer.register
def _(value: Sweep) -> None:
    from jaxresid.render.tables.sweep import print_sweep

    print_sweep(value)


@printer.register
def _(value: OomReport, *, verbose: bool = False) -> None:
    from jaxresid.render.oom.text import print_oom

    print_oom(value, verbose=verbose)


@printer.register
def _(value: Difference, *, all: bool = False) -> None:
    from jaxresid.render.diff.text import print_difference

    print_difference(value, all=all)


@renderer.register
def _(value: Report, encoding: str) -> Any:
    from jaxresid.render.report.rows import View
    from jaxresid.render.report.text import render_report

    return render_report(value, View(), encoding)


@renderer.register
def _(value: Comparison, encoding: str) -> Any:
    from jaxresid.render.tables.compare import render_comparison

    return render_comparison(value, encoding)


@renderer.register
def _(value: CompiledReport, encoding: str) -> Any:
    from jaxresid.render.report.compiled import render_compiled

    return render_compiled(value)


@renderer.register
def _(value: Plan, encoding: str) -> Any:
    from jaxresid.render.tables.plan import render_plan

    return render_plan(value, encoding)


@renderer.register
def _(value: Sweep, encoding: str) -> Any:
    from jaxresid.render.tables.sweep import render_sweep

    return render_sweep(value)


@renderer.register
def _(value: Difference, encoding: str) -> Any:
    from jaxresid.render.diff.text import render_difference

    return render_difference(value)


@renderer.register
def _(value: OomReport, encoding: str) -> Any:
    from jaxresid.render.oom.text import render_oom

    return render_oom(value)


@renderer.register
def _(value: ResidualGroups, encoding: str) -> Any:
    from jaxresid.render.tables.groups import render_groups

    return render_groups(value)


@printer.register
def _(value: ResidualGroups) -> None:
    from jaxresid.render.tables.groups import print_groups

    print_groups(value)


@svg_writer.register
def _(value: Report, *, view: PictureView) -> str:
    from jaxresid.render.svg import pictures

    return pictures.report_svg(value, view)


@svg_writer.register
def _(value: Comparison) -> str:
    from jaxresid.render.svg.frontier import comparison_frontier

    return comparison_frontier(value)


@svg_writer.register
def _(value: Plan) -> str:
    from jaxresid.render.svg.frontier import plan_frontier

    return plan_frontier(value)


def plain_text(value: object, width: int) -> str:
    """Return the text of a value without colours, as wide as `width` columns."""
    from jaxresid.render.notebook.parts import plain_lines

    return "\n".join(plain_lines([renderer(value, "utf-8")], width))


@html_writer.register
def _(value: Report) -> str:
    from jaxresid.render.notebook.report import report_html

    return report_html(value)


@html_writer.register
def _(value: Comparison | CompiledReport | Difference | OomReport | Plan | Sweep) -> str:
    from jaxresid.render.notebook.others import result_html

    return result_html(value)


@html_writer.register
def _(value: ResidualGroups) -> str:
    from jaxresid.render.notebook.others import groups_html

    return groups_html(value)
