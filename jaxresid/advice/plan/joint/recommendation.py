"""Why the other configurations were not chosen, and what to set for the one that was."""

from __future__ import annotations

from collections.abc import Iterator

from jaxresid.advice.plan.joint.accumulation_code import accumulation_code
from jaxresid.advice.plan.joint.configurations import Grid
from jaxresid.advice.plan.joint.search import AS_GOOD, JointSearch, Solved
from jaxresid.advice.plan.search.combinations import TracedVariant
from jaxresid.advice.timing.intervals import time_basis_of
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.subject.base import Subject
from jaxresid.results import Beaten, Configuration

# A smaller difference in the estimated time is not told in per cent.
_AS_FAST = 0.001


def beaten(search: JointSearch, chosen: Solved) -> tuple[Beaten, ...]:
    """Return the configurations that were not chosen, each with the reason, the best first."""
    found, refuted = [], []
    for other in search.ranked():
        if other is chosen:
            continue
        needed = _refuted_nbytes(other)
        if needed is None:
            found.append(Beaten(other.configuration, _reason(other, chosen), True))
        else:
            reason = f"does not fit: XLA needs {format_bytes(needed)}"
            refuted.append(Beaten(other.configuration, reason, False))
    found += refuted
    for solved in search.solved:
        if solved.best is None and solved is not chosen and solved.lowest is not None:
            reason = f"does not fit by the estimate: {format_bytes(solved.lowest.peak)} at least"
            if _may_fit(solved, solved.lowest):
                reason += ", but may by its range; not compiled: plan it alone with --compile"
            found.append(Beaten(solved.configuration, reason, False))
    found += [Beaten(skipped, reason, False) for skipped, reason in search.skipped]
    for failed, error in search.failed:
        first = str(error).partition("\n")[0]
        found.append(Beaten(failed, f"cannot be traced: {first}", False))
    return tuple(found)


def _may_fit(solved: Solved, lowest: TracedVariant) -> bool:
    """Return whether the interval around a peak reaches below the budget; XLA was not asked."""
    planning = solved.planning
    if lowest in planning.peaks.figures:
        return False
    around = planning.subject.interval(lowest.peak, lowest.variant.program)
    return around is not None and around.low_nbytes <= planning.budget_nbytes


def _refuted_nbytes(solved: Solved) -> int | None:
    """Return what XLA needs for the plan that was to be shown of a configuration, if too much."""
    planning = solved.planning
    said = None if planning.decided is None else planning.peaks.figures.get(planning.decided)
    return said if said is not None and said > planning.budget_nbytes else None


def _reason(other: Solved, chosen: Solved) -> str:
    """Return why a configuration that fits was not chosen."""
    mine = chosen.planning.decided or chosen.best or chosen.lowest
    theirs = other.planning.decided or other.best
    assert mine is not None
    assert theirs is not None
    is_refuted = chosen.best is None
    aim = other.planning.aim
    if aim == "memory" and theirs.peak > mine.peak:
        return f"peak {format_bytes(theirs.peak - mine.peak)} higher: {format_bytes(theirs.peak)}"
    shares = [
        each.planning.objective.recompute_fraction(tried.variant)
        for each, tried in ((chosen, mine), (other, theirs))
    ]
    if aim == "recompute" and shares[1] - shares[0] > AS_GOOD:
        return f"recomputes {shares[1]:.1%} in place of {shares[0]:.1%}"
    times = chosen.seconds_per_item(mine), other.seconds_per_item(theirs)
    if is_refuted or times[0] is None or times[1] is None:
        return "no better"
    slower = times[1] / times[0] - 1
    if slower > _AS_FAST:
        basis = time_basis_of(mine.variant, chosen.planning.subject.place)
        if basis is not None and 1 + slower < basis.factor:
            return f"about as fast per item ({slower:.1%} slower by the estimate)"
        return f"{slower:.1%} slower per item by the estimate"
    if slower < -_AS_FAST:
        word = {"recompute": "recompute", "memory": "peak"}.get(aim)
        faster = f"{-slower:.1%} faster per item by the estimate"
        return f"{faster}, " + (f"with no less {word}" if word else "but not in code that holds")
    more = other.configuration.microbatches > chosen.configuration.microbatches
    return "as fast per item, with more microbatches" if more else "as fast per item"


def to_set(configuration: Configuration, subject: Subject, rows: int, grid: Grid) -> Iterator[str]:
    """Yield what to set for a configuration besides its checkpoints, or to write by hand.

    Args:
      configuration: The configuration.
      subject: It as a subject.
      rows: The items of a microbatch.
      grid: What it was chosen from.
    """
    if len(grid.sizes) > 1 and configuration.batch is not None:
        size = "the batch size" if grid.name == "batch" else grid.name
        yield f"set {size} to {configuration.batch}"
    if configuration.mesh is not None and len(grid.meshes) > 1:
        axes = configuration.mesh.replace("=", "': ").replace(",", ", '")
        yield f"make the mesh {{'{axes}}}"
    if configuration.microbatches > 1:
        yield (
            f"go through the batch in {configuration.microbatches} microbatches; jaxresid writes"
            " checkpoints, no loops over microbatches, so write this by hand:"
        )
        yield accumulation_code(subject, rows, configuration.microbatches)
        if subject.trace.arguments.mesh is not None:
            yield (
                "the sums of the gradients have to be split as the parameters are:"
                " jax.lax.with_sharding_constraint"
            )
