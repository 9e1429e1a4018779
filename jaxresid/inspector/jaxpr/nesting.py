"""Line up the inside of an eqn with its outside.

One table says, for each primitive that holds jaxprs, which operand becomes which inner invar and
which inner outvar becomes which result. Provenance walks it inwards from results, consumers walk
it inwards from operands. Unknown primitives with one inner jaxpr of matching arity are calls.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.primitives import CALLS, PRIMITIVES
from jaxresid.jax_compat.jaxpr_types import ClosedJaxpr, Eqn, Jaxpr, Var

# Results and operands line up one to one with the inner jaxpr's.
_BODIES = {row.name: row.body for row in PRIMITIVES.values() if row.body is not None}

# Primitives seen without any jaxpr among their params: most, and asked for each of their eqns.
_PLAIN: set[str] = set()


@dataclass(frozen=True, slots=True)
class Nest:
    """One inner jaxpr of an eqn.

    Attributes:
      jaxpr: the inner jaxpr, opened.
      kind: `call`, `scan`, `while` or `branch`.
      operands: for each inner invar, the index of the eqn's operand that it is (for a loop's carry,
        of the initial one).
      results: for each inner outvar, the index of the eqn's result that it becomes (None: none).
      carries: for a loop, inner invar index -> inner outvar index of the same carry.
      slices: for a scan, inner invars that are one slice per trip of their operand.
      stacked: for a scan, inner outvars whose result stacks all trips.
      length: trips of a scan; None where unknown (while).
    """

    jaxpr: Jaxpr
    kind: str
    operands: tuple[int, ...]
    results: tuple[int | None, ...]
    carries: dict[int, int]
    slices: frozenset[int]
    stacked: frozenset[int]
    length: int | None = 1

    def outvar(self, result: int) -> int:
        """Return the number of the inner outvar that becomes a result of the eqn."""
        if result < len(self.results) and self.results[result] == result:
            return result
        return self.results.index(result)


def nests(eqn: Eqn) -> tuple[Nest, ...]:
    """Return the inner jaxprs of an eqn with their alignment; empty for a plain primitive."""
    if eqn.primitive.name in _PLAIN:
        return ()
    name = jax_compat.primitive_name(eqn)
    params = jax_compat.params(eqn)
    if name == "scan":
        return (_scan(eqn, params),)
    if name == "while":
        return (_while(eqn, params),)
    if name == "cond":
        return tuple(_branch(eqn, branch) for branch in params["branches"])
    if name == "custom_linear_solve":
        return (_linear_solve(eqn, params),)
    if name in _BODIES and _BODIES[name] in params:
        return (_call(eqn, jax_compat.open_jaxpr(params[_BODIES[name]])),)
    return tuple(_unknown(eqn, name, params))


def eqns_in(jaxpr: Jaxpr, closed: Container[str] = ()) -> Iterator[Eqn]:
    """Yield the eqns of an open jaxpr and of those inside it, each once.

    Args:
      jaxpr: the open jaxpr.
      closed: the primitives whose own jaxprs are left out.
    """
    seen: set[int] = set()
    stack = [jaxpr]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for eqn in current.eqns:
            yield eqn
            if not closed or jax_compat.primitive_name(eqn) not in closed:
                stack += [nest.jaxpr for nest in nests(eqn)]


def _call(eqn: Eqn, jaxpr: Jaxpr) -> Nest:
    # The last operands line up: some versions put constants of the callee in front.
    extra = len(eqn.invars) - len(jaxpr.invars)
    return Nest(
        jaxpr,
        "call",
        tuple(i + extra for i in range(len(jaxpr.invars))),
        tuple(range(len(jaxpr.outvars))),
        {},
        frozenset(),
        frozenset(),
    )


def _branch(eqn: Eqn, branch: Jaxpr | ClosedJaxpr) -> Nest:
    jaxpr = jax_compat.open_jaxpr(branch)
    return Nest(
        jaxpr,
        "branch",
        tuple(i + 1 for i in range(len(jaxpr.invars))),  # operand 0 is the index
        tuple(range(len(jaxpr.outvars))),
        {},
        frozenset(),
        frozenset(),
    )


def _scan(eqn: Eqn, params: Mapping[str, Any]) -> Nest:
    # Told apart by rank, not by params: 0.12 replaced num_consts and num_carry by ft_in and ft_out.
    jaxpr = jax_compat.open_jaxpr(params["jaxpr"])
    stacked = frozenset(
        i
        for i, (inner, outer) in enumerate(zip(jaxpr.outvars, eqn.outvars, strict=True))
        if _rank(outer) > _rank(inner)
    )
    slices = frozenset(
        i
        for i, (inner, outer) in enumerate(zip(jaxpr.invars, eqn.invars, strict=True))
        if _rank(outer) > _rank(inner)
    )
    num_carry = len(jaxpr.outvars) - len(stacked)
    num_consts = len(jaxpr.invars) - len(slices) - num_carry
    return Nest(
        jaxpr,
        "scan",
        tuple(range(len(jaxpr.invars))),
        tuple(range(len(jaxpr.outvars))),
        {num_consts + i: i for i in range(num_carry)},
        slices,
        stacked,
        params["length"],
    )


def _while(eqn: Eqn, params: Mapping[str, Any]) -> Nest:
    jaxpr = jax_compat.open_jaxpr(params["body_jaxpr"])
    cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
    return Nest(
        jaxpr,
        "while",
        tuple(cond_consts + i for i in range(len(jaxpr.invars))),
        tuple(range(len(jaxpr.outvars))),
        {body_consts + i: i for i in range(len(jaxpr.outvars))},
        frozenset(),
        frozenset(),
        None,
    )


def _linear_solve(eqn: Eqn, params: Mapping[str, Any]) -> Nest:
    """Return the solution; the products beside it run in its derivatives alone."""
    lengths = params["const_lengths"]
    jaxpr = jax_compat.open_jaxpr(params["jaxprs"].solve)
    begin = lengths.matvec + lengths.vecmat
    nest = _call(eqn, jaxpr)
    constants = range(begin, begin + lengths.solve)
    return replace(nest, operands=(*constants, *nest.operands[lengths.solve :]))


def _unknown(eqn: Eqn, name: str, params: Mapping[str, Any]) -> Iterator[Nest]:
    inner = [jax_compat.open_jaxpr(v) for v in params.values() if jax_compat.is_jaxpr(v)]
    if not inner:
        if name == eqn.primitive.name and name not in _BODIES:  # one name may wrap many
            _PLAIN.add(name)
    elif len(inner) == 1 and _lines_up(inner[0], eqn):
        yield _call(eqn, inner[0])


def _lines_up(jaxpr: Jaxpr, eqn: Eqn) -> bool:
    """Return whether a jaxpr's inputs and outputs are the eqn's.

    Those of lax.reduce are as many, but single elements.
    """
    inside, outside = [*jaxpr.invars, *jaxpr.outvars], [*eqn.invars, *eqn.outvars]
    return len(jaxpr.invars) == len(eqn.invars) and [_shape(v) for v in inside] == [
        _shape(v) for v in outside
    ]


def _rank(var: Var) -> int:
    return len(_shape(var))


def _shape(var: Var) -> tuple[int, ...]:
    return tuple(getattr(var.aval, "shape", ()))


def label(eqn: Eqn) -> str | None:
    """Return how the eqn reads as an enclosure: `scan ×48`, `jit f`, `cond`.

    None for those that only carry a body and mean nothing to a user.
    """
    name = jax_compat.primitive_name(eqn)
    params = jax_compat.params(eqn)
    if name == "scan":
        return f"scan ×{params['length']}"
    if name == "jit":
        return f"jit {params.get('name', '')}".rstrip()
    if name == "custom_vjp_call":
        return "custom_vjp"
    if name in CALLS or name in ("custom_jvp_call", "custom_lin"):
        return None
    return name
