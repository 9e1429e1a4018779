"""Hold a report against a baseline: an earlier report, or the figures of a lockfile."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxresid.advice.check.budgets import BudgetFinding, kept_by_line, peak_of
from jaxresid.advice.diff.difference import diff
from jaxresid.base.errors import InputsError
from jaxresid.base.text.safe_text import one_line
from jaxresid.base.text.units import format_bytes
from jaxresid.results import (
    NOWHERE,
    Baseline,
    BaselineLine,
    Finding,
    LineBytes,
    Location,
    Report,
    Source,
)

GROWTH_RULE = "grown-over-baseline"
# As many lines as a reader takes in at once, and as a lockfile shows.
_NAMED, _LOCKED = 3, 8
# Of the largest growth, or of what is kept; less is not worth a word.
_WORTH = 0.01


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a program is compared with.

    Attributes:
      label: what it is called: a revision, or a file.
      baseline: its figures.
      report: the report that they are of; None for those of a lockfile.
    """

    label: str
    baseline: Baseline
    report: Report | None = None


@dataclass(frozen=True, slots=True)
class _Grown:
    """A line that has grown: where it is, by how much, and its bytes before if they are known."""

    location: Location | None
    growth_nbytes: int
    before_nbytes: int | None


def baseline_of(report: Report, root: Path) -> Baseline:
    """Return the figures of a report that growth is held against.

    Args:
      report: The report.
      root: The folder that the files of lines are relative to.
    """
    peak = peak_of(report)
    kept = report.totals.computed_nbytes
    lines: dict[str, int] = {}
    for line, where in _placed(kept_by_line(report)):
        code = _code(where, root)
        lines[code] = lines.get(code, 0) + line.nbytes
    most = sorted(lines.items(), key=lambda each: (-each[1], each[0]))[:_LOCKED]
    return Baseline(
        report.place.name,
        report.jax.version,
        kept,
        None if peak is None else peak.nbytes,
        None if peak is None else peak.by,
        tuple(BaselineLine(code, n) for code, n in most if n >= _WORTH * kept),
    )


def growth_finding(
    report: Report, earlier: Earlier, most: float, name: str, root: Path
) -> BudgetFinding | None:
    """Return what there is to say of a program that has grown by more than a share; else None.

    It fails by its peak alone. Where it only keeps more, which raises the peak by no more than the
    share, that is said for information.

    Args:
      report: The report.
      earlier: What it is compared with.
      most: The share of the earlier figures by which each may be above them.
      name: What the program is called.
      root: The folder that the files of a lockfile's lines are relative to.

    Raises:
      InputsError: The two cannot be compared: they are for two places, or their peaks are known by
        different means.
    """
    baseline = earlier.baseline
    peak, kept = figures = _figures(report, earlier, name)
    grown = [each for each in figures if each.after_nbytes > each.before_nbytes * (1 + most)]
    if not grown:
        return None
    fails = peak in grown
    lines = (_peak_growth if fails else _kept_growth)(report, earlier, root)
    if fails:
        what = f"`{name}` has grown by more than {100 * most:g}% since {earlier.label}"
        said = [f"{what}: {', and '.join(map(_sentence, grown))}"]
    else:
        held = f"the peak has not grown by more than {100 * most:g}%"
        said = [f"{held} since {earlier.label}, but of `{name}` {_sentence(kept)}"]
    said += _line_sentences(lines)
    if baseline.jax != report.jax.version:
        said.append(f"That was traced by jax {baseline.jax}, and this by {report.jax.version}")
    where = lines[0].location if lines else None
    shrink = "checkpoint" if report.target.has_gradient else "make smaller"
    remedy = "raise the limit" if earlier.report else "the same command with --update accepts it"
    finding = Finding(
        GROWTH_RULE,
        ". ".join(said),
        NOWHERE if where is None else Source(where),
        f"{shrink} what has grown, or {remedy}"
        if fails
        else "nothing, or a limit of its own: --max-kept",
        {
            "by": grown[0].by,
            "baseline": earlier.label,
            "max_growth": most,
            **{f"{each.name}_before_nbytes": each.before_nbytes for each in figures},
            **{f"{each.name}_nbytes": each.after_nbytes for each in figures},
        },
    )
    return BudgetFinding(finding, fails)


@dataclass(frozen=True, slots=True)
class _Compared:
    """A figure before and now."""

    name: str
    before_nbytes: int
    after_nbytes: int
    by: str


