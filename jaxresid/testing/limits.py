"""Read the marks that limit memory, and hold reports against them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import pytest

from jaxresid.advice.check.budgets import held, sentence
from jaxresid.base.text.safe_text import one_line
from jaxresid.base.text.units import format_bytes, parse_budget
from jaxresid.results import Held, Limits, LineBytes, Report

# As many lines are named in a failure, and none that makes less of the figure than this share.
_LINES, _WORTH = 5, 0.01


@dataclass(frozen=True, slots=True)
class MarkedLimit:
    """A limit that a mark sets.

    Attributes:
      limits: the limit.
      on: the place that it is for; None for the place of the call.
    """

    limits: Limits
    on: str | None


def limits_of(marks: Iterable[pytest.Mark]) -> tuple[MarkedLimit, ...]:
    """Return the limits of a test's marks; the first of a mark for a place hides the others.

    Args:
      marks: The marks, that nearest to the test first.

    Raises:
      pytest.fail.Exception: A mark is not understood; the message says what to write.
    """
    found: dict[tuple[str, str | None], MarkedLimit] = {}
    for mark in marks:
        nbytes, on = _arguments(mark)
        limits = Limits(nbytes) if mark.name == "limit_peak" else Limits(kept_nbytes=nbytes)
        found.setdefault((mark.name, on), MarkedLimit(limits, on))
    return tuple(found.values())


def _arguments(mark: pytest.Mark) -> tuple[int, str | None]:
    """Return the bytes and the place of a mark."""
    example = f'write @pytest.mark.{mark.name}("12GiB", on="gpu:h100")'
    on = mark.kwargs.get("on")
    if len(mark.args) != 1 or set(mark.kwargs) - {"on"} or not isinstance(on, str | None):
        _refuse(f"@pytest.mark.{mark.name} takes a size and a place: {example}")
    if not isinstance(mark.args[0], str):
        _refuse(f"@pytest.mark.{mark.name}: {mark.args[0]!r} is no text; {example}")
    try:
        return parse_budget(mark.args[0]), on
    except ValueError as error:
        _refuse(f"@pytest.mark.{mark.name}: {error}")


def _refuse(message: str) -> NoReturn:
    pytest.fail(message, pytrace=False)


def over(report: Report, limits: Limits) -> Iterator[tuple[Held, str]]:
    """Yield the figures of a report that are, or may be, above a limit, and the text for people.

    Args:
      report: The report, of the place that the limits are for.
      limits: The limits.

    Raises:
      InputsError: The peak has a limit and is not known.
    """
    for figure in held(report, limits):
        if figure.holding != "within":
            yield figure, "\n".join(_lines(report, figure))


def _lines(report: Report, figure: Held) -> Iterator[str]:
    yield sentence(figure, one_line(report.target.name), decides="compile=True")
    yield f"on {report.place.name}, jax {report.jax.version}"
    named = [line for line in figure.lines[:_LINES] if line.nbytes >= _WORTH * figure.nbytes]
    rows = [(format_bytes(line.nbytes), _code(line)) for line in named]
    rest = sum(line.nbytes for line in figure.lines[len(named) :])
    if rest >= _WORTH * figure.nbytes:
        rows.append((format_bytes(rest), "other lines"))
    if figure.figure == "peak" and figure.arguments_nbytes:
        rows.append((format_bytes(figure.arguments_nbytes), "arguments"))
    yield from table(rows)


def table(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield rows of a size and a text, with the sizes flush right."""
    width = max((len(size) for size, _ in rows), default=0)
    for size, text in rows:
        yield f"  {size:>{width}}  {text}"


def _code(line: LineBytes) -> str:
    where = line.source.location or line.source.library
    return "" if where is None else one_line(f"{where.file}:{where.line}  {where.code}".rstrip())
