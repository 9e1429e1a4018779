"""The tree of modules with what each of them takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from jaxresid.render.style.columns import bytes_unit
from jaxresid.render.style.words import percent
from jaxresid.results import ModuleMemory, Report

NO_MODULE = "(in no module)"
_INDENT = 2


def render_modules(report: Report) -> Iterator[RenderableType]:
    """Yield a table of the modules: a row each, those in it below it."""
    found = report.modules
    if not found:
        why = "nothing is kept, and no argument is differentiated"
        yield Text(f"no modules: {why}" if report.target.has_gradient else "no modules")
        return
    is_step = report.target.mode == "program" and report.target.has_gradient
    figures = {
        "parameters" if is_step else "arguments": [m.parameters_nbytes for m in found],
        "gradients": [m.gradients_nbytes for m in found],
        "optimizer": [m.optimizer_nbytes for m in found],
        "residuals": [m.residuals_nbytes for m in found],
    }
    shown = {name: values for name, values in figures.items() if any(values)}
    unit = bytes_unit([value for values in shown.values() for value in values])
    yield Text(f"by module, in {unit.name}", style="bold")
    table = Table.grid(padding=(0, 1))
    for _ in (*shown, *([""] if _has_peak(found) else [])):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    names = [*shown, *(["peak"] if _has_peak(found) else [])]
    table.add_row(*(Text(name, style="dim") for name in (*names, "module")))
    for i, module in enumerate(found):
        cells = [Text(unit.text(values[i]) if values[i] else "-") for values in shown.values()]
        if module.peak_nbytes is not None and report.peak is not None:
            cells.append(Text(percent(module.peak_nbytes, report.peak.nbytes), style="cyan"))
        indent = " " * _INDENT * max(len(module.path) - 1, 0)
        style = "bold" if len(module.path) < 2 else ""
        cells.append(Text(indent + (module.path[-1] if module.path else NO_MODULE), style=style))
        table.add_row(*cells)
    yield table
    if report.peak is not None:
        yield Text("peak: the share of it that is any of these, or that the module's code makes")


def _has_peak(found: Sequence[ModuleMemory]) -> bool:
    return any(module.peak_nbytes is not None for module in found)
