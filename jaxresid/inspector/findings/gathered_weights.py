"""Find weights that devices gather and keep, and gather them again in the backward pass.

They are made of the program's arguments by collectives and cheap operations. What reads one is put
into a checkpoint together with these, so that it keeps what they begin with.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxresid import jax_compat
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.call.leaves import is_inexact
from jaxresid.inspector.findings.logits import may_be_in_vector_memory
from jaxresid.inspector.findings.proposals import Proposal, proposal, rewrite_effect
from jaxresid.inspector.findings.search import FindingContext, FindingSearch
from jaxresid.inspector.jaxpr.inline import with_calls_inlined
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.inspector.jaxpr.primitives import CASTS, FILLS, PARTS, SHARDINGS, VIEWS, of_kind
from jaxresid.inspector.jaxpr.rewrite import rewritten, with_inner
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import Computed, Finding, Location, Report, Residual, Source

# Of the peak. A rewritten program is not split by a compiler; where that makes a difference to the
# program as it is, nothing is said.
_SAME = 0.01
# What makes an array of the pieces that devices hold.
GATHERS = frozenset({"all_gather", "all_gather_invariant"})
_CHEAP = of_kind("elementwise", "key", "random") | CASTS | VIEWS | FILLS | PARTS | SHARDINGS
_CHEAP |= {"concatenate", "pad", "rev", "tile", "copy", *GATHERS}
_ENTERED = frozenset({"scan", "shard_map"})


def gathered_weights(context: FindingContext) -> Iterator[Proposal]:
    """Yield the finding of arguments that are gathered inside `shard_map` and kept whole.

    Without a mesh the bytes of the report are those of all devices, and there are no findings.
    """
    report, peak = context.report, context.peak_nbytes
    if report.mesh is None or may_be_in_vector_memory(peak, context.subject.profile):
        return
    kept = [r for r in report.residuals if _is_gathered(r)]
    if sum(r.nbytes for r in kept) < context.least_nbytes:
        return
    rewrites = context.subject.rewrites
    if rewrites is None:
        return
    for number, jaxpr in enumerate(rewrites.jaxprs):
        flat = with_bodies_inlined(jaxpr)
        weights = list(gathered_weights_in(flat))
        if not weights:
            continue
        changed = gathered_again(flat, weights)
        before = rewrites.figures(number, flat)
        figures = context.lower_peak(rewrites, number, changed)
        if before is None or figures is None:
            continue
        if abs(before.peak_nbytes - peak) <= _SAME * peak:
            yield proposal(_finding(report, rewrites, kept, figures), rewrites, number, changed)


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


@dataclass(frozen=True, slots=True, eq=False)
class GatheredWeight:
    """A value of a jaxpr that devices gather and that other eqns than cheap ones read.

    Attributes:
      cheap: what of the jaxpr is cheap to make.
      var: the value.
      is_in_loop: whether the jaxpr is inside a scan; else it is the body of a `shard_map`.
    """

    cheap: CheapEqns
    var: Var
    is_in_loop: bool


def with_bodies_inlined(jaxpr: Jaxpr) -> Jaxpr:
    """Return an open jaxpr with the calls in it, its scans and `shard_map`s inlined.

    What a checkpoint holds stays as it is.
    """
    flat = with_calls_inlined(jaxpr, lambda eqn: True)
    eqns = [
        with_inner(eqn, with_bodies_inlined) if jax_compat.primitive_name(eqn) in _ENTERED else eqn
        for eqn in flat.eqns
    ]
    return jax_compat.with_other_eqns(flat, eqns)


def gathered_weights_in(jaxpr: Jaxpr) -> Iterator[GatheredWeight]:
    """Yield the weights that devices gather in a `shard_map`; see `with_bodies_inlined`."""
    sources = {*jaxpr.constvars, *jaxpr.invars}
    yield from _gathered(jaxpr, sources, is_mapped=False, is_in_loop=False)


def _gathered(
    jaxpr: Jaxpr, sources: set[Var], *, is_mapped: bool, is_in_loop: bool
) -> Iterator[GatheredWeight]:
    cheap = CheapEqns(jaxpr, sources)
    operands = (v for eqn in cheap.readers for v in cheap.read_by(eqn)) if is_mapped else ()
    for var in dict.fromkeys(operands):
        eqns, begin = cheap.closure([var])
        is_gathered = not GATHERS.isdisjoint(map(jax_compat.primitive_name, eqns))
        if is_gathered and any(is_inexact(v.aval) for v in begin):
            yield GatheredWeight(cheap, var, is_in_loop)
    for eqn in jaxpr.eqns:
        name = jax_compat.primitive_name(eqn)
        if name not in _ENTERED:
            continue
        (nest,) = nests(eqn)
        inner = {
            v
            for i, v in enumerate(nest.jaxpr.invars)
            if not is_inexact(v.aval)
            or (i not in nest.carries and cheap.is_available(eqn.invars[nest.operands[i]]))
        }
        yield from _gathered(
            nest.jaxpr,
            inner | set(nest.jaxpr.constvars),
            is_mapped=is_mapped or name == "shard_map",
            is_in_loop=is_in_loop or name == "scan",
        )


@dataclass(slots=True)
class CheapEqns:
    """What of a jaxpr is cheap to make.

    Attributes:
      sources: what is in memory anyway; gets the integers that are made of anything else.
      makers: for each value that is cheap to make, the eqn that makes it.
      readers: the eqns that are not cheap, or read other things, and read such values.
    """

    jaxpr: Jaxpr
    sources: set[Var]
    makers: dict[Var, Eqn] = field(default_factory=dict)
    readers: list[Eqn] = field(default_factory=list)

    def __post_init__(self) -> None:
        for eqn in self.jaxpr.eqns:
            name = jax_compat.primitive_name(eqn)
            # The effect of gathering is that the names of axes have a meaning.
            is_cheap = name in _CHEAP and (not eqn.effects or name in GATHERS)
            if is_cheap and all(map(self.is_available, eqn.invars)):
                self.makers.update(dict.fromkeys(eqn.outvars, eqn))
                continue
            self.sources.update(v for v in eqn.outvars if not is_inexact(v.aval))
            if not eqn.effects and not nests(eqn):
                self.readers.append(eqn)

    def is_available(self, var: Var) -> bool:
        """Return whether a value is in memory anyway, or cheap to make of what is."""
        return jax_compat.is_literal(var) or var in self.sources or var in self.makers

    def read_by(self, eqn: Eqn) -> Iterator[Var]:
        """Yield the values that an eqn reads and that are made, cheaply, of more than numbers."""
        for v in eqn.invars:
            if not jax_compat.is_literal(v) and v in self.makers and self.closure([v])[1]:
                yield v

    def closure(self, wanted: Iterable[Var]) -> tuple[list[Eqn], list[Var]]:
        """Return the eqns that make values, in order, and the sources that they begin with."""
        needed, begin = dict[int, Eqn](), dict[Var, None]()
        todo = list(wanted)
        while todo:
            var = todo.pop()
            eqn = self.makers.get(var)
            if eqn is None:
                begin[var] = None
            elif id(eqn) not in needed:
                needed[id(eqn)] = eqn
                todo += [v for v in eqn.invars if not jax_compat.is_literal(v)]
        return [eqn for eqn in self.jaxpr.eqns if id(eqn) in needed], list(begin)


def gathered_again(jaxpr: Jaxpr, weights: Sequence[GatheredWeight]) -> Jaxpr:
    """Return the jaxpr in which the backward pass gathers weights that were found in it again."""
    by_jaxpr: dict[int, list[GatheredWeight]] = {}
    for weight in weights:
        by_jaxpr.setdefault(id(weight.cheap.jaxpr), []).append(weight)
    regroup = {key: functools.partial(_regrouped, group) for key, group in by_jaxpr.items()}
    return rewritten(jaxpr, {}, regroup)


def _regrouped(weights: Sequence[GatheredWeight], eqns: Sequence[Eqn]) -> list[Eqn]:
    """Return the eqns of the jaxpr of some weights, with their readers in checkpoints."""
    cheap = weights[0].cheap
    variables = {weight.var for weight in weights}
    readers = {id(eqn) for eqn in cheap.readers}
    regrouped = []
    for eqn, before in zip(eqns, cheap.jaxpr.eqns, strict=True):
        operands = variables.intersection(v for v in before.invars if not jax_compat.is_literal(v))
        is_reader = id(before) in readers and operands
        regrouped.append(_in_checkpoint(weights[0], eqn, operands) if is_reader else eqn)
    return regrouped


def _in_checkpoint(weight: GatheredWeight, reader: Eqn, weights: set[Var]) -> Eqn:
    """Return the checkpoint around a reader and the eqns that make the weights which it reads."""
    eqns, sources = weight.cheap.closure(weights)
    others = [v for v in reader.invars if not jax_compat.is_literal(v) and v not in weights]
    inputs = list(dict.fromkeys([*sources, *others]))
    body = jax_compat.part_of(weight.cheap.jaxpr, inputs, [*eqns, reader], reader.outvars)
    remat = jax_compat.as_remat(jax_compat.open_jaxpr(body), inputs, reader.outvars, reader)
    # In a loop nothing merges what the passes have in common.
    return jax_compat.with_params(remat, {"prevent_cse": not weight.is_in_loop})


SEARCH = FindingSearch(
    ["gathered-weights-kept"], "proposal", 20, gathered_weights, lambda context: context.has_peak
)
