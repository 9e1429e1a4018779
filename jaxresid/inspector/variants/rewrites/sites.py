"""Go through the eqns of a jaxpr that may be rewritten, and put a function in the place of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.inspector.jaxpr.primitives import of_kind
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

_ENTERED = of_kind("call", "checkpoint", "control")

Makers = Mapping[Var, Eqn]


@dataclass(frozen=True, slots=True, eq=False)
class HeldEqn:
    """An eqn at any depth of a jaxpr.

    Attributes:
      holder: the open jaxpr that holds it.
      path: the eqns that hold one another, from that of the searched jaxpr down to it.
      makers: the eqns that make the values of the holder.
    """

    holder: Jaxpr
    path: tuple[Eqn, ...]
    makers: Makers

    @property
    def eqn(self) -> Eqn:
        """The eqn itself."""
        return self.path[-1]


def makers_of(jaxpr: Jaxpr) -> Makers:
    """Return the eqn that makes each value of an open jaxpr."""
    return {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}


def maker_of(var: Var, makers: Makers) -> Eqn | None:
    """Return the eqn that makes a value; None for a literal and an input."""
    return None if jax_compat.is_literal(var) else makers.get(var)


def held_eqns(jaxpr: Jaxpr) -> Iterator[HeldEqn]:
    """Yield the eqns of an open jaxpr and, behind each, those that it holds; each jaxpr once."""
    yield from _held_eqns(jaxpr, (), set())


def _held_eqns(jaxpr: Jaxpr, path: tuple[Eqn, ...], seen: set[int]) -> Iterator[HeldEqn]:
    if id(jaxpr) in seen:
        return
    seen.add(id(jaxpr))
    makers = makers_of(jaxpr)
    for eqn in jaxpr.eqns:
        yield HeldEqn(jaxpr, (*path, eqn), makers)
        if jax_compat.primitive_name(eqn) in _ENTERED:
            for nest in nests(eqn):
                yield from _held_eqns(nest.jaxpr, (*path, eqn), seen)


def call_of(eqn: Eqn, run: Callable[..., Any], operands: Sequence[Var]) -> Eqn:
    """Return the call that computes the results of an eqn by a function of some operands.

    Raises:
      Exception: whatever JAX raises where the function cannot be traced.
    """
    traced = jax_compat.import_jax().make_jaxpr(run)(*(v.aval for v in operands))
    jaxpr = jax_compat.open_jaxpr(traced)
    eqns = [inner.replace(source_info=eqn.source_info, ctx=eqn.ctx) for inner in jaxpr.eqns]
    return jax_compat.as_removed_checkpoint(
        eqn.replace(invars=list(operands)), jax_compat.as_jit_jaxpr(jaxpr.replace(eqns=eqns))
    )
