"""The gradients that a program takes, where these are several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from jaxresid.base.text.units import format_bytes
from jaxresid.render.style.words import place_text
from jaxresid.results import Gradient, Report


def render_gradients(report: Report, most: int | None = None) -> Iterator[RenderableType]:
    """Yield the gradients of a program, if several, each with those inside of it below.

    Args:
      report: the report.
      most: how many are shown, at most; None: all.
    """
    rows = list(_rows(report.gradients))
    if len(rows) < 2:
        return
    yield Text.assemble(
        (f"{len(rows)} gradients", "bold"), ("  what each keeps, every time it is taken", "dim")
    )
    shown = [
        (format_bytes(gradient.kept_nbytes + gradient.host_nbytes), gradient, depth)
        for gradient, depth in rows[:most]
    ]
    widest = max(len(nbytes) for nbytes, *_ in shown)
    for nbytes, gradient, depth in shown:
        row = Text(no_wrap=True, overflow="ellipsis")
        row.append(f"{nbytes:>{widest}}", style="cyan")
        yield row.append("  " + "  " * depth).append_text(_line(gradient))
    if len(rows) > len(shown):
        yield Text(f"{len(rows) - len(shown)} more: --view residuals", style="dim")


def _rows(gradients: Sequence[Gradient], depth: int = 0) -> Iterator[tuple[Gradient, int]]:
    for gradient in gradients:
        yield gradient, depth
        yield from _rows(gradient.gradients, depth + 1)


def _line(gradient: Gradient) -> Text:
    line = Text()
    if gradient.trips > 1:
        line.append(f"×{gradient.trips} ", style="bold magenta")
    line.append(f"of {gradient.function}")
    if gradient.location is not None:
        line.append(f"  {place_text(gradient.location)}")
        line.append(f"  {gradient.location.code}", style="green")
    if gradient.host_nbytes:
        line.append(f"  {format_bytes(gradient.host_nbytes)} in host memory", style="dim")
    return line
