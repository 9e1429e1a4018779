"""The residuals of a report as rows, and their sums by what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

from jaxresid.base.errors import InputsError
from jaxresid.base.option_types import ResidualKey
from jaxresid.base.text.layer_paths import folded_scopes, pattern, scope_key
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.results import (
    Computed,
    Location,
    Report,
    Residual,
    ResidualGroup,
    ResidualGroups,
    ResidualRow,
)

KEYS: tuple[ResidualKey, ...] = get_args(ResidualKey)


def residual_rows(report: Report) -> tuple[ResidualRow, ...]:
    """Return a row for each residual of a report, in their order."""
    return tuple(_row(number, each) for number, each in enumerate(report.residuals))


def grouped(report: Report, by: Sequence[ResidualKey], *, all: bool = False) -> ResidualGroups:
    """Return the residuals of a report, summed by what they have in common.

    Args:
      report: the report.
      by: what they are summed by, one or more of `KEYS`.
      all: whether arguments, constants and literals count as well, which are in memory anyway.

    Raises:
      InputsError: there is no such key, or none at all.
    """
    if not by:
        raise InputsError(f"group_by needs at least one of {', '.join(KEYS)}")
    for key in by:
        if key not in KEYS:
            hint = did_you_mean(str(key), KEYS)
            raise InputsError(f"group_by cannot group by {key!r}{hint}; use {', '.join(KEYS)}")
    groups: dict[tuple[str | None, ...], list[ResidualRow]] = {}
    for row in residual_rows(report):
        if all or row.kind == "computed":
            groups.setdefault(tuple(_KEYS[key](row) for key in by), []).append(row)
    total = sum(row.nbytes for rows in groups.values() for row in rows)
    found = [_group(by, keys, rows, total) for keys, rows in groups.items()]
    found.sort(key=lambda group: -group.nbytes)  # stable: equal ones stay in the vjp's order
    return ResidualGroups(report.target, report.place, tuple(by), tuple(found))


def _row(number: int, residual: Residual) -> ResidualRow:
    aval, origin = residual.aval, residual.origin
    phases = dict.fromkeys(consumer.phase for consumer in residual.consumers)
    row = ResidualRow(
        number=number,
        kind=origin.kind,
        nbytes=residual.nbytes,
        dtype=aval.dtype,
        shape=aval.shape,
        memory=aval.memory,
        argument=getattr(origin, "path", None),
        trips=residual.trips,
        phase=", ".join(phases) or None,
        marks=tuple(mark.value for mark in residual.marks),
    )
    return _located(row, origin) if isinstance(origin, Computed) else row


def _located(row: ResidualRow, origin: Computed) -> ResidualRow:
    from dataclasses import replace

    at, library = origin.location, origin.library
    if at is not None:
        row = replace(row, file=at.file, line=at.line, function=at.function, code=at.code)
    return replace(
        row,
        primitive=origin.primitive,
        name=origin.name,
        module=origin.scope or None,
        library=None if library is None else _place(library),
        within=origin.within,
    )


def _place(location: Location) -> str:
    return location.place


def _line(row: ResidualRow) -> str | None:
    return None if row.file is None else f"{row.file}:{row.line}"


def _shape(row: ResidualRow) -> str:
    return ",".join(map(str, row.shape)) or "scalar"


# What residuals have to share to be in one group; repeated layers are one.
_KEYS: dict[ResidualKey, Callable[[ResidualRow], str | None]] = {
    "line": _line,
    "file": lambda row: row.file,
    "function": lambda row: row.function,
    "module": lambda row: None if row.module is None else scope_key(row.module),
    "name": lambda row: row.name,
    "primitive": lambda row: row.primitive,
    "dtype": lambda row: row.dtype,
    "shape": _shape,
    "memory": lambda row: row.memory,
    "kind": lambda row: row.kind,
    "argument": lambda row: None if row.argument is None else pattern(row.argument),
    "phase": lambda row: row.phase,
}


def _group(
    by: Sequence[ResidualKey],
    keys: tuple[str | None, ...],
    rows: Sequence[ResidualRow],
    total: int,
) -> ResidualGroup:
    nbytes = sum(row.nbytes for row in rows)
    modules = folded_scopes(row.module or "" for row in rows) or None
    shown = tuple(modules if key == "module" else held for key, held in zip(by, keys, strict=True))
    code = (rows[0].code or "") if "line" in by else ""
    return ResidualGroup(shown, nbytes, nbytes / total if total else 0.0, len(rows), code)
