"""Find vmaps so wide that what they make is the peak, and tell what it takes in parts.

Each change is the program traced again with the calls of one vmap in parts, as `jax.lax.map` with a
`batch_size` runs them.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import RetraceError
from jaxresid.base.text.units import format_bytes
from jaxresid.base.thresholds import WORTH_SAYING
from jaxresid.inspector.findings.jacobians import NAME as COSTLY_MODE
from jaxresid.inspector.findings.jacobians import other_modes
from jaxresid.inspector.findings.logits import vector_memory_nbytes
from jaxresid.inspector.findings.proposals import Changed, Proposal, change_effect
from jaxresid.inspector.findings.search import FindingContext, FindingSearch
from jaxresid.inspector.jaxpr.bindings import user_line
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.program.ops import Op
from jaxresid.inspector.variants.rewrites.retraced import Retraced
from jaxresid.jax_compat import VmapCall
from jaxresid.results import Answer, Finding, LiveValue, Location, Report, Source, answer

NAME = "vmap-too-wide"
# Of the peak, for a program that fits: it runs in parts one after the other, which may take longer.
_WORTH_PARTS = 0.3
# Of what the smallest parts take off the peak; bigger ones that take so little less are better.
_NOTHING = 0.1
# Parts, one after the other.
_MOST_PARTS = 1024
# Vmaps that are tried; each takes a trace.
_MOST_TRIED = 3
_LABEL = "vmapped_at_{}_"
# Of a name stack: what is inside is differentiated.
_DERIVATIVE = re.compile(r"\b(transpose|jvp)\(")
_FITS: dict[Answer, str] = {
    "fits": ", it fits",
    "too close": ", it is too close to tell whether it fits",
    "does not fit": ", it does not fit yet",
}

_Temporaries = Sequence[tuple[LiveValue, Op]]


@dataclass(frozen=True, slots=True)
class VmapSite:
    """A line that calls vmapped functions of one size.

    Attributes:
      size: the size of the mapped axis.
      caller: as `VmapCall` has it.
      function: the name of the mapped function; '' where it has none.
      closes_over: whether it has arguments that are not mapped.
    """

    location: Location | None
    size: int
    caller: str
    function: str
    closes_over: bool

    @classmethod
    def of(cls, call: VmapCall, frames: Frames) -> VmapSite:
        """Return the site of a call that is running."""
        closes_over = None in call.axes
        return cls(user_line(frames), call.size, call.caller, call.function, closes_over)

    @property
    def what(self) -> str:
        """What is called there, in words."""
        if self.caller == "map":
            return "jax.lax.map"
        if self.caller != "vmap":
            return f"jax.{self.caller}"
        is_named = self.function.isidentifier()
        return f"the vmap of `{self.function}`" if is_named else "the vmap"

    def help(self, count: int) -> str:
        """Return what to write so that some items run at a time."""
        if self.caller == "jacrev":
            return (
                "map the pullback over the rows in parts: `y, pullback = jax.vjp(f, x)` and"
                f" `jax.lax.map(pullback, basis_of_y, batch_size={count})`, where basis_of_y is"
                " jnp.eye(y.size).reshape(-1, *y.shape)"
            )
        if self.caller == "jacfwd":
            return (
                "map over the columns in parts: `jax.lax.map(lambda v: jax.jvp(f, (x,), (v,))[1],"
                f" basis_of_x, batch_size={count})`, where basis_of_x is"
                " jnp.eye(x.size).reshape(-1, *x.shape) (for jax.hessian, f is the gradient)"
            )
        if self.caller == "map":
            return f"jax.lax.map(..., batch_size={count})"
        if self.closes_over:
            return (
                f"jax.lax.map(lambda x: f(params, x), xs, batch_size={count}) in place of the vmap,"
                " with what is not mapped closed over"
            )
        return f"jax.lax.map(f, xs, batch_size={count}) in place of jax.vmap(f)(xs)"


@dataclass(frozen=True, slots=True, eq=False)
class _InParts:
    """The program with the calls at one site in parts.

    Attributes:
      nbytes: the bytes of what the site maps that are live at the peak of the program as it is.
      count: how many items are mapped at a time.
      fits: whether it fits the place; None where the memory of that is not known.
    """

    site: VmapSite
    nbytes: int
    count: int
    retraced: Retraced
    fits: Answer | None

    @property
    def peak_nbytes(self) -> int:
        return self.retraced.figures.peak_nbytes


def _mapped_nbytes(temporaries: _Temporaries, tag: str = "vmap(") -> int:
    """Return the bytes of what ops with a tag make, of the temporaries at a peak."""
    return sum(
        value.nbytes
        for value, op in temporaries
        if tag in op.context.tags or tag in jax_compat.name_stack(op.eqn)
    )


def _most_saved_nbytes(temporaries: _Temporaries, tag: str = "vmap(") -> int:
    """Return the most bytes that vmaps in parts can take off a peak, as `_mapped_nbytes`.

    What a gradient that is taken of a vmap keeps for its backward pass is kept in parts, too.
    """
    free = [
        (value, op)
        for value, op in temporaries
        if value.kind != "residual" or _DERIVATIVE.search(_tags(op).partition("vmap(")[2])
    ]
    return _mapped_nbytes(free, tag)


def _tags(op: Op) -> str:
    """Return the name stacks of an op and of the eqns around it, outermost first."""
    stacks, context = [jax_compat.whole_name_stack(op.eqn)], op.context
    while context.parent is not None:
        stacks.append(jax_compat.whole_name_stack(context.eqn))
        context = context.parent
    return "/".join(reversed(stacks))


def _least_nbytes(context: FindingContext) -> float:
    """Return how many bytes parts have to take off the peak to be worth saying."""
    worth = _WORTH_PARTS if _fits(context.report) else WORTH_SAYING
    return worth * context.peak_nbytes + vector_memory_nbytes(context.subject.profile)


def _fits(report: Report) -> bool:
    """Return whether the program surely fits as it is, or what it has to fit is not known."""
    memory = report.place.memory_nbytes
    return memory is None or report.peak is None or answer(report.peak.interval, memory) == "fits"


def wide_vmaps(context: FindingContext) -> Iterator[Proposal]:
    """Yield the finding about the vmap that is best run in parts, if one is worth saying.

    Of a Jacobian that takes less in the other mode, that is said instead.
    """
    report = context.report
    try:
        sites = _sites(context)
    except RetraceError:
        return
    worth = context.least_nbytes + vector_memory_nbytes(context.subject.profile)
    for site, _ in sites:
        if site.caller in ("jacfwd", "jacrev"):
            costly = list(other_modes(context, site.location, site.caller, worth))
            if costly:
                yield from costly
                return
    with contextlib.suppress(RetraceError):
        chosen = _chosen(context, sites)
        if chosen is not None:
            changed = Changed(chosen.retraced.trace, chosen.retraced.program)
            limit = report.place.memory_nbytes if chosen.fits == "fits" else None
            yield Proposal(
                _finding(context, chosen),
                lambda: changed,
                limit_nbytes=limit,
                change=f"{chosen.count} of {chosen.site.size} at a time in {chosen.site.what}",
            )


def _chosen(context: FindingContext, sites: Sequence[tuple[VmapSite, int]]) -> _InParts | None:
    """Return the program with the best site in the biggest parts that are small enough."""
    report, peak = context.report, context.peak_nbytes

    def in_parts(site: VmapSite, nbytes: int, count: int) -> _InParts:
        frames = context.levels.frames
        retraced = context.subject.retraced(functools.partial(_in_parts, frames, site, count))
        memory = report.place.memory_nbytes
        fits = None if memory is None else answer(retraced.interval, memory)
        return _InParts(site, nbytes, count, retraced, fits)

    best: _InParts | None = None
    for site, nbytes in sites:
        if site.caller == "map" and _fits(report):
            continue  # whoever wrote it has chosen the parts
        smallest = in_parts(site, nbytes, _counts(site.size)[0])
        highest = (peak if best is None else best.peak_nbytes) - WORTH_SAYING * peak
        if smallest.peak_nbytes <= min(highest, peak - _least_nbytes(context)):
            best = smallest
    if best is None:
        return None
    smallest = best
    lowest = smallest.peak_nbytes

    def is_small_enough(parts: _InParts) -> bool:
        if smallest.fits == "fits" and not _fits(report):
            return parts.fits == "fits"
        return parts.peak_nbytes - lowest <= _NOTHING * (peak - lowest)

    counts = _counts(smallest.site.size)
    low, high = 0, len(counts) - 1
    while low < high:  # the last that is small enough; all smaller ones are
        middle = (low + high + 1) // 2
        parts = in_parts(smallest.site, smallest.nbytes, counts[middle])
        if is_small_enough(parts):
            low, best = middle, parts
        else:
            high = middle - 1
    return best


def _counts(size: int) -> list[int]:
    """Return how many items of so many to map at a time, fewest first."""
    fewest = -(-size // _MOST_PARTS)
    divisors = [n for n in range(fewest, size // 2 + 1) if size % n == 0]
    powers = [n for n in (2**i for i in range(size.bit_length())) if fewest <= n < size]
    counts = divisors if 2 * len(divisors) >= len(powers) else powers
    apart: list[int] = []
    for n in counts:
        if not apart or n >= 1.5 * apart[-1]:
            apart.append(n)
    return apart


def _sites(context: FindingContext) -> list[tuple[VmapSite, int]]:
    """Return the sites that make enough bytes of what is live at the peak, most bytes first."""
    labels: dict[VmapSite, str] = {}

    def label(call: VmapCall, operands: Sequence[Any]) -> Any:
        if call.size < 2 or not call.is_divisible:
            return call.as_it_is(operands)
        site = VmapSite.of(call, context.levels.frames)
        return call.labelled(labels.setdefault(site, _LABEL.format(len(labels))), operands)

    retraced = context.subject.retraced(lambda: jax_compat.replacing_vmap_calls(label))
    live = retraced.temporaries
    sites = [
        (site, _mapped_nbytes(live, tag))
        for site, tag in labels.items()
        if _most_saved_nbytes(live, tag) >= _least_nbytes(context)
    ]
    return sorted(sites, key=lambda site: -site[1])[:_MOST_TRIED]


def _in_parts(
    frames: Frames, site: VmapSite, count: int
) -> contextlib.AbstractContextManager[object]:
    """Return the context in which the calls at a site run so many items at a time."""

    def run(call: VmapCall, operands: Sequence[Any]) -> Any:
        if call.is_divisible and call.size == site.size and VmapSite.of(call, frames) == site:
            return call.in_parts(count, operands)
        return call.as_it_is(operands)

    return jax_compat.replacing_vmap_calls(run)


def _finding(context: FindingContext, chosen: _InParts) -> Finding:
    site, count = chosen.site, chosen.count
    parts = -(-site.size // count)
    cost = context.subject.holes.cost(context.subject.trace)
    effect, measured = change_effect(context.report, cost, chosen.retraced.figures)
    whole = "" if site.caller == "map" else "all "
    fits = _FITS[chosen.fits] + ": the" if chosen.fits and not _fits(context.report) else ", the"
    return Finding(
        NAME,
        f"{site.what} here runs {whole}{site.size} at once, and {format_bytes(chosen.nbytes)} of"
        f" what it makes is live at the peak. With {count} at a time, in {parts} parts one after"
        f" the other{fits} {effect}",
        Source(site.location),
        help=f"{site.help(count)}; where a part leaves the device idle, that takes longer",
        measured={
            "nbytes": chosen.nbytes,
            "size": site.size,
            "batch_size": count,
            "parts": parts,
            "transform": site.caller,
            "fits": chosen.fits,
            **measured,
        },
    )


def _maps_much(context: FindingContext) -> bool:
    return context.is_on_one_device and (
        _most_saved_nbytes(context.subject.temporaries) >= _least_nbytes(context)
    )


SEARCH = FindingSearch([NAME, COSTLY_MODE], "proposal", 40, wide_vmaps, _maps_much)
