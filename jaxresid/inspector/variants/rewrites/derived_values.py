"""Find what loops keep although it is cheap to make of what is in memory anyway; rewrite that.

In memory are the arguments of the program and integers: positions, token ids, random keys, the
truth values of a comparison. Masks, rotary tables, one-hots, dropout bits and casts of parameters
are made of them by a few operations. What reads such a value is put into a checkpoint together with
these operations, so that it keeps what they begin with. In straight-line code compilers decide that
themselves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from jaxresid import jax_compat
from jaxresid.inspector.call.leaves import is_inexact
from jaxresid.inspector.jaxpr.inline import with_calls_inlined
from jaxresid.inspector.jaxpr.nesting import Nest, nests
from jaxresid.inspector.jaxpr.primitives import (
    CASTS,
    FILLS,
    PARTS,
    SHARDINGS,
    TRANSPARENT,
    VIEWS,
    of_kind,
)
from jaxresid.inspector.jaxpr.rewrite import rewritten, with_inner
from jaxresid.inspector.program.avals import aval_of
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

_RANDOM = of_kind("random")
_CHEAP = of_kind("elementwise", "key") | _RANDOM | CASTS | VIEWS | FILLS | PARTS | SHARDINGS
_CHEAP |= {"concatenate", "pad", "rev", "tile", "copy"}
# What makes an array of the pieces that devices hold.
GATHERS = frozenset({"all_gather", "all_gather_invariant"})
Source = Literal["arguments", "keys", "integers"]
# What makes a value, seen through views (`argument`: nothing else does), its dtype, and its shape
# with the trips of the loops around it.
Kind = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """A value that is cheap to make again, in the body of a loop that reads it.

    Attributes:
      holder: the open jaxpr of the body.
      cheap: what of that is cheap to make.
      var: the value.
      kind: what it is among the residuals, stacked.
      source: what it is made of.
      is_in_loop: whether the body is that of a loop; else it is that of a `shard_map`.
    """

    holder: Jaxpr
    cheap: _Cheap
    var: Var
    kind: Kind
    source: Source
    is_in_loop: bool = True


def plain(jaxpr: Jaxpr, within: Collection[str] = ("scan",)) -> Jaxpr:
    """Return an open jaxpr with the calls in it and in the bodies of its scans inlined.

    What a checkpoint holds stays as it is.

    Args:
      jaxpr: the open jaxpr.
      within: the primitives whose bodies are so, too.
    """
    made = with_calls_inlined(jaxpr, lambda eqn: True)
    inside = functools.partial(plain, within=within)
    eqns = [
        with_inner(eqn, inside) if jax_compat.primitive_name(eqn) in within else eqn
        for eqn in made.eqns
    ]
    return jax_compat.with_other_eqns(made, eqns)


def derived_in(jaxpr: Jaxpr) -> Iterator[Derived]:
    """Yield the values in loops of a plain jaxpr that are cheap to make, and read by what is not.

    Args:
      jaxpr: the open jaxpr, see `plain`.
    """
    yield from _derived(jaxpr, {*jaxpr.constvars, *jaxpr.invars}, ())


def gathered_in(jaxpr: Jaxpr) -> Iterator[Derived]:
    """Yield the values that devices gather of arguments in a `shard_map`, and that others read.

    Args:
      jaxpr: the open jaxpr, plain within scans and shard_map; see `plain`.
    """
    yield from _gathered(jaxpr, {*jaxpr.constvars, *jaxpr.invars}, (), is_mapped=False)


def _gathered(
    jaxpr: Jaxpr, sources: set[Var], trips: tuple[int, ...], *, is_mapped: bool
) -> Iterator[Derived]:
    cheap = _Cheap(jaxpr, sources, _CHEAP | GATHERS)
    read = (v for eqn in cheap.readers for v in cheap.read_by(eqn)) if is_mapped else ()
    for var in dict.fromkeys(read):
        made = map(jax_compat.primitive_name, cheap.closure([var])[0])
        if cheap.source(var) == "arguments" and not GATHERS.isdisjoint(made):
            aval = aval_of(var)
            kind = cheap.maker(var), aval.dtype, (*trips, *aval.shape)
            yield Derived(jaxpr, cheap, var, kind, "arguments", is_in_loop=bool(trips))
    for eqn in jaxpr.eqns:
        name = jax_compat.primitive_name(eqn)
        if name in ("scan", "shard_map"):
            (nest,) = nests(eqn)
            known = _known_inside(cheap, eqn, nest)
            inside = (*trips, nest.length or 1) if name == "scan" else trips
            is_inside = is_mapped or name == "shard_map"
            yield from _gathered(nest.jaxpr, known, inside, is_mapped=is_inside)


def _derived(jaxpr: Jaxpr, sources: set[Var], trips: tuple[int, ...]) -> Iterator[Derived]:
    cheap = _Cheap(jaxpr, sources)
    read = (v for eqn in cheap.readers for v in cheap.read_by(eqn)) if trips else ()
    for var in dict.fromkeys(read):
        aval = aval_of(var)
        kind = cheap.maker(var), aval.dtype, (*trips, *aval.shape)
        yield Derived(jaxpr, cheap, var, kind, cheap.source(var))
    for eqn in jaxpr.eqns:
        if jax_compat.primitive_name(eqn) == "scan":
            (nest,) = nests(eqn)
            known = _known_inside(cheap, eqn, nest)
            yield from _derived(nest.jaxpr, known, (*trips, nest.length or 1))


def _known_inside(cheap: _Cheap, eqn: Eqn, nest: Nest) -> set[Var]:
    """Return what is in memory anyway of the inputs of a jaxpr that an eqn holds."""
    known = {
        v
        for i, v in enumerate(nest.jaxpr.invars)
        if i not in nest.carries and cheap.is_known(eqn.invars[nest.operands[i]])
    }
    known |= {v for v in nest.jaxpr.invars if not is_inexact(v.aval)}
    return known | set(nest.jaxpr.constvars)


@dataclass(slots=True)
class _Cheap:
    """What of a jaxpr is cheap to make.

    Attributes:
      jaxpr: the open jaxpr.
      sources: what is in memory; gets the integers that are made of anything else.
      primitives: what counts as cheap.
      makers: for each value that is cheap to make, the eqn that makes it.
      readers: the eqns that are not cheap, or read other things, and read such values.
    """

    jaxpr: Jaxpr
    sources: set[Var]
    primitives: frozenset[str] = _CHEAP
    makers: dict[Var, Eqn] = field(default_factory=dict)
    readers: list[Eqn] = field(default_factory=list)

    def __post_init__(self) -> None:
        for eqn in self.jaxpr.eqns:
            name = jax_compat.primitive_name(eqn)
            # The effect of gathering is that the names of axes have a meaning.
            is_cheap = name in self.primitives and (not eqn.effects or name in GATHERS)
            if is_cheap and all(map(self.is_known, eqn.invars)):
                self.makers.update(dict.fromkeys(eqn.outvars, eqn))
                continue
            self.sources.update(v for v in eqn.outvars if not is_inexact(v.aval))
            if not eqn.effects and not nests(eqn):
                self.readers.append(eqn)

    def is_known(self, var: Var) -> bool:
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

    def source(self, var: Var) -> Source:
        """Return what a value is made of."""
        eqns, sources = self.closure([var])
        if any(is_inexact(v.aval) for v in sources):
            return "arguments"
        made = map(jax_compat.primitive_name, eqns)
        return "keys" if any(name in _RANDOM for name in made) else "integers"

    def maker(self, var: Var) -> str:
        """Return the primitive that makes a value, seen through views; `argument` for a source."""
        while var in self.makers:
            eqn = self.makers[var]
            name = jax_compat.primitive_name(eqn)
            operand = eqn.invars[0] if eqn.invars else None
            if name not in TRANSPARENT or operand is None or jax_compat.is_literal(operand):
                return name
            if name == "broadcast_in_dim" and _size(operand) == 1 < _size(var):
                return name
            var = operand
        return "argument"


def made_again(jaxpr: Jaxpr, found: Sequence[Derived]) -> Jaxpr:
    """Return a plain jaxpr in which the readers of values make them again in the backward pass.

    Args:
      jaxpr: the open jaxpr that they were found in.
      found: the values.
    """
    holders: dict[int, list[Derived]] = {}
    for each in found:
        holders.setdefault(id(each.holder), []).append(each)
    changed = {key: functools.partial(_regrouped, each) for key, each in holders.items()}
    return rewritten(jaxpr, {}, changed)


def _regrouped(found: Sequence[Derived], eqns: Sequence[Eqn]) -> list[Eqn]:
    """Return the eqns of a jaxpr with the readers of values in checkpoints.

    Args:
      found: the values; those of one jaxpr.
      eqns: its eqns, inside which all is rewritten.
    """
    first = found[0]
    wanted = {each.var for each in found}
    readers = {id(eqn) for eqn in first.cheap.readers}
    made = []
    for eqn, before in zip(eqns, first.holder.eqns, strict=True):
        read = wanted.intersection(v for v in before.invars if not jax_compat.is_literal(v))
        is_reader = id(before) in readers and read
        made.append(_in_checkpoint(first, eqn, read) if is_reader else eqn)
    return made


def _in_checkpoint(found: Derived, eqn: Eqn, wanted: Iterable[Var]) -> Eqn:
    """Return the checkpoint around the eqns that make values, and an eqn that reads them."""
    eqns, sources = found.cheap.closure(wanted)
    others = [v for v in eqn.invars if not jax_compat.is_literal(v) and v not in set(wanted)]
    inputs = list(dict.fromkeys([*sources, *others]))
    body = jax_compat.part_of(found.holder, inputs, [*eqns, eqn], eqn.outvars)
    made = jax_compat.as_remat(jax_compat.open_jaxpr(body), inputs, eqn.outvars, eqn)
    # In a loop nothing merges what the passes have in common.
    return jax_compat.with_params(made, {"prevent_cse": not found.is_in_loop})


def _size(var: Var) -> int:
    return math.prod(aval_of(var).shape)
