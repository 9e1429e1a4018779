"""Registration of the renderers of each value of `jaxresid.results`, each as `module:function`.

Renderers are imported when they are called.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from jaxresid.results.comparison.comparison import Comparison
from jaxresid.results.comparison.difference import Difference
from jaxresid.results.comparison.sweep import Sweep
from jaxresid.results.compiled import CompiledReport
from jaxresid.results.display import html_writer, printer, renderer, svg_writer
from jaxresid.results.out_of_memory import OomReport
from jaxresid.results.plan.plan import Plan
from jaxresid.results.report.report import Report
from jaxresid.results.report.rows import ResidualGroups

_RENDERERS: Mapping[Any, str] = {
    Report: "report.text:render_report",
    Comparison: "tables.compare:render_comparison",
    CompiledReport: "report.compiled:render_compiled",
    Plan: "tables.plan:render_plan",
    Sweep: "tables.sweep:render_sweep",
    Difference: "diff.text:render_difference",
    OomReport: "oom.text:render_oom",
    ResidualGroups: "tables.groups:render_groups",
}
# Those whose characters depend on the encoding of the stream.
_ENCODED = (Report, Comparison, Plan)
# Those with commands or code to copy, which are not cut at the width of the terminal.
_COPIED = (Plan, OomReport)
_SVG_WRITERS: Mapping[Any, str] = {
    Report: "svg.pictures:report_svg",
    Comparison: "svg.frontier:comparison_frontier",
    Plan: "svg.frontier:plan_frontier",
}
_HTML_WRITERS: Mapping[Any, str] = {
    Report: "notebook.report:report_html",
    ResidualGroups: "notebook.others:groups_html",
    **dict.fromkeys(
        (Comparison, CompiledReport, Difference, OomReport, Plan, Sweep),
        "notebook.others:result_html",
    ),
}


def _call(where: str, *args: Any, **options: Any) -> Any:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(f"jaxresid.render.{module}"), name)(*args, **options)


def _print(value: object, **options: Any) -> None:
    console = Console(highlight=False)
    text = renderer(value, console.encoding, **options)
    console.print(text, crop=not isinstance(value, _COPIED))


def _render(where: str, value: object, encoding: str, **options: Any) -> Any:
    encoded = (encoding,) if isinstance(value, _ENCODED) else ()
    return _call(where, value, *encoded, **options)


for _kind, _where in _RENDERERS.items():
    renderer.register(_kind, functools.partial(_render, _where))
    printer.register(_kind, _print)
for _kind, _where in _SVG_WRITERS.items():
    svg_writer.register(_kind, functools.partial(_call, _where))
for _kind, _where in _HTML_WRITERS.items():
    html_writer.register(_kind, functools.partial(_call, _where))
printer.register(Report, functools.partial(_call, "report.text:print_report"))


def plain_text(value: object, width: int) -> str:
    """Return the text of a value without colours, as wide as `width` columns."""
    from jaxresid.render.notebook.parts import plain_lines

    return "\n".join(plain_lines([renderer(value, "utf-8")], width))
