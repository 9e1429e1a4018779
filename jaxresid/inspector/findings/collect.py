"""Collect the findings of a trace: what is kept in vain, and what has no effect.

Each finding is about one source line and names the rule that it is a case of. An error of ours in
the code behind one finding costs that one alone, and is a warning of the report.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from jaxresid.crashes import RAISES, Crash, crash_of
from jaxresid.errors import NOT_CAUGHT, JaxresidError
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


T = TypeVar("T")

# The names of findings -> what looks for them.
Search = tuple[str, Callable[[], Iterable[T]]]

_log = logging.getLogger(__name__)


def collected(searches: Iterable[Search[T]], crashes: list[Crash]) -> list[T]:
    """Return what is found, and add the searches that crash to `crashes`.

    Args:
      searches: the searches, by what they look for.
      crashes: gets the crash of each search that an error of our own code ends.

    Raises:
      JaxresidError: what is asked cannot be answered.
      Exception: an error of ours, where these are raised; see `crashes.RAISES`.
    """
    everything = list[T]()
    for name, search in searches:
        before = len(everything)
        try:
            everything.extend(search())
        except (*NOT_CAUGHT, JaxresidError):
            raise
        except Exception as e:
            _log.exception("%s: crashed", name)
            if RAISES.get():
                raise
            crashes.append(crash_of(name, e))
        else:
            _log.info("%s: %d found", name, len(everything) - before)
    return everything


def searches_of_function(report: Report, traced: Trace) -> Iterator[Search[Finding]]:
    """Yield the searches about a function, apart from those about host memory or a checkpoint."""
    return _searches(report, traced, functools.partial(stacking_loops, report, traced))


def searches_of_step(report: Report, step: StepTrace) -> Iterator[Search[Finding]]:
    """Yield the searches about a training step, as `searches_of_function` does."""
    return _searches(report, step, functools.partial(stacking_loops_of_step, step))


def _searches(
    report: Report, traced: Traced, stacking: Callable[[], Sequence[Loop]]
) -> Iterator[Search[Finding]]:
    yield "undefined-checkpoint-name and unused-checkpoint-name", lambda: policy_findings(traced)
    yield "unwrapped-loop-body", lambda: unwrapped_bodies(report, traced, stacking)
    yield "free-residual", lambda: _free_residuals(report)


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
