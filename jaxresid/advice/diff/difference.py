"""Say what two reports say differently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jaxresid.advice.diff.checkpoints import checkpoint_differences, finding_differences
from jaxresid.advice.diff.inputs import input_differences
from jaxresid.advice.diff.lines import lines_of
from jaxresid.advice.diff.matching import matched
from jaxresid.advice.diff.pairing import paired
from jaxresid.base.errors import InputsError
from jaxresid.results import Difference, DiffSide, JaxInfo, LineDifference, Mesh, Report
from jaxresid.results.comparison.difference import TOLERANCE, negligible_recompute


def diff(
    before: Report,
    after: Report,
    *,
    labels: tuple[str, str] = ("before", "after"),
    tolerance: float = TOLERANCE,
) -> Difference:
    """Return what two reports say differently, by source line.

    Values are matched by what their line computes, the function and the module that it is in, and
    their role: what moved, was renamed, reformatted or put into a helper is followed. Kept bytes
    are compared exactly.

    Args:
      before: the earlier report.
      after: the later one.
      labels: what the two are called.
      tolerance: peaks and recomputed FLOPs that differ by no more than this share of the larger are
        the same.

    Raises:
      InputsError: the tolerance is not a share.
    """
    if not 0 <= tolerance < 1:
        raise InputsError(f"tolerance {tolerance:g} is not a share; write 0.01 for 1 %")
    sides = _side(before, labels[0]), _side(after, labels[1])
    earlier, later = lines_of(before), lines_of(after)
    rows = matched(earlier, later, paired(earlier, later))
    found, gone = finding_differences(before.findings, after.findings)
    whole = Difference(
        *sides,
        checkpoints=checkpoint_differences(
            before.checkpoints,
            after.checkpoints,
            tolerance,
            negligible_recompute(*(side.total_flops for side in sides)),
        ),
        inputs=input_differences(before, after),
        found=found,
        gone=gone,
        notes=tuple(_notes(before, after, sides)),
        tolerance=tolerance,
    )
    least = tolerance * max(*(side.peak_nbytes or 0 for side in sides))
    differing = [row for row in rows if _differs(row, least if whole.differs_in_peak else None)]
    keeping = [row for row in rows if row.kept_after_nbytes or row.host_after_nbytes]
    return replace(
        whole,
        lines=tuple(sorted(differing, key=_order)),
        same_lines=sum(not _keeps_other(row) for row in keeping),
    )


def _order(row: LineDifference) -> tuple[int, int, str, int]:
    where = row.location
    growth = row.growth_nbytes + row.host_growth_nbytes
    return -growth, -row.peak_growth_nbytes, where.file if where else "", where.line if where else 0


def _keeps_other(row: LineDifference) -> bool:
    return bool(row.growth_nbytes or row.host_growth_nbytes)


def _differs(row: LineDifference, least_nbytes: float | None) -> bool:
    """Return whether a line is a difference.

    Args:
      row: the line.
      least_nbytes: by how much more its part of the peak must differ; None: the peaks are the same.
    """
    if _keeps_other(row):
        return True
    return least_nbytes is not None and abs(row.peak_growth_nbytes) > least_nbytes


def _side(report: Report, label: str) -> DiffSide:
    peak, compiled = report.peak, None
    if peak is None:
        compiled = next((c.peak_nbytes for c in report.compiled if c.peak_nbytes is not None), None)
    return DiffSide(
        label=label,
        target=report.target,
        jax=report.jax,
        place=report.place,
        mesh=report.mesh,
        totals=report.totals,
        peak_nbytes=compiled if peak is None else peak.nbytes,
        peak_by="estimate" if peak is not None else "xla" if compiled is not None else None,
        low_nbytes=None if peak is None else peak.low_nbytes,
        high_nbytes=None if peak is None else peak.high_nbytes,
        breakdown=() if peak is None else peak.breakdown,
        recompute_flops=report.cost.recompute.flops,
        total_flops=report.cost.total.flops,
    )


def _notes(before: Report, after: Report, sides: tuple[DiffSide, DiffSide]) -> Iterator[str]:
    """Yield what else the sides differ in, so that their figures may."""
    if before.target.mode != after.target.mode:
        yield f"a {before.target.mode} and a {after.target.mode}"
    if before.target.has_gradient != after.target.has_gradient:
        which = "the first" if before.target.has_gradient else "the second"
        yield f"only {which} takes a gradient"
    if _axes(before.mesh) != _axes(after.mesh):
        yield f"over {_axes(before.mesh)} and {_axes(after.mesh)}"
    yield from _flag_notes(before.jax, after.jax)
    was, now = (side.peak_by for side in sides)
    if was != now:
        words = {"estimate": "an estimate", "xla": "XLA's", None: "not known"}
        yield f"peaks are not compared: one is {words[was]}, one is {words[now]}"
    for side, report, other in ((sides[0], before, after), (sides[1], after, before)):
        for warning in report.warnings:
            if warning not in other.warnings:
                yield f"{side.label}: {warning}"


def _flag_notes(before: JaxInfo, after: JaxInfo) -> Iterator[str]:
    """Yield the flags that are on for one side; a JAX that does not know a flag has it off."""
    for name in sorted({*before.flags, *after.flags}):
        was, now = before.flags.get(name, False), after.flags.get(name, False)
        if was != now:
            yield f"{name}: {_set(was)} → {_set(now)}"


def _set(value: bool) -> str:
    return "on" if value else "off"


def _axes(mesh: Mesh | None) -> str:
    return (
        "one device"
        if mesh is None
        else "the mesh " + ",".join(f"{name}={size}" for name, size in mesh.axes)
    )
