"""Recognise jaxprs that are the same but for the names of their variables.

Layers called one after another are traced into as many eqns each. What JAX derives from a jaxpr it
keeps by the jaxpr's identity: layers whose bodies are one object are differentiated once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.jax_compat.jaxpr_types import Jaxpr, Var


@dataclass(frozen=True, slots=True, eq=False)
class _ById:
    """Something that has no hash, and is the same only as itself."""

    value: Any

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.value is self.value


def key(jaxpr: Jaxpr) -> Hashable:
    """Return a key that is equal for open jaxprs that compute the same on the same lines of code.

    What they call has to be the same object.
    """
    numbers: dict[Var, int] = {}

    def var(v: Var) -> Hashable:
        if jax_compat.is_literal(v):
            return of_literal(v)
        return v.aval, numbers.setdefault(v, len(numbers))

    def all_of(vs: Sequence[Var]) -> Hashable:
        return tuple(var(v) for v in vs)

    return (
        all_of((*jaxpr.constvars, *jaxpr.invars)),
        tuple(
            (
                eqn.primitive,
                all_of(eqn.invars),
                all_of(eqn.outvars),
                tuple((name, hashable(value)) for name, value in eqn.params.items()),
                frozenset(eqn.effects),
                hashable(eqn.ctx),
                jax_compat.traceback(eqn),
            )
            for eqn in jaxpr.eqns
        ),
        all_of(jaxpr.outvars),
    )


def of_literal(literal: Any) -> Hashable:
    """Return a key that equal literals share."""
    # Since 0.8 a literal may be an array.
    return literal.aval, _ById(literal.val) if literal.aval.shape else repr(literal.val)


def hashable(value: Any) -> Hashable:
    """Return a value; one without a hash in a form that is equal to itself alone."""
    try:
        hash(value)
    except TypeError:
        return _ById(value)
    return value  # type: ignore[no-any-return]
