"""Find what loops keep although it is cheap to make of what is there, and what it is worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.findings.frameworks import checkpointed_layer, framework_of
from jaxresid.inspector.findings.proposals import (
    WORTH_SAYING,
    Proposal,
    proposal,
    rewrite_effect,
)
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.variants.rewrites.derived_values import (
    Derived,
    Kind,
    derived_in,
    made_again,
    plain,
)
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.results import Computed, Finding, Location, Mark, Report, Residual, Source

_MADE_OF = {
    "arguments": "arguments, by casts and the like,",
    "keys": "random keys",
    "integers": "integers",
}
_HELP = {
    "arguments": "make it in a checkpoint with what reads it, which computes no product again:"
    " `jax.checkpoint(lambda x, w: x @ w.astype(x.dtype), prevent_cse=False)(x, w)`",
    "keys": "draw it in a checkpoint with what reads it:"
    " `jax.checkpoint(dropout, prevent_cse=False)(key, x)`",
    "integers": "make it in a checkpoint with what reads it, such as"
    " `jax.checkpoint(lambda i, s: jnp.where(mask(i), s, -1e9), prevent_cse=False)(i, s)`; what is"
    " the same in each trip, once before the loop",
}


@dataclass(slots=True)
class _Group:
    """The residuals that are made of one sort of thing, and the values that they are."""

    residuals: list[Residual] = field(default_factory=list)
    values: dict[int, Derived] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(r.nbytes for r in self.residuals)


def derived_values(report: Report, frames: Frames, rewrites: Rewrites) -> Iterator[Proposal]:
    """Yield the findings of residuals of loops that are cheap to make again.

    There is one at most of what is made of arguments, of keys and of integers.

    Args:
      report: the report of the function or step; it has an estimated peak, and no mesh.
      frames: tells the user's files.
      rewrites: what is differentiated.
    """
    assert report.peak is not None
    least = WORTH_SAYING * report.peak.nbytes
    stacked = [(kind_of(r), r) for r in report.residuals if _is_stacked(r)]
    if sum(r.nbytes for _, r in stacked) < least:
        return
    for number, jaxpr in enumerate(rewrites.jaxprs):
        flat = plain(jaxpr)
        known: dict[Kind, list[Derived]] = {}
        for each in derived_in(flat):
            known.setdefault(each.kind, []).append(each)
        groups: dict[str, _Group] = {}
        for kind, residual in stacked:
            if kind in known:
                group = groups.setdefault(known[kind][0].source, _Group())
                group.residuals.append(residual)
                group.values |= {id(d): d for d in known[kind]}
        for made_of, group in groups.items():
            if group.nbytes < least:
                continue
            changed = made_again(flat, list(group.values.values()))
            figures = rewrites.figures(number, changed)
            if figures is None:
                continue
            if report.peak.nbytes - figures.peak_nbytes >= least:
                finding = _finding(report, frames, rewrites, made_of, group, figures)
                yield proposal(finding, rewrites, number, changed)


def _is_stacked(residual: Residual) -> bool:
    """Return whether a loop stacks a residual for the backward pass alone."""
    return (
        isinstance(residual.origin, Computed)
        and residual.trips > 1
        and residual.aval.memory == "device"
        and Mark.PRIMAL_OUTPUT not in residual.marks
    )


def kind_of(residual: Residual) -> Kind:
    """Return the kind of a residual that is computed."""
    origin, aval = residual.origin, residual.aval
    assert isinstance(origin, Computed)
    made = "argument" if origin.path is not None else origin.primitive
    return made, aval.dtype, aval.shape


def _help(made_of: str, source: Source, frames: Frames) -> str:
    """Return what to write, of a layer in the framework that it is of."""
    layer = checkpointed_layer(framework_of(source, frames))
    if layer is None or made_of == "integers":
        return _HELP[made_of]
    text, _, _ = _HELP[made_of].partition(":")
    return f"{text}: `{layer}`, of the {'Dropout layer' if made_of == 'keys' else 'layer'}"


def _finding(
    report: Report,
    frames: Frames,
    rewrites: Rewrites,
    made_of: str,
    group: _Group,
    figures: Figures,
) -> Finding:
    effect, measured = rewrite_effect(report, rewrites, figures)
    lines = Counter[Location | None]()
    sources: dict[Location | None, Source] = {}
    for residual in group.residuals:
        assert isinstance(residual.origin, Computed)
        source = residual.origin.source
        lines[source.location] += residual.nbytes
        sources.setdefault(source.location, source)
    ((biggest, _),) = lines.most_common(1)
    others = len(lines) - 1
    where = f"here and on {others} other line{'s' * (others > 1)}" if others else "here"
    dtypes = sorted({r.aval.dtype for r in group.residuals})
    return Finding(
        "derived-residual",
        f"{format_bytes(group.nbytes)} of {' and '.join(dtypes)} that are made {where} of"
        f" {_MADE_OF[made_of]} are kept for {group.residuals[0].trips} trips of a loop. If the"
        f" backward pass makes them again, the {effect}",
        sources[biggest],
        help=_help(made_of, sources[biggest], frames),
        measured={
            "nbytes": group.nbytes,
            "trips": group.residuals[0].trips,
            "made_of": made_of,
            **measured,
        },
    )
