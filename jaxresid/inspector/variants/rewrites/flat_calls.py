"""Inline the calls of a jaxpr that make scores, or read what such lead to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.inline import substituted, with_substitutes
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
from jaxresid.inspector.variants.rewrites.token_axes import shape_of, size_of
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

# What runs a jaxpr in its caller's place, but for its derivative.
_INLINED = frozenset({"jit", "closed_call", "eval_jaxpr", "custom_jvp_call", "custom_vjp_call"})


def summed_widths(jaxpr: Jaxpr) -> set[int]:
    """Return the sizes of the dims that anything is summed over."""
    return {
        shape_of(eqn.invars[0])[axis]
        for eqn in own_eqns(jaxpr)
        if jax_compat.primitive_name(eqn) == "reduce_sum"
        for axis in jax_compat.params(eqn)["axes"]
    }


def own_eqns(jaxpr: Jaxpr) -> Iterator[Eqn]:
    """Yield the eqns of a jaxpr and of what it calls, without those of loops and checkpoints."""
    seen, todo = set[int](), [jaxpr]
    while todo:
        inner = todo.pop()
        if id(inner) not in seen:
            seen.add(id(inner))
            for eqn in inner.eqns:
                yield eqn
                if jax_compat.primitive_name(eqn) in _INLINED:
                    todo += [nest.jaxpr for nest in nests(eqn)]


@dataclass(frozen=True, slots=True, eq=False)
class Holder:
    """A jaxpr that scores are looked for in, and the eqns that hold one another down to it."""

    jaxpr: Jaxpr
    path: tuple[Eqn, ...] = ()


def holders(jaxpr: Jaxpr) -> Iterator[Holder]:
    """Yield a jaxpr and the bodies of the scans in it, each once."""
    seen, todo = set[int](), [Holder(jaxpr)]
    while todo:
        holder = todo.pop()
        if id(holder.jaxpr) in seen:
            continue
        seen.add(id(holder.jaxpr))
        yield holder
        inside = [holder]
        while inside:
            caller = inside.pop()
            for eqn in caller.jaxpr.eqns:
                name = jax_compat.primitive_name(eqn)
                if name == "scan" or name in _INLINED:
                    bodies = [Holder(nest.jaxpr, (*caller.path, eqn)) for nest in nests(eqn)]
                    (todo if name == "scan" else inside).extend(bodies)


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """A jaxpr with calls inlined, and of each of its eqns the way to it before, by its id."""

    jaxpr: Jaxpr
    paths: Mapping[int, tuple[Eqn, ...]]


def flattened(holder: Holder, size: int, width: int) -> Flat:
    """Return a jaxpr with the calls inlined that hold scores, or that such lead to.

    Others stay: JAX differentiates each callee once, and by its own rule where it has one.

    Args:
      holder: the jaxpr.
      size: how many elements scores have at least.
      width: how many there are for each token.
    """
    flattening, jaxpr = _Flattening(size, width), holder.jaxpr
    eqns = flattening.eqns([(e, e) for e in jaxpr.eqns], {}, holder.path)
    outvars = substituted(jaxpr.outvars, flattening.results)
    return Flat(jaxpr.replace(eqns=eqns, outvars=outvars), flattening.paths)


@dataclass(slots=True)
class _Flattening:
    size: int
    width: int
    results: dict[Var, Var] = field(default_factory=dict)
    behind: set[Var] = field(default_factory=set)
    paths: dict[int, tuple[Eqn, ...]] = field(default_factory=dict)

    def eqns(
        self,
        eqns: Sequence[tuple[Eqn, Eqn]],
        substitutes: dict[Var, Var],
        path: tuple[Eqn, ...],
    ) -> list[Eqn]:
        """Return eqns with calls inlined.

        Args:
          eqns: the eqns as they are to be, and as they were.
          substitutes: gets what stands for results of calls.
          path: the eqns that hold these.
        """
        flat: list[Eqn] = []
        for eqn, before in eqns:
            plain = with_substitutes(eqn, substitutes)
            body = _callee(plain)
            operands = [v for v in plain.invars if not jax_compat.is_literal(v)]
            is_behind = any(v in self.behind or self._is_big(v) for v in operands)
            if body is None or not (is_behind or any(map(self._makes_big, eqns_in(body)))):
                flat.append(plain)
                self.paths[id(plain)] = (*path, before)
                if is_behind or self._makes_big(plain):
                    self.behind |= set(plain.outvars)
                continue
            inner = dict(zip(body.invars, plain.invars, strict=True))
            own = [(self._renamed(e, inner), e) for e in body.eqns]
            flat += self.eqns(own, inner, (*path, before))
            # What a call in the body made stands for a variable that was renamed.
            results = substituted(substituted(body.outvars, inner), inner)
            substitutes |= zip(eqn.outvars, results, strict=True)
            self.results |= zip(eqn.outvars, results, strict=True)
        return flat

    def _renamed(self, eqn: Eqn, inner: dict[Var, Var]) -> Eqn:
        new = [v if jax_compat.is_dropped(v) else jax_compat.new_var_like(v) for v in eqn.outvars]
        renamed = with_substitutes(eqn, inner).replace(outvars=new)
        inner |= zip(eqn.outvars, new, strict=True)
        return renamed

    def _makes_big(self, eqn: Eqn) -> bool:
        return any(map(self._is_big, eqn.outvars))

    def _is_big(self, var: Var) -> bool:
        return self.width in shape_of(var) and size_of(var) >= self.size


def _callee(eqn: Eqn) -> Jaxpr | None:
    """Return the jaxpr that a call runs on its operands; None for other eqns."""
    if jax_compat.primitive_name(eqn) not in _INLINED:
        return None
    inside = nests(eqn)
    if len(inside) != 1:
        return None
    body = inside[0].jaxpr
    fits = len(body.invars) == len(eqn.invars) and len(body.outvars) == len(eqn.outvars)
    return body if fits and not body.constvars else None
