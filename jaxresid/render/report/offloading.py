"""The use of host memory in words: what is offloaded, recomputed, and moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.units import format_bytes
from jaxresid.render.style.columns import bytes_unit
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
    """Return the block of the text report on host memory.

    It is empty where nothing is in host memory, nor meant to be.
    """
    found = report.offloading
    if found is None:
        return []
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    lines = _lines(found) if report.target.has_gradient else _moved(found, "in each run")
    for nbytes, what in lines:
        table.add_row(Text(format_bytes(nbytes), style="" if nbytes else "dim"), Text(what))
    heading = [Text("host memory", style="bold")]
    if found.kept_without_nbytes:
        without = format_bytes(found.kept_without_nbytes)
        heading.append(Text(f"of {without} kept without any checkpoint:", style="dim"))
    return [FlowingParts(heading, separator="  "), table]


def render_rows(rows: Sequence[tuple[str, ComparisonRow]]) -> list[RenderableType]:
    """Return the block of a comparison on host memory; empty where no row has to do with it.

    Args:
      rows: the rows of the comparison, each with its mark.
    """
    found = [(mark, row.offloading) for mark, row in rows if row.offloading is not None]
    if not any(o.transfers != Transfers() or o.host_arguments for _, o in found):
        return []
    columns: list[tuple[str, list[int]]] = [
        ("offloaded", [o.offloaded_nbytes for _, o in found]),
        ("recomputed", [o.recomputed_nbytes for _, o in found]),
        ("fetched again", [o.refetched_nbytes for _, o in found]),
        ("kept", [o.kept_nbytes for _, o in found]),
        ("to host", [o.transfers.to_host_nbytes for _, o in found]),
        ("to device", [o.transfers.to_device_nbytes for _, o in found]),
    ]
    columns = [(name, each) for name, each in columns if name != "fetched again" or any(each)]
    unit = bytes_unit(n for _, each in columns for n in each if n)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for _ in columns:
        table.add_column(justify="right")
    table.add_row("", *(Text(name, style="dim") for name, _ in columns))
    for i, (mark, _) in enumerate(found):
        table.add_row(Text(mark), *(Text(unit.text(each[i])) for _, each in columns))
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
    """Yield what lives in host memory, and what is moved there and back."""
    for kind, nbytes in offloading.host_arguments:
        yield nbytes, f"{_INPUTS.get(kind, kind)} in host memory"
    yield offloading.transfers.to_host_nbytes, f"moved to the host {when}"
    yield offloading.transfers.to_device_nbytes, f"moved to the device {when}"
