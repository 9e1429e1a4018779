"""Remove checkpoints: replace remat eqns by what their bodies are without them.

A plain call is enough where no other checkpoint is around, and JAX differentiates a callee once
however often it is called. Inside a checkpoint it is not: there JAX treats a call as one eqn where
it puts what the checkpoint saves behind a `reduce_precision`, and the code without the inner
checkpoint has no call.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.rewrite import rewritten, with_inner
from jaxresid.jax_compat.jaxpr_types import ClosedJaxpr, Eqn, Jaxpr, Var


class Inlining:
    """A replacement of remat eqns by plain calls of their bodies.

    Calls of one body share one callee. `flattened` does the rest.
    """

    def __init__(self) -> None:
        self._callees: dict[int, tuple[Jaxpr, ClosedJaxpr]] = {}

    def __call__(self, eqn: Eqn) -> Eqn:
        """Return the call that replaces a remat eqn."""
        body = jax_compat.open_jaxpr(jax_compat.params(eqn)["jaxpr"])
        found = self._callees.get(id(body))
        if found is None:
            found = self._callees[id(body)] = body, jax_compat.as_jit_jaxpr(body)
        return jax_compat.as_removed_checkpoint(eqn, found[1])


def without(jaxpr: Jaxpr, removed: Iterable[int]) -> Jaxpr:
    """Return the open jaxpr with some remat eqns replaced by what their bodies do.

    Args:
      jaxpr: the open jaxpr.
      removed: the ids of the remat eqns.

    Raises:
      InputsError: one of them is where jaxprs cannot be replaced.
    """
    return flattened(rewritten(jaxpr, dict.fromkeys(removed, Inlining())))


def flattened(jaxpr: Jaxpr, *, everywhere: bool = False) -> Jaxpr:
    """Return the open jaxpr with the calls for removed checkpoints inlined where they must be.

    The calls that stand for removed checkpoints are replaced by their eqns wherever another
    checkpoint is around them.

    Args:
      jaxpr: the open jaxpr.
      everywhere: whether to inline the other calls for removed checkpoints too.
    """
    return _Flattening().jaxpr(jaxpr, everywhere)


def with_calls_inlined(jaxpr: Jaxpr, is_inlined: Callable[[Eqn], bool]) -> Jaxpr:
    """Return the open jaxpr with some of its calls, and of theirs, replaced by their eqns.

    Args:
      jaxpr: the open jaxpr.
      is_inlined: whether to replace a jit eqn; one whose callee holds constants stays.
    """
    substitutes: dict[Var, Var] = {}
    eqns = _expanded(jaxpr.eqns, is_inlined, substitutes)
    return jaxpr.replace(eqns=eqns, outvars=substituted(jaxpr.outvars, substitutes))


def _expanded(
    eqns: Iterable[Eqn], is_inlined: Callable[[Eqn], bool], substitutes: dict[Var, Var]
) -> list[Eqn]:
    """Return eqns with calls replaced; `substitutes` gets what stands for the calls' results."""
    found = []
    for eqn in eqns:
        made = with_substitutes(eqn, substitutes)
        if not _is_call(made) or not is_inlined(made):
            found.append(made)
            continue
        results: dict[Var, Var] = {}
        inner: dict[Var, Var] = {}
        found += _expanded(_inlined(made, results), is_inlined, inner)
        substitutes |= {v: _value(result, inner) for v, result in results.items()}
    return found


def _is_call(eqn: Eqn) -> bool:
    if jax_compat.primitive_name(eqn) != "jit":
        return False
    return not jax_compat.open_jaxpr(jax_compat.params(eqn)["jaxpr"]).constvars


class _Flattening:
    def __init__(self) -> None:
        self._made: dict[tuple[int, bool], tuple[Jaxpr, Jaxpr]] = {}

    def jaxpr(self, jaxpr: Jaxpr, is_inside: bool) -> Jaxpr:
        key = id(jaxpr), is_inside
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = jaxpr, self._flat(jaxpr, is_inside)
        return found[1]

    def _flat(self, jaxpr: Jaxpr, is_inside: bool) -> Jaxpr:
        substitutes: dict[Var, Var] = {}
        eqns: list[Eqn] = []
        for eqn in jaxpr.eqns:
            under = is_inside or jax_compat.primitive_name(eqn) == "remat"
            made = with_inner(eqn, functools.partial(self.jaxpr, is_inside=under))
            made = with_substitutes(made, substitutes)
            if is_inside and jax_compat.is_removed_checkpoint(eqn):
                eqns += _inlined(made, substitutes)
            elif made is not eqn and _is_conversion(made):
                (var,) = eqn.outvars
                substitutes[var] = jax_compat.converted(made.invars[0], var)
            else:
                if jax_compat.is_removed_checkpoint(eqn):
                    results = jax_compat.open_jaxpr(jax_compat.params(made)["jaxpr"]).outvars
                    pairs = zip(eqn.outvars, results, strict=True)
                    substitutes |= {
                        v: result for v, result in pairs if jax_compat.is_literal(result)
                    }
                eqns.append(made)
        if len(eqns) == len(jaxpr.eqns) and all(map(operator.is_, eqns, jaxpr.eqns)):
            return jaxpr
        return jaxpr.replace(eqns=eqns, outvars=substituted(jaxpr.outvars, substitutes))


def _is_conversion(eqn: Eqn) -> bool:
    """Return whether an eqn only gives a number another type.

    JAX writes no such eqn for a number that a function returns; where a checkpoint returned it, it
    did.
    """
    name = jax_compat.primitive_name(eqn)
    return name == "convert_element_type" and jax_compat.is_literal(eqn.invars[0])


def _inlined(call: Eqn, substitutes: dict[Var, Var]) -> list[Eqn]:
    """Return the eqns of a call, with new variables.

    Args:
      call: the eqn that calls.
      substitutes: gets, for each result of the call, the variable or literal that it is.
    """
    body = jax_compat.open_jaxpr(jax_compat.params(call)["jaxpr"])
    inner = dict(zip(body.invars, call.invars, strict=True))
    eqns = []
    for eqn in body.eqns:
        outvars = [
            v if jax_compat.is_dropped(v) else jax_compat.new_var_like(v) for v in eqn.outvars
        ]
        eqns.append(with_substitutes(eqn, inner).replace(outvars=outvars))
        inner |= zip(eqn.outvars, outvars, strict=True)
    results = (_value(v, inner) for v in body.outvars)
    substitutes |= zip(call.outvars, results, strict=True)
    return eqns


def with_substitutes(eqn: Eqn, substitutes: Mapping[Var, Var]) -> Eqn:
    """Return the eqn with the operands that stand for its own."""
    for v in eqn.invars if substitutes else ():
        if not jax_compat.is_literal(v) and v in substitutes:
            return eqn.replace(invars=substituted(eqn.invars, substitutes))
    return eqn


def substituted(values: Iterable[Var], substitutes: Mapping[Var, Var]) -> list[Var]:
    """Return values with what stands for some of them."""
    return [_value(v, substitutes) for v in values]


def _value(var: Var, substitutes: Mapping[Var, Var]) -> Var:
    return var if jax_compat.is_literal(var) else substitutes.get(var, var)
