"""Find residuals made of constants alone that a loop reads.

In straight-line code every compiler folds such values into what reads them.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxresid.base.text.units import format_bytes
from jaxresid.base.thresholds import NEGLIGIBLE
from jaxresid.inspector.findings.search import FindingContext, FindingSearch
from jaxresid.results import Computed, Finding, Location, Mark, Residual


def free_residuals(context: FindingContext) -> Iterator[Finding]:
    """Yield a finding for each line, primitive and type; unrolled layers are one as well."""
    kept = context.report.totals.computed_nbytes
    groups: dict[tuple[str, str, Location | None], list[Residual]] = {}
    for residual in context.report.residuals:
        origin = residual.origin
        if isinstance(origin, Computed) and residual.nbytes and _is_free_in_loop(residual):
            key = (origin.primitive, residual.aval.dtype, origin.location)
            groups.setdefault(key, []).append(residual)
    for group in groups.values():
        nbytes = sum(residual.nbytes for residual in group)
        if nbytes < NEGLIGIBLE * kept:
            continue
        origin = group[0].origin
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


def _is_free_in_loop(residual: Residual) -> bool:
    reads = (eqn for consumer in residual.consumers for eqn in consumer.within)
    return Mark.FREE in residual.marks and any(r.startswith(("scan", "while")) for r in reads)


SEARCH = FindingSearch(["free-residual"], "code", 3, free_residuals)
