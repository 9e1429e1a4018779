"""Line up the inside of an eqn with its outside.

The rows of `primitives` say how each that holds jaxprs lines up with them: which operand becomes
which inner invar and which inner outvar becomes which result. Provenance walks them inwards from
results, consumers walk them inwards from operands. Unknown primitives with one inner jaxpr of
matching arity are calls.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.extents import shape
from jaxresid.inspector.jaxpr.primitives import CALLS, PRIMITIVES, Nesting
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

_HOLDING = {
    row.name: (row.body, row.nesting) for row in PRIMITIVES.values() if row.body is not None
}
# Primitives seen without any jaxpr among their params: most, and asked for each of their eqns.
_PLAIN: set[str] = set()


@dataclass(frozen=True, slots=True)
class Nest:
    """One inner jaxpr of an eqn.

    Attributes:
      kind: `call`, `scan`, `while` or `branch`.
      operands: for each inner invar, the index of the eqn's operand that it is (for a loop's carry,
        of the initial one).
      results: for each inner outvar, the index of the eqn's result that it becomes (None: none).
      carries: for a loop, inner invar index -> inner outvar index of the same carry.
      slices: for a scan, inner invars that are one slice per trip of their operand.
      stacked: for a scan, inner outvars whose result stacks all trips.
      length: trips of a scan; None where unknown (while).
      condition: for a while loop, what decides whether it goes on, of constants of its own, which
        are the first operands of the eqn, and of the carries.
    """

    jaxpr: Jaxpr
    kind: str
    operands: tuple[int, ...]
    results: tuple[int | None, ...]
    carries: Mapping[int, int] = field(default_factory=dict)
    slices: frozenset[int] = frozenset()
    stacked: frozenset[int] = frozenset()
    length: int | None = 1
    condition: Jaxpr | None = None

    @property
    def is_loop(self) -> bool:
        """Whether it is the body of a scan or of a while loop."""
        return self.kind in ("scan", "while")

    @property
    def condition_constants(self) -> int:
        """The number of the operands that are constants of the condition."""
        condition = self.condition
        return 0 if condition is None else len(condition.invars) - len(self.jaxpr.outvars)

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
    if name in _HOLDING:
        param, nesting = _HOLDING[name]
        if param in params:
            return _NESTINGS[nesting](eqn, params[param], params)
    return tuple(_unknown(eqn, name, params))


def eqns_in(jaxpr: Jaxpr, closed: Container[str] = ()) -> Iterator[Eqn]:
    """Yield the eqns of an open jaxpr and of those inside it, each once.

    Args:
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
    )


def _calls(eqn: Eqn, body: Any, params: Mapping[str, Any]) -> tuple[Nest, ...]:
    return (_call(eqn, jax_compat.open_jaxpr(body)),)


def _branches(eqn: Eqn, body: Any, params: Mapping[str, Any]) -> tuple[Nest, ...]:
    jaxprs = map(jax_compat.open_jaxpr, body)
    # Operand 0 is the index: the others are the last ones.
    return tuple(replace(_call(eqn, jaxpr), kind="branch") for jaxpr in jaxprs)


def _scan(eqn: Eqn, body: Any, params: Mapping[str, Any]) -> tuple[Nest, ...]:
    # Told apart by rank, not by params: 0.12 replaced num_consts and num_carry by ft_in and ft_out.
    jaxpr = jax_compat.open_jaxpr(body)
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
    carries = {num_consts + i: i for i in range(num_carry)}
    nest = _call(eqn, jaxpr)
    return (
        replace(
            nest,
            kind="scan",
            carries=carries,
            slices=slices,
            stacked=stacked,
            length=params["length"],
        ),
    )


def _while(eqn: Eqn, body: Any, params: Mapping[str, Any]) -> tuple[Nest, ...]:
    jaxpr = jax_compat.open_jaxpr(body)
    # Constants of the condition come first, then those of the body, then the carries.
    num_consts = len(jaxpr.invars) - len(jaxpr.outvars)
    return (
        replace(
            _call(eqn, jaxpr),
            kind="while",
            carries={num_consts + i: i for i in range(len(jaxpr.outvars))},
            length=None,
            condition=jax_compat.open_jaxpr(params["cond_jaxpr"]),
        ),
    )


def _solve(eqn: Eqn, body: Any, params: Mapping[str, Any]) -> tuple[Nest, ...]:
    """Return the solution; the products beside it run in its derivatives alone."""
    lengths = params["const_lengths"]
    begin = lengths.matvec + lengths.vecmat
    nest = _call(eqn, jax_compat.open_jaxpr(body.solve))
    constants = range(begin, begin + lengths.solve)
    return (replace(nest, operands=(*constants, *nest.operands[lengths.solve :])),)


_NESTINGS: dict[Nesting, Callable[[Eqn, Any, Mapping[str, Any]], tuple[Nest, ...]]] = {
    "call": _calls,
    "scan": _scan,
    "while": _while,
    "branch": _branches,
    "solve": _solve,
}


def _unknown(eqn: Eqn, name: str, params: Mapping[str, Any]) -> Iterator[Nest]:
    inner = [jax_compat.open_jaxpr(v) for v in params.values() if jax_compat.is_jaxpr(v)]
    if not inner:
        if name == eqn.primitive.name and name not in _HOLDING:  # one name may wrap many
            _PLAIN.add(name)
    elif len(inner) == 1 and _lines_up(inner[0], eqn):
        yield _call(eqn, inner[0])


def _lines_up(jaxpr: Jaxpr, eqn: Eqn) -> bool:
    """Return whether a jaxpr's inputs and outputs are the eqn's.

    Those of lax.reduce are as many, but single elements.
    """
    inside, outside = [*jaxpr.invars, *jaxpr.outvars], [*eqn.invars, *eqn.outvars]
    return len(jaxpr.invars) == len(eqn.invars) and [shape(v) for v in inside] == [
        shape(v) for v in outside
    ]


def _rank(var: Var) -> int:
    return len(shape(var))


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
