"""Collect the findings of a trace: what is kept in vain, and what has no effect.

Each finding is about one source line and names the rule that it is a case of. An error of ours in
the code behind one finding costs that one alone, and is a warning of the report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from jaxresid.base.crashes import RAISES, Crash, crash_of
from jaxresid.base.errors import NOT_CAUGHT, JaxresidError
from jaxresid.base.text.units import format_bytes
from jaxresid.results import Computed, Finding, Location, Mark, Report, Residual

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


def free_residuals(report: Report) -> Iterator[Finding]:
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
