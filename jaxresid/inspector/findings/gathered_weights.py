"""Find weights that devices gather and keep until the backward pass, and what it takes if not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.findings.logits import may_be_in_vector_memory
from jaxresid.inspector.findings.proposals import (
    WORTH_SAYING,
    Proposal,
    proposal,
    rewrite_effect,
)
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.inspector.variants.rewrites.gathered_weights import (
    GATHERS,
    gathered_again,
    gathered_weights_in,
    with_bodies_inlined,
)
from jaxresid.results import Computed, Finding, Location, Report, Residual, Source

# Of the peak. A rewritten program is not split by a compiler; where that makes a difference to the
# program as it is, nothing is said.
_SAME = 0.01


def gathered_weights(
    report: Report, profile: Profile, rewrites: Callable[[], Rewrites | None]
) -> Iterator[Proposal]:
    """Yield the finding of arguments that are gathered inside `shard_map` and kept whole.

    Args:
      report: the report of the function or step; it has an estimated peak. Without a mesh its
        bytes are those of all devices, and there are no findings.
      profile: the profile of the compiler.
      rewrites: returns what is differentiated, if that can be rewritten.
    """
    assert report.peak is not None
    if report.mesh is None or may_be_in_vector_memory(report.peak.nbytes, profile):
        return
    least = WORTH_SAYING * report.peak.nbytes
    kept = [r for r in report.residuals if _is_gathered(r)]
    if sum(r.nbytes for r in kept) < least:
        return
    made = rewrites()
    for number, jaxpr in enumerate(made.jaxprs if made is not None else ()):
        assert made is not None
        flat = with_bodies_inlined(jaxpr)
        weights = list(gathered_weights_in(flat))
        if not weights:
            continue
        changed = gathered_again(flat, weights)
        before, figures = made.figures(number, flat), made.figures(number, changed)
        if before is None or figures is None:
            continue
        is_same = abs(before.peak_nbytes - report.peak.nbytes) <= _SAME * report.peak.nbytes
        if is_same and report.peak.nbytes - figures.peak_nbytes >= least:
            yield proposal(_finding(report, made, kept, figures), made, number, changed)


def _is_gathered(residual: Residual) -> bool:
    origin = residual.origin
    is_gathered = isinstance(origin, Computed) and origin.primitive in GATHERS
    return is_gathered and residual.aval.memory == "device"


def _finding(
    report: Report, rewrites: Rewrites, kept: Sequence[Residual], figures: Figures
) -> Finding:
    lines = Counter[Location | None]()
    sources: dict[Location | None, Source] = {}
    for residual in kept:
        assert isinstance(residual.origin, Computed)
        source = residual.origin.source
        lines[source.location] += residual.nbytes
        sources.setdefault(source.location, source)
    ((biggest, _),) = lines.most_common(1)
    others = len(lines) - 1
    where = f"here and on {others} other line{'s' * (others > 1)}" if others else "here"
    nbytes = sum(r.nbytes for r in kept)
    effect, measured = rewrite_effect(report, rewrites, figures)
    return Finding(
        "gathered-weights-kept",
        f"{format_bytes(nbytes)} that each device gathers {where} of arguments stay whole on it for"
        f" the backward pass. If that gathers them again, receiving as much, the {effect}",
        sources[biggest],
        help="gather in a checkpoint with what reads it, which computes no product again:"
        " `jax.checkpoint(lambda x, w: x @ jax.lax.all_gather(w, 'data', tiled=True))(x, w)`, in a"
        " loop with prevent_cse=False",
        measured={"nbytes": nbytes, "trips": max(r.trips for r in kept), **measured},
    )
