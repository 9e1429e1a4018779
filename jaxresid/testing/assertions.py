"""Say how a report differs from what a test expects of it; None where it does not."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable, Iterator, Mapping

from jaxresid.base.text.safe_text import one_line, visible
from jaxresid.base.text.units import format_bytes, parse_budget
from jaxresid.results import Computed, Location, Report, Residual
from jaxresid.testing.limits import table


def names_problem(report: Report, names: frozenset[str]) -> str | None:
    """Return how the names that are kept differ from the expected ones."""
    kept: dict[str, int] = {}
    for residual, origin in _computed(report):
        if origin.name is not None:
            kept[origin.name] = kept.get(origin.name, 0) + residual.nbytes
    if set(kept) == names:
        return None
    rows = [
        *(
            (format_bytes(kept[name]), f"{name}: kept, not expected")
            for name in kept
            if name not in names
        ),
        *(("", f"{n}: expected, not kept") for n in sorted(names - set(kept))),
    ]
    return _problem("other names are kept than expected", report, rows)


def kept_problem(report: Report, code: str, at_most: str | None) -> str | None:
    """Return why the lines with some code keep nothing, or too much."""
    limit = None if at_most is None else parse_budget(at_most)
    lines = dict(_by_line(report, code))
    total = sum(lines.values())
    if not total:
        return _problem(f"no line with {code!r} keeps anything", report, _rows(_by_line(report)))
    if limit is not None and total > limit:
        message = f"lines with {code!r} keep {format_bytes(total)}, more than {format_bytes(limit)}"
        return _problem(message, report, _rows(lines.items()))
    return None


def not_kept_problem(report: Report, code: str, file: str) -> str | None:
    """Return what the lines with some code keep, or that there is no such line.

    Args:
      report: The report.
      code: A part of the lines.
      file: The file that the function is defined in; '' where it is not known.
    """
    lines = list(_by_line(report, code))
    if lines:
        total = format_bytes(sum(nbytes for _, nbytes in lines))
        return _problem(f"lines with {code!r} keep {total}", report, _rows(lines))
    files = {file, *_files(report)} - {""}
    if any(code in line for each in files for line in linecache.getlines(each)):
        return None
    where = ", ".join(sorted(map(os.path.relpath, files)))
    return visible(f"no line of {where} has {code!r}, so that nothing was tested")


def verdicts_problem(report: Report, verdicts: str | Mapping[str, str]) -> str | None:
    """Return which checkpoints have other verdicts than expected."""
    rows = []
    found = {each.function for each in report.checkpoints}
    for each in report.checkpoints:
        wanted = verdicts if isinstance(verdicts, str) else verdicts.get(each.function)
        if wanted is None or each.verdict == wanted:
            continue
        where = "" if each.location is None else f" at {each.location.file}:{each.location.line}"
        rows.append((each.function, f"{each.verdict}, expected {wanted}{where}: {each.reason}"))
    if isinstance(verdicts, str):
        if not found:
            return visible(f"{report.target.name} has no checkpoint on {report.place.name}")
    else:
        rows += [(name, "there is no such checkpoint") for name in verdicts if name not in found]
    return _problem("other verdicts than expected", report, rows) if rows else None


def _problem(message: str, report: Report, rows: Iterable[tuple[str, str]]) -> str:
    first = f"{report.target.name}: {message} (on {report.place.name}, jax {report.jax.version})"
    return "\n".join([one_line(first), *table([(one_line(a), one_line(b)) for a, b in rows])])


def _computed(report: Report) -> Iterator[tuple[Residual, Computed]]:
    for residual in report.residuals:
        if isinstance(residual.origin, Computed) and residual.nbytes:
            yield residual, residual.origin


def _by_line(report: Report, code: str = "") -> Iterable[tuple[Location, int]]:
    """Return the lines that keep something with their bytes, largest first."""
    found: dict[tuple[str, int], tuple[Location, int]] = {}
    for residual, origin in _computed(report):
        where = origin.location or origin.library
        if where is not None and code in where.code:
            _, nbytes = found.get((where.file, where.line), (where, 0))
            found[where.file, where.line] = where, nbytes + residual.nbytes
    return sorted(found.values(), key=lambda each: -each[1])


def _rows(lines: Iterable[tuple[Location, int]]) -> list[tuple[str, str]]:
    return [
        (format_bytes(nbytes), f"{where.file}:{where.line}  {where.code}")
        for where, nbytes in lines
    ]


def _files(report: Report) -> set[str]:
    """Return the files of the user that the report names, as absolute paths."""
    places = [origin.location for _, origin in _computed(report)]
    places += [each.location for each in report.checkpoints]
    places += [each.defined for each in report.checkpoints]
    return {os.path.abspath(place.file) for place in places if place is not None}