def _figures(report: Report, earlier: Earlier, name: str) -> tuple[_Compared, _Compared]:
    """Return the peak and what is kept, before and now.

    Raises:
      InputsError: As `growth_finding`.
    """
    baseline, peak = earlier.baseline, peak_of(report)
    if baseline.place != report.place.name:
        raise InputsError(
            f"{earlier.label} has `{name}` on {baseline.place}, and this is {report.place.name}:"
            f" the two cannot be compared; add --on {baseline.place}, or make the baseline anew"
        )
    kept = _Compared("kept", baseline.kept_nbytes, report.totals.computed_nbytes, "trace")
    if peak is None or baseline.peak_nbytes is None or baseline.peak_by != peak.by:
        words = {"estimate": "an estimate", "xla": "XLA's, of --compile", None: "not known"}
        raise InputsError(
            f"the peak of `{name}` in {earlier.label} is {words[baseline.peak_by]}, and this one is"
            f" {words[None if peak is None else peak.by]}: the two cannot be compared; make both"
            " with --compile, or both without"
        )
    return _Compared("peak", baseline.peak_nbytes, peak.nbytes, peak.by), kept


def _sentence(figure: _Compared) -> str:
    before, after = figure.before_nbytes, figure.after_nbytes
    more = f"{100 * (after / before - 1):.1f}% more than" if before else "up from"
    what = {
        "trace": "the backward pass keeps",
        "estimate": "the estimated peak is",
        "xla": "XLA's peak is",
    }[figure.by]
    return f"{what} {format_bytes(after)}, {more} {format_bytes(before)}"


def _line_sentences(lines: Sequence[_Grown]) -> Iterator[str]:
    """Yield a sentence on the lines that have grown most, the first of which is the finding's."""
    if not lines:
        return
    first, *others = lines[:_NAMED]
    before = f" than before ({format_bytes(first.before_nbytes)})" if first.before_nbytes else ""
    named = [
        f"{format_bytes(line.growth_nbytes)} more at {line.location.file}:{line.location.line}"
        for line in others
        if line.location is not None and line.growth_nbytes >= _WORTH * first.growth_nbytes
    ]
    also = f", and {' and '.join(named)}" if named else ""
    yield f"This line has {format_bytes(first.growth_nbytes)} more{before}{also}"


def _kept_growth(report: Report, earlier: Earlier, root: Path) -> tuple[_Grown, ...]:
    if earlier.report is None:
        return _since_lockfile(report, earlier.baseline, root)
    return _largest(
        _Grown(line.after, line.growth_nbytes, line.kept_before_nbytes)
        for line in diff(earlier.report, report).lines
    )


def _peak_growth(report: Report, earlier: Earlier, root: Path) -> tuple[_Grown, ...]:
    if earlier.report is None:
        return _since_lockfile(report, earlier.baseline, root)
    return _largest(
        _Grown(line.after, line.peak_growth_nbytes, line.peak_before_nbytes)
        for line in diff(earlier.report, report).lines
    )


def _since_lockfile(report: Report, baseline: Baseline, root: Path) -> tuple[_Grown, ...]:
    """Return the lines that keep more than a lockfile has, which names those that kept most."""
    now: dict[str, tuple[Location, int]] = {}
    for line, where in _placed(kept_by_line(report)):
        code = _code(where, root)
        first, nbytes = now.get(code, (where, 0))
        now[code] = first, nbytes + line.nbytes
    known = {line.code: line.nbytes for line in baseline.lines}
    gone = [code for code in known if code not in now]
    unlisted = _unlisted(baseline)
    grown = []
    for code, (where, nbytes) in now.items():
        before = code if code in known else _edited(code, gone)
        if before is None:
            grown.append(_Grown(where, nbytes - unlisted, None))
        else:
            grown.append(_Grown(where, nbytes - known[before], known[before]))
    return _largest(grown)


def _unlisted(baseline: Baseline) -> int:
    """Return the most bytes that a line can have kept which a lockfile does not name."""
    listed = [line.nbytes for line in baseline.lines]
    least = min(listed) if len(listed) == _LOCKED else int(_WORTH * baseline.kept_nbytes)
    return min(least, max(baseline.kept_nbytes - sum(listed), 0))


def _edited(code: str, gone: list[str]) -> str | None:
    """Take from the lines that are gone what a line was before it was edited; None for a new one.

    It is the most similar line of the same function.
    """
    function = code.partition(": ")[0]
    own = [each for each in gone if each.partition(": ")[0] == function]
    found = next(iter(difflib.get_close_matches(code, own, 1)), None)
    if found is not None:
        gone.remove(found)
    return found


def _largest(lines: Iterable[_Grown]) -> tuple[_Grown, ...]:
    grown = (line for line in lines if line.growth_nbytes > 0)
    return tuple(sorted(grown, key=lambda line: -line.growth_nbytes))


def _placed(lines: Iterable[LineBytes]) -> Iterator[tuple[LineBytes, Location]]:
    for line in lines:
        where = line.source.location or line.source.library
        if where is not None:
            yield line, where


def _code(where: Location, root: Path) -> str:
    """Return a line without its number, which moves: the file, the function and the code."""
    path = Path(os.path.abspath(where.file))
    # Where a library is installed differs from one machine to the next.
    file = path.relative_to(root) if path.is_relative_to(root) else Path(*path.parts[-2:])
    return one_line(f"{file.as_posix()} {where.function}: {where.code}")
