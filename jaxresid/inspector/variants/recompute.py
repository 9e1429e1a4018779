"""Determine what a checkpoint's body would have to recompute, for any choice of values to save.

The body is differentiated with every nameable value named, so that JAX itself says which values
the backward pass needs and how they are made. What is saved, and all that is made of inputs and of
saved values alone, need not be recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.call.leaves import is_inexact
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.inspector.jaxpr.primitives import CALLS
from jaxresid.inspector.program.avals import aval_of
from jaxresid.inspector.variants.naming import nameable, named
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import Expression

_LABEL = "jaxresid value "


@dataclass(frozen=True, slots=True)
class Saveable:
    """Values of a body that one name stands for.

    They are those of one expression, or those that have the name already.

    Attributes:
      name: the name that the values have already; None for those of an expression.
      expression: the expression that makes them; None for those that have a name.
      nbytes: the bytes of all of them together, once through the body.
    """

    name: str | None
    expression: Expression | None
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An eqn of the differentiated body.

    Attributes:
      eqn: the eqn.
      cost: the cost of running it.
      operands: the steps that make what it reads; inputs of the body are left out.
      saveable: which of the body's saveable values it names; None for most.
      nbytes: the bytes of what it makes.
    """

    eqn: Eqn
    cost: float
    operands: tuple[int, ...]
    saveable: int | None
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """The forward pass of a differentiated body, flat.

    Attributes:
      saveables: the values of the body that can be saved.
      steps: the eqns, in an order in which each comes after its operands.
      needed: the steps whose results the backward pass reads.
      forward: for each step whether the forward pass runs it even if nothing is kept.
    """

    saveables: tuple[Saveable, ...]
    steps: tuple[Step, ...]
    needed: tuple[int, ...]
    forward: tuple[bool, ...]

    def cost(self, saved: Iterable[int]) -> float:
        """Return the cost of what is computed twice when the results of these steps are saved."""
        is_saved = set(saved)
        stack = [i for i in self.needed if i not in is_saved]
        seen: set[int] = set()
        while stack:
            i = stack.pop()
            if i in seen:
                continue
            seen.add(i)
            stack += [o for o in self.steps[i].operands if o not in is_saved]
        return sum(self.steps[i].cost for i in seen if self.forward[i])


def graph(body: Jaxpr, frames: Frames, cost: Callable[[Eqn], float], enough: int = 0) -> Graph:
    """Return the graph of a checkpoint's body.

    Args:
      body: an open jaxpr without checkpoints.
      frames: reads the eqns' tracebacks.
      cost: returns the cost of running one eqn, in any unit.
      enough: the least bytes of an expression's values that can be given a name.

    Raises:
      Exception: whatever JAX raises while it differentiates the body.
    """
    sums: dict[str | Expression | None, int] = {}
    for value in nameable(body, frames):
        key = value.name if value.name is not None else value.expression
        sums[key] = sums.get(key, 0) + aval_of(value.var).nbytes
    saveables = tuple(
        Saveable(key, None, n) if isinstance(key, str) else Saveable(None, key, n)
        for key, n in sums.items()
        if n >= enough or isinstance(key, str)
    )
    labels = [(s.expression, f"{_LABEL}{i}") for i, s in enumerate(saveables) if s.expression]
    index = {f"{_LABEL}{i}": i for i, s in enumerate(saveables)}
    index |= {s.name: i for i, s in enumerate(saveables) if s.name is not None}
    labelled = named(body, labels, frames)
    forward, count = _differentiated(labelled)
    flat = _Flat(cost, index)
    outputs = flat.outputs(forward)
    made, kept = outputs[:count], outputs[count:]
    ran = _ancestors(flat.steps, [i for i in made if i is not None])
    return Graph(
        saveables,
        tuple(flat.steps),
        tuple(dict.fromkeys(i for i in kept if i is not None)),
        tuple(i in ran for i in range(len(flat.steps))),
    )


def _differentiated(body: Jaxpr) -> tuple[Jaxpr, int]:
    """Return the open forward jaxpr of a body, and how many outputs the body has.

    The jaxpr's outputs are those of the body, then its residuals.
    """
    jax = jax_compat.import_jax()
    evaluate = jax_compat.as_function(jax_compat.as_jit_jaxpr(_without_constants(body)))
    structs = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=bool(v.aval.weak_type))
        if hasattr(v.aval, "weak_type")
        else jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype)
        for v in (*body.constvars, *body.invars)
    ]
    chosen = [i for i, s in enumerate(structs) if is_inexact(s)]
    rest = [i for i in range(len(structs)) if i not in set(chosen)]

    def forward(diff: Sequence[Any], others: Sequence[Any]) -> Any:
        def call(diff: Sequence[Any]) -> Any:
            given = dict(zip([*chosen, *rest], [*diff, *others], strict=True))
            return evaluate(*(given[i] for i in range(len(structs))))

        return jax.vjp(call, diff)

    traced = jax.jit(forward).trace([structs[i] for i in chosen], [structs[i] for i in rest])
    return jax_compat.open_jaxpr(traced.jaxpr), len(body.outvars)


def _without_constants(body: Jaxpr) -> Jaxpr:
    """Return an open jaxpr with its constants as inputs in front of the others."""
    if not body.constvars:
        return body
    return body.replace(constvars=[], invars=[*body.constvars, *body.invars])


class _Flat:
    """A flat list of the steps of a jaxpr, with calls inlined."""

    def __init__(self, cost: Callable[[Eqn], float], index: dict[str, int]) -> None:
        self.steps: list[Step] = []
        self._cost = cost
        self._index = index
        self._costs: dict[int, tuple[Eqn, float]] = {}

    def outputs(self, jaxpr: Jaxpr) -> list[int | None]:
        """Return for each output the step that makes it; None for an input or a constant."""
        return self._inline(jaxpr, [None] * len(jaxpr.invars))

    def _inline(self, jaxpr: Jaxpr, given: Sequence[int | None]) -> list[int | None]:
        made: dict[Var, int | None] = dict(zip(jaxpr.invars, given, strict=True))
        for eqn in jaxpr.eqns:
            operands = [None if jax_compat.is_literal(v) else made.get(v) for v in eqn.invars]
            name = jax_compat.primitive_name(eqn)
            if name in CALLS or name == "custom_jvp_call":
                (nest,) = nests(eqn)
                results = self._inline(nest.jaxpr, [operands[i] for i in nest.operands])
                made |= zip(eqn.outvars, results, strict=True)
                continue
            label = str(jax_compat.params(eqn)["name"]) if name == "name" else ""
            step = Step(
                eqn,
                self._cost_of(eqn),
                tuple(dict.fromkeys(o for o in operands if o is not None)),
                self._index.get(label),
                sum(aval_of(v).nbytes for v in eqn.outvars),
            )
            made |= dict.fromkeys(eqn.outvars, len(self.steps))
            self.steps.append(step)
        return [None if jax_compat.is_literal(v) else made.get(v) for v in jaxpr.outvars]

    def _cost_of(self, eqn: Eqn) -> float:
        found = self._costs.get(id(eqn))
        if found is None:
            found = self._costs[id(eqn)] = eqn, self._cost(eqn)
        return found[1]


def _ancestors(steps: Sequence[Step], last: Iterable[int]) -> set[int]:
    seen: set[int] = set()
    stack = list(last)
    while stack:
        i = stack.pop()
        if i not in seen:
            seen.add(i)
            stack += steps[i].operands
    return seen
