"""Replace some of the eqns of jaxprs, at any depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr

# An eqn whose inner jaxprs are rewritten already -> what stands in its place.
Replace = Callable[[Eqn], Eqn]
# The eqns of a jaxpr, rewritten one by one -> what stands in their place.
Regroup = Callable[[Sequence[Eqn]], Sequence[Eqn]]


def rewritten(
    jaxpr: Jaxpr, eqns: Mapping[int, Replace], jaxprs: Mapping[int, Regroup] | None = None
) -> Jaxpr:
    """Return the open jaxpr with eqns replaced, and with all eqns of some inner jaxprs regrouped.

    What is called at several places and rewritten alike stays one object, which JAX differentiates
    once.

    Args:
      jaxpr: the open jaxpr.
      eqns: what replaces an eqn, by the id of the eqn.
      jaxprs: what regroups the eqns of a jaxpr, by the id of the open jaxpr that holds them.

    Raises:
      InputsError: one of them is where jaxprs cannot be replaced.
    """
    rewrite = _Rewrite(eqns, jaxprs or {})
    made = rewrite.jaxpr(jaxpr)
    if rewrite.left:
        raise InputsError("a checkpoint is inside a primitive that cannot be rewritten")
    return made


class _Rewrite:
    def __init__(self, eqns: Mapping[int, Replace], jaxprs: Mapping[int, Regroup]) -> None:
        self.left = {*eqns, *jaxprs}
        self._replaced = eqns
        self._regrouped = jaxprs
        self._made: dict[int, tuple[Jaxpr, Jaxpr]] = {}

    def jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        found = self._made.get(id(jaxpr))
        if found is None:
            eqns = [self._eqn(eqn) for eqn in jaxpr.eqns]
            is_same = all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True))
            regroup = self._regrouped.get(id(jaxpr))
            if regroup is not None:
                self.left.discard(id(jaxpr))
                eqns, is_same = list(regroup(eqns)), False
            made = jaxpr if is_same else jax_compat.with_other_eqns(jaxpr, eqns)
            found = self._made[id(jaxpr)] = jaxpr, made
        return found[1]

    def _eqn(self, eqn: Eqn) -> Eqn:
        made = with_inner(eqn, self.jaxpr)
        replace = self._replaced.get(id(eqn))
        if replace is None:
            return made
        self.left.discard(id(eqn))
        return replace(made)


def with_inner(eqn: Eqn, new: Callable[[Jaxpr], Jaxpr]) -> Eqn:
    """Return the eqn with each open jaxpr that it holds replaced; the same eqn where all stay."""
    changed = {}
    for name, value in jax_compat.params(eqn).items():
        made = _param(value, new)
        if made is not value:
            changed[name] = made
    return jax_compat.with_params(eqn, changed) if changed else eqn


def _param(value: Any, new: Callable[[Jaxpr], Jaxpr]) -> Any:
    if isinstance(value, tuple) and any(jax_compat.is_jaxpr(v) for v in value):
        several = tuple(_param(v, new) for v in value)
        return value if all(a is b for a, b in zip(several, value, strict=True)) else several
    if not jax_compat.is_jaxpr(value):
        return value
    opened = jax_compat.open_jaxpr(value)
    made = new(opened)
    return value if made is opened else jax_compat.with_jaxpr(value, made)
