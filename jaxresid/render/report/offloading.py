"""The use of host memory in words: what is offloaded, recomputed, and moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.units import format_bytes
from jaxresid.render.style.columns import bytes_unit
from jaxresid.render.style.grids import figure_grid
from jaxresid.render.style.wrapping import FlowingParts
from jaxresid.results import ComparisonRow, Offloading, Report, Transfers

_INPUTS = {
    "argument": "arguments that live",
    "batch": "the batch, which lives",
    "constant": "constants that live",
    "optimizer-state": "optimizer state that lives",
    "frozen-weights": "frozen weights that live",
    "parameters": "parameters that live",
    "state": "state that lives",
}


def render_offloading(report: Report) -> list[RenderableType]:
    """Return the report's block on host memory; empty where nothing is meant to be there."""
    offloading = report.offloading
    if offloading is None:
        return []
    table = figure_grid()
    lines = _lines(offloading) if report.target.has_gradient else _moved(offloading, "in each run")
    for nbytes, what in lines:
        table.add_row(Text(format_bytes(nbytes), style="" if nbytes else "dim"), Text(what))
    heading = [Text("host memory", style="bold")]
    if offloading.kept_without_nbytes:
        without = format_bytes(offloading.kept_without_nbytes)
        heading.append(Text(f"of {without} kept without any checkpoint:", style="dim"))
    return [FlowingParts(heading, separator="  "), table]


def render_rows(rows: Sequence[tuple[str, ComparisonRow]]) -> list[RenderableType]:
    """Return the block on host memory of rows with their marks; empty where none uses it."""
    offloadings = [(mark, row.offloading) for mark, row in rows if row.offloading is not None]
    if not any(o.transfers != Transfers() or o.host_arguments for _, o in offloadings):
        return []
    columns: list[tuple[str, list[int]]] = [
        ("offloaded", [o.offloaded_nbytes for _, o in offloadings]),
        ("recomputed", [o.recomputed_nbytes for _, o in offloadings]),
        ("fetched again", [o.refetched_nbytes for _, o in offloadings]),
        ("kept", [o.kept_nbytes for _, o in offloadings]),
        ("to host", [o.transfers.to_host_nbytes for _, o in offloadings]),
        ("to device", [o.transfers.to_device_nbytes for _, o in offloadings]),
    ]
    columns = [(name, values) for name, values in columns if name != "fetched again" or any(values)]
    unit = bytes_unit(n for _, values in columns for n in values if n)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for _ in columns:
        table.add_column(justify="right")
    table.add_row("", *(Text(name, style="dim") for name, _ in columns))
    for i, (mark, _) in enumerate(offloadings):
        table.add_row(Text(mark), *(Text(unit.text(values[i])) for _, values in columns))
    heading = [Text("host memory", style="bold"), Text(f"{unit.name}; moved in each step", "dim")]
    return [FlowingParts(heading, separator="  "), table]


def _lines(offloading: Offloading) -> Iterator[tuple[int, str]]:
    yield offloading.offloaded_nbytes, "offloaded: kept in host memory for the backward pass"
    yield offloading.recomputed_nbytes, "recomputed in the backward pass"
    if offloading.refetched_nbytes:
        yield offloading.refetched_nbytes, "fetched again from arguments in host memory"
    yield offloading.kept_nbytes, "kept in device memory"
    if offloading.added_nbytes:
        yield offloading.added_nbytes, "of these, kept only because of the checkpoints"
    yield from _moved(offloading, "in each step")


def _moved(offloading: Offloading, when: str) -> Iterator[tuple[int, str]]:
    for kind, nbytes in offloading.host_arguments:
        yield nbytes, f"{_INPUTS.get(kind, kind)} in host memory"
    yield offloading.transfers.to_host_nbytes, f"moved to the host {when}"
    yield offloading.transfers.to_device_nbytes, f"moved to the device {when}"
