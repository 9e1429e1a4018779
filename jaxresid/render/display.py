"""Registration of the renderers of each value of `jaxresid.model`.

Renderers are imported when they are called, so that HTML does not import rich.
"""

from __future__ import annotations

from jaxresid.model.comparison import Comparison
from jaxresid.model.compiled import CompiledReport
from jaxresid.model.difference import Difference
from jaxresid.model.display import html_writer, printer
from jaxresid.model.out_of_memory import OomReport
from jaxresid.model.plan import Plan
from jaxresid.model.report import Report
from jaxresid.model.sweep import Sweep
from jaxresid.option_types import GroupBy, ReportView


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


@html_writer.register
def _(value: Report) -> str:
    from jaxresid.render.report.html import report_html

    return report_html(value)
