"""Rows as pandas DataFrames, with columns of the types that the fields of the rows declare."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxresid.base.errors import JaxresidError
from jaxresid.results import (
    Comparison,
    ComparisonRow,
    Compiled,
    CompiledReport,
    Configuration,
    Difference,
    FrontRow,
    LineDifference,
    Offloading,
    OomBuffer,
    OomReport,
    Plan,
    Report,
    ResidualGroup,
    ResidualGroups,
    ResidualRow,
    Sweep,
    SweepRow,
    Timing,
    Transfers,
)
from jaxresid.serialization.residual_table import residual_rows

if TYPE_CHECKING:
    import pandas

# The dtypes of columns; those of the first two know what is missing without becoming floats.
_TOO_LARGE = 1 << 63
_DTYPES = {int: "Int64", bool: "boolean", float: "float64"}
# What stands for the field in the names of the columns of its value; else its own name does.
_PREFIXES: dict[Any, str] = {
    Timing: "measured_",
    Compiled: "xla_",
    Configuration: "",
    Offloading: "offloading_",
    Transfers: "offloading_",
}


class _Column(NamedTuple):
    name: str
    dtype: str
    get: Callable[[Any], Any]


def dataframe(value: Any) -> pandas.DataFrame:
    """Return the rows of a result as a DataFrame.

    Raises:
      JaxresidError: pandas is not installed.
      TypeError: it has no rows.
    """
    if isinstance(value, ResidualGroups):
        return _frame(_group_columns(value), value.rows)
    kind, rows = _rows(value)
    return _frame(columns_of(kind), rows)


def _rows(value: Any) -> tuple[Any, Sequence[Any]]:
    match value:
        case Report():
            return ResidualRow, residual_rows(value)
        case Comparison():
            return ComparisonRow, value.rows
        case Sweep():
            return SweepRow, value.rows
        case CompiledReport():
            return Compiled, value.compiled
        case Plan():
            return FrontRow, value.selection.front
        case Difference():
            return LineDifference, value.lines
        case OomReport():
            return OomBuffer, value.buffers
    raise TypeError(f"a value of type {type(value).__name__} has no rows")


def _frame(columns: Iterable[_Column], rows: Sequence[Any]) -> pandas.DataFrame:
    try:
        import pandas as pd
    except ImportError as e:
        raise JaxresidError(
            "to_dataframe needs pandas, which is not installed: pip install pandas"
        ) from e
    return pd.DataFrame(
        {c.name: _series(pd, [c.get(row) for row in rows], c.dtype) for c in columns}
    )


def _group_columns(groups: ResidualGroups) -> Iterator[_Column]:
    for i, key in enumerate(groups.by):
        yield _Column(key, "object", functools.partial(_key, i))
    for name, dtype in (("nbytes", "Int64"), ("share", "float64"), ("count", "Int64")):
        yield _Column(name, dtype, attrgetter(name))
    if "line" in groups.by:
        yield _Column("code", "object", attrgetter("code"))


def _key(i: int, row: ResidualGroup) -> str | None:
    return row.keys[i]


@functools.cache
def columns_of(kind: Any) -> tuple[_Column, ...]:
    """Return the columns of rows of a type: its fields, and those of the values in them.

    Texts of a tuple are one text. Tuples of other values are left out, but for XLA's figures, of
    which a row has one at most.
    """
    return tuple(_columns(kind))


def _series(pd: Any, values: list[Any], dtype: str) -> Any:
    """Return values as a column; integers that no 64 bits hold, as of FLOPs, as they are."""
    is_large = dtype == "Int64" and any(abs(value or 0) >= _TOO_LARGE for value in values)
    return pd.Series(values, dtype="object" if is_large else dtype)


def _columns(kind: Any) -> Iterator[_Column]:
    hints = typing.get_type_hints(kind)
    for each in dataclasses.fields(kind):
        held, hint = attrgetter(each.name), _without_none(hints[each.name])
        arguments = typing.get_args(hint)
        if dataclasses.is_dataclass(hint):
            yield from _inner(hint, held, _PREFIXES.get(hint, f"{each.name}_"))
        elif hint == tuple[str, ...]:
            yield _Column(each.name, "object", functools.partial(_joined, held))
        elif arguments and arguments[0] is Compiled:
            yield from _inner(Compiled, functools.partial(_first, held), _PREFIXES[Compiled])
        elif typing.get_origin(hint) is not tuple or hint == tuple[int, ...]:
            yield _Column(each.name, _DTYPES.get(hint, "object"), held)


def _inner(kind: Any, held: Callable[[Any], Any], prefix: str) -> Iterator[_Column]:
    for column in columns_of(kind):
        name = column.name if column.name.startswith(prefix) else prefix + column.name
        yield _Column(name, column.dtype, functools.partial(_of_held, column.get, held))


def _of_held(get: Callable[[Any], Any], held: Callable[[Any], Any], row: Any) -> Any:
    inner = held(row)
    return None if inner is None else get(inner)


def _joined(held: Callable[[Any], tuple[str, ...]], row: Any) -> str | None:
    return ", ".join(held(row)) or None


def _first(held: Callable[[Any], tuple[Any, ...]], row: Any) -> Any:
    return next(iter(held(row)), None)


def _without_none(hint: Any) -> Any:
    """Return a type without None; a type of several kinds of values is returned as it is."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    kinds = [each for each in typing.get_args(hint) if each is not type(None)]
    return kinds[0] if len(kinds) == 1 else hint
