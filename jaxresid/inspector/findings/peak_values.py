"""Search for values at the peak that a rewrite of the lines which make them leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from jaxresid.inspector.findings.proposals import Proposal, proposal, rewrite_effect
from jaxresid.inspector.findings.search import FindingContext, HeldSite
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Finding, LiveValue, Source

Shape = tuple[int, ...]


class ShapedSite(HeldSite, Protocol):
    """What a rewrite is of, which has a value of some shape in memory."""

    @property
    def shape(self) -> Shape:
        """The shape of the value."""


SiteT = TypeVar("SiteT", bound=ShapedSite)
# From the context, a site, its line, the bytes at the peak, and what a rewrite does, in words and
# by name.
Wording = Callable[[SiteT, Source, int, str, Mapping[str, object]], Finding]


def nbytes_by_shape(
    live: Iterable[LiveValue], is_counted: Callable[[str | None, Shape], bool]
) -> dict[Shape, int]:
    """Return the bytes of what is live at the peak, of some primitives and shapes, by shape."""
    nbytes: dict[Shape, int] = {}
    for value in live:
        if value.aval is not None and is_counted(value.primitive, value.aval.shape):
            nbytes[value.aval.shape] = nbytes.get(value.aval.shape, 0) + value.nbytes
    return nbytes


def proposals_by_line(
    context: FindingContext,
    nbytes: Mapping[Shape, int],
    sites_in: Callable[[Jaxpr], Iterable[SiteT]],
    rewritten: Callable[[Jaxpr, Sequence[SiteT]], Jaxpr],
    finding: Wording[SiteT],
    change: str,
) -> Iterator[Proposal]:
    """Yield a proposal for each line whose rewrite takes enough off the peak.

    Args:
      context: what is searched.
      nbytes: the bytes at the peak, by shape.
      sites_in: returns what can be rewritten in an open jaxpr.
      rewritten: returns the open jaxpr with the sites of a line rewritten.
      finding: words the finding.
      change: the rewrite in a few words.
    """
    big = {shape for shape, size in nbytes.items() if size >= context.least_nbytes}
    rewrites = context.subject.rewrites if big else None
    if rewrites is None:
        return
    for number, jaxpr in enumerate(rewrites.jaxprs):
        sites = (site for site in sites_in(jaxpr) if site.shape in big)
        for source, group in context.sites_by_line(jaxpr, sites).items():
            changed = rewritten(jaxpr, group)
            figures = context.lower_peak(rewrites, number, changed)
            if figures is not None:
                size = sum(nbytes[shape] for shape in {site.shape for site in group})
                effect, measured = rewrite_effect(context.report, rewrites, figures)
                worded = finding(group[0], source, size, effect, measured)
                yield proposal(worded, rewrites, number, changed, change=change)
