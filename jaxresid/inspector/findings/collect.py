"""Collect the findings of a trace: what is kept in vain, and what has no effect.

Each finding is about one source line and names the rule that it is a case of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

from jaxresid.inspector.findings.loops import (
    Loop,
    stacking_loops,
    stacking_loops_of_step,
    unwrapped_bodies,
)
from jaxresid.inspector.findings.policies import policy_findings
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.inspector.trace.traced import Traced
from jaxresid.model import Computed, Finding, Location, Mark, Report, Residual
from jaxresid.text.units import format_bytes

# Of the computed residuals; less is not worth a reader's time.
WORTH_SAYING = 0.01


def function_findings(report: Report, traced: Trace) -> tuple[Finding, ...]:
    """Return the findings about a function, apart from those about host memory or a checkpoint."""
    stacking = functools.partial(stacking_loops, report, traced)
    return (
        *_about_code(report, traced, stacking),
        *_free_residuals(report),
    )


def step_findings(report: Report, step: StepTrace) -> tuple[Finding, ...]:
    """Return the findings about a training step, as `function_findings` does."""
    stacking = functools.partial(stacking_loops_of_step, step)
    return (*_about_code(report, step, stacking), *_free_residuals(report))


def _about_code(
    report: Report, traced: Traced, stacking: Callable[[], Sequence[Loop]]
) -> Iterator[Finding]:
    yield from policy_findings(traced)
    yield from unwrapped_bodies(report, traced, stacking)


def _free_residuals(report: Report) -> Iterator[Finding]:
    """Yield the findings about free residuals that a loop reads.

    In straight-line code every compiler folds such values into what reads them.
    """
    kept = report.totals.computed_nbytes

    def is_free_in_loop(residual: Residual) -> bool:
        reads = (w for c in residual.consumers for w in c.within)
        return Mark.FREE in residual.marks and any(w.startswith(("scan", "while")) for w in reads)

    for group in _groups(enumerate(report.residuals), is_free_in_loop):
        nbytes = sum(r.nbytes for _, r in group)
        if nbytes < WORTH_SAYING * kept:
            continue
        origin = group[0][1].origin
        assert isinstance(origin, Computed)
        yield Finding(
            "free-residual",
            f"{format_bytes(nbytes)} computed by {origin.primitive} from constants alone are kept"
            f" for the backward loop, {nbytes / kept:.0%} of what is kept: recomputing them is"
            " cheaper than keeping them",
            origin.source,
            help="compute it in a checkpointed body, with a policy that saves what is expensive",
            measured={"nbytes": nbytes, "share": nbytes / kept},
        )


_Numbered = tuple[int, Residual]


def _groups(
    residuals: Iterable[_Numbered], wanted: Callable[[Residual], bool]
) -> Iterator[list[_Numbered]]:
    """Yield the computed residuals that one line makes by one primitive in one type, as groups.

    Those of unrolled layers are in one group as well.
    """
    groups: dict[tuple[str, str, Location | None], list[_Numbered]] = {}
    for index, residual in residuals:
        origin = residual.origin
        if isinstance(origin, Computed) and residual.nbytes and wanted(residual):
            key = (origin.primitive, residual.aval.dtype, origin.location)
            groups.setdefault(key, []).append((index, residual))
    yield from groups.values()
