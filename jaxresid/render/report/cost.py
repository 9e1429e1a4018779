"""The cost of the function and its gradients, in words."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.units import format_bytes, format_flops
from jaxresid.render.style.words import percent
from jaxresid.render.style.wrapping import FlowingParts
from jaxresid.results import Cost, Report


@dataclass(frozen=True, slots=True)
class CostRow:
    """One phase: `180.39 GFLOP`, `backward`, `matmul 99.2%, elementwise 0.8%`."""

    figure: str
    phase: str
    detail: str


def cost_rows(report: Report) -> tuple[CostRow, ...]:
    """Return a row for each phase, and one for what devices exchange.

    There is a row `recompute` only where something can be recomputed, and one `collectives` only
    where there are any.
    """
    cost = report.cost
    bound = at_least(cost.total.uncosted)
    passes = [("forward", cost.forward), ("backward", cost.backward)]
    if not report.target.has_gradient:
        passes = [("program", cost.program)]
    found = [
        CostRow(f"{bound}{format_flops(part.flops)}", phase, _kinds(part)) for phase, part in passes
    ]
    added = cost.recompute.flops
    if added or report.checkpoints:
        share = percent(added, cost.forward.flops + cost.backward.flops) if added else ""
        # A ratio of two lower bounds bounds nothing.
        about = "about " if bound else ""
        detail = f"{about}{share} of forward + backward" if share else ""
        found.append(CostRow(f"{bound}{format_flops(added)}", "recompute", detail))
    exchanged = cost.total.collectives
    if exchanged:
        largest = sorted(exchanged, key=lambda kind: -kind[1])
        each = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in largest)
        total = sum(nbytes for _, nbytes in exchanged)
        found.append(CostRow(format_bytes(total), "collectives", f"results on one device: {each}"))
    return tuple(found)


def cost_remarks(report: Report) -> tuple[str, ...]:
    """Return remarks on what the figures leave out, and what they assume."""
    total = report.cost.total
    remarks = [f"no FLOPs known for: {', '.join(total.uncosted)}"] if total.uncosted else []
    return (*remarks, *(f"note: {note}" for note in total.notes))


def at_least(unknown: tuple[str, ...]) -> str:
    """Return the prefix of a figure: `>= ` where something in it is not counted, else ''."""
    return ">= " if unknown else ""


def added_text(flops: int, fraction: float, uncosted: tuple[str, ...]) -> str:
    """Return what recomputing adds: `for 4.8% more FLOPs`."""
    if not flops:
        return "with nothing recomputed"
    about = "about " if uncosted else ""
    return f"for {about}{percent(abs(fraction), 1)} {'more' if flops > 0 else 'fewer'} FLOPs"


def render_cost(report: Report) -> list[RenderableType]:
    """Return the block of the text report on costs."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for row in cost_rows(report):
        parts = [Text(row.phase), *([Text(row.detail, style="dim")] if row.detail else [])]
        table.add_row(Text(row.figure), FlowingParts(parts, separator="  "))
    remarks = (Text(remark, style="yellow") for remark in cost_remarks(report))
    return [table, *remarks]


def _kinds(part: Cost) -> str:
    """Return the shares of the kinds of work in the FLOPs of a phase, without empty ones."""
    kinds = (
        ("matmul", part.matmul_flops),
        ("convolution", part.conv_flops),
        ("elementwise", part.elementwise_flops),
    )
    return ", ".join(f"{name} {percent(flops, part.flops)}" for name, flops in kinds if flops)
