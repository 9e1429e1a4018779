"""What a page shows of a result, as what JSON can say: its figures are those of the result."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from jaxresid.render.page.programs import WHOLE, program, residuals, share_of_others
from jaxresid.render.page.sources import code_around
from jaxresid.render.page.tables import Tables
from jaxresid.render.report.checkpoints import site_parts
from jaxresid.render.style.words import verdict_text
from jaxresid.render.tables.compare import entries
from jaxresid.results import (
    Checkpoint,
    Comparison,
    ComparisonRow,
    Compiled,
    CompiledBuffer,
    CompiledReport,
    Difference,
    DiffSide,
    Lifetimes,
    LineDifference,
    PlaceInfo,
    Plan,
    Report,
)
from jaxresid.results.display import to_text
from jaxresid.results.report.lifetimes import without_names

_WIDTH = 100  # columns of the text that a page has too


def page_document(value: object) -> dict[str, Any]:
    """Return what the page of a result shows.

    Raises:
      TypeError: there is no page for it.
    """
    tables = Tables()
    found = _document(value, tables)
    found["text"] = to_text(value, _WIDTH)
    found["tables"] = tables.rows()
    found["code"] = code_around(found["tables"]["places"])
    return found


@functools.singledispatch
def _document(value: object, tables: Tables) -> dict[str, Any]:
    _no_page(value)


def _no_page(value: object) -> NoReturn:
    raise TypeError(f"there is no page for a value of type {type(value).__name__}")


@_document.register
def _(value: Report, tables: Tables) -> dict[str, Any]:
    peak = value.peak
    return {
        **_head("report", value.target.name, [value.place]),
        "peak": None if peak is None else peak.nbytes,
        "programs": _programs(value.lifetimes, tables),
        "residuals": residuals(value.residuals, tables),
        "checkpoints": _checkpoints(value.checkpoints, value.lifetimes, tables),
        "compiled": _compiled(value.compiled, tables),
        "step": None if value.next_step is None else value.next_step.message,
    }


@_document.register
def _(value: Comparison, tables: Tables) -> dict[str, Any]:
    names = {each.name: i for i, each in enumerate(value.lifetimes)}
    letters = {row.policy: each.letter for each in entries(value) for row in each.rows}
    return {
        **_head("compare", value.target.name, [value.place]),
        "programs": _programs(value.lifetimes, tables),
        "rows": [_row(each, letters.get(each.policy, ""), names) for each in value.rows],
        "compiled": _compiled([c for row in value.rows for c in row.compiled], tables),
    }


def _row(row: ComparisonRow, letter: str, programs: Mapping[str, int]) -> dict[str, Any]:
    asked = [each for each in row.compiled if each.peak_nbytes is not None]
    return {
        "letter": letter,
        "name": row.policy,
        "at": row.at,
        "kept": row.kept_nbytes,
        "peak": row.peak_nbytes,
        "low": row.low_nbytes,
        "high": row.high_nbytes,
        "xla": asked[0].peak_nbytes if asked else None,
        "recompute": row.recompute_fraction,
        "time": row.time_fraction,
        "pareto": row.pareto,
        "knee": row.knee,
        "chosen": row.suggested,
        "error": row.error,
        "program": programs.get("" if row.policy == "as-written" else row.policy),
    }


@_document.register
def _(value: Plan, tables: Tables) -> dict[str, Any]:
    chosen = len(value.lifetimes) - 1
    return {
        **_head("plan", value.target.name, [value.place]),
        "budget": value.budget_nbytes,
        "programs": _programs(value.lifetimes, tables),
        "rows": [
            {
                "letter": "",
                "name": row.checkpoints,
                "at": str(row.configuration),
                "kept": None,
                "peak": row.peak_nbytes,
                "low": row.low_nbytes,
                "high": row.high_nbytes,
                "xla": row.peak_nbytes if value.confirmed and row.chosen else None,
                "recompute": row.recompute_fraction,
                "time": None,
                "pareto": True,
                "knee": False,
                "chosen": row.chosen,
                "error": None,
                "program": chosen if row.chosen and chosen > 0 else None,
            }
            for row in value.selection.front
        ],
        "diff": list(value.code),
    }


@_document.register
def _(value: CompiledReport, tables: Tables) -> dict[str, Any]:
    return {
        **_head("compile", value.target.name, value.places),
        "compiled": _compiled(value.compiled, tables),
    }


@_document.register
def _(value: Difference, tables: Tables) -> dict[str, Any]:
    return {
        **_head("diff", value.after.target.name, [value.after.place]),
        "sides": [_side(value.before), _side(value.after)],
        "lines": [_line(each, tables) for each in value.lines],
        "same": value.same_lines,
    }


def _head(kind: str, name: str, places: Sequence[PlaceInfo]) -> dict[str, Any]:
    return {
        "kind": kind,
        "target": name,
        "on": [{"name": each.name, "memory": each.memory_nbytes} for each in places],
    }


def _programs(lifetimes: Sequence[Lifetimes], tables: Tables) -> list[dict[str, Any]]:
    others = share_of_others(len(lifetimes) - 1)
    return [program(each, tables, others if i else WHOLE) for i, each in enumerate(lifetimes)]


def _checkpoints(
    found: Sequence[Checkpoint], lifetimes: Sequence[Lifetimes], tables: Tables
) -> list[dict[str, Any]]:
    numbers = {each.name: i for i, each in enumerate(lifetimes)}
    return [
        {
            "function": each.function,
            "place": tables.place(each.location),
            "where": " · ".join(site_parts(each)),
            "policy": each.policy,
            "verdict": verdict_text(each.verdict),
            "reason": each.reason,
            "by": each.by,
            "kept": each.kept_nbytes,
            "kept_without": each.kept_without_nbytes,
            "peak": each.peak_nbytes,
            "peak_without": each.peak_without_nbytes,
            "recompute": each.recompute_fraction,
            "program": numbers.get(name),
        }
        for each, name in zip(found, without_names(found), strict=True)
    ]


def _compiled(found: Iterable[Compiled], tables: Tables) -> list[dict[str, Any]]:
    return [
        {
            "on": each.on,
            "policy": each.policy,
            "peak": each.peak_nbytes,
            "needed": each.needed_nbytes,
            "capacity": each.capacity_nbytes,
            "fits": each.fits,
            "estimate": each.estimate_nbytes,
            "low": each.estimate_low_nbytes,
            "high": each.estimate_high_nbytes,
            "arguments": each.argument_nbytes,
            "outputs": each.output_nbytes,
            "temporaries": each.temp_nbytes,
            "aliased": each.alias_nbytes,
            "compiler": each.compiler,
            "error": each.error,
            "live": each.live_nbytes,
            "buffers": [_buffer(buffer, tables) for buffer in each.buffers],
        }
        for each in found
    ]


def _buffer(buffer: CompiledBuffer, tables: Tables) -> dict[str, Any]:
    return {
        "kind": buffer.kind,
        "nbytes": buffer.nbytes,
        "dense": _dense_nbytes(buffer),
        "count": buffer.count,
        "shape": buffer.shape,
        "opcode": buffer.opcode,
        "residual": buffer.residual,
        "place": tables.place(buffer.location),
        "scope": tables.text(buffer.source.scope),
        "memory": buffer.memory,
    }


_SHAPE = re.compile(r"[a-z]++(\d*+)\w*+\[([\d,]*+)\]")


def _dense_nbytes(buffer: CompiledBuffer) -> int | None:
    """Return the bytes without padding: those of XLA's shape; None where that is none array's."""
    match = _SHAPE.match(buffer.shape)
    if match is None:
        return None
    bits = int(match[1] or 8)  # pred
    elements = 1
    for size in filter(None, match[2].split(",")):
        elements *= int(size)
    return -(-elements * bits // 8) * buffer.count


def _side(side: DiffSide) -> dict[str, Any]:
    return {
        "label": side.label,
        "peak": side.peak_nbytes,
        "low": side.low_nbytes,
        "high": side.high_nbytes,
        "by": side.peak_by,
        "kept": side.totals.computed_nbytes,
        "recompute": side.recompute_fraction,
        "breakdown": [list(each) for each in side.breakdown],
    }


def _line(line: LineDifference, tables: Tables) -> dict[str, Any]:
    return {
        "before": tables.place(line.before),
        "after": tables.place(line.after),
        "scope": tables.text(line.scope),
        "kept": [line.kept_before_nbytes, line.kept_after_nbytes],
        "peak": [line.peak_before_nbytes, line.peak_after_nbytes],
    }
