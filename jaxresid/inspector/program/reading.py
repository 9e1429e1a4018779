"""Read the eqns of jaxprs once for all programs: what each is, whatever calls its jaxpr."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from jaxresid import jax_compat
from jaxresid.base.errors import RetraceError
from jaxresid.inspector.jaxpr.extents import keeps_precision
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.inspector.jaxpr.phases import phase_of
from jaxresid.inspector.jaxpr.primitives import MARKS, PRIMITIVES, SHARDINGS
from jaxresid.inspector.program.avals import dtype_of
from jaxresid.inspector.program.ops import Value
from jaxresid.inspector.trace.retracing import retracing
from jaxresid.jax_compat.jaxpr_types import Aval, Eqn, Jaxpr, Literal, Var
from jaxresid.results import Pass

# Results that are their operand, under another name.
_SAME = MARKS | SHARDINGS


@dataclass(slots=True, eq=False)
class EqnReading:
    """What is known of an eqn wherever its jaxpr is called.

    Attributes:
      operands: what it reads: variables, and the ids of literals.
      literals: the literals among them, each with a value like it.
      number: what makes two plain eqns on equal operands equal; None if nothing does.
      phase: the phase of a plain eqn; None for one that is no op of its own, or has bodies.
      results: a value like each of its results, for a plain eqn.
    """

    eqn: Final[Eqn]
    name: Final[str]
    operands: Final[tuple[Var | int, ...]]
    literals: Final[tuple[tuple[Literal, Value], ...]] = ()
    number: Final[int | None] = None
    phase: Final[Pass | None] = None
    results: Final[tuple[Value, ...]] = ()


@dataclass(frozen=True, slots=True)
class JaxprReading:
    """The eqns of a jaxpr, read once.

    Attributes:
      jaxpr: the jaxpr, which is kept: it is found by its id.
      steps: its eqns in order.
      literals: the literals that they read, by their ids.
    """

    jaxpr: Jaxpr
    steps: tuple[EqnReading, ...]
    literals: Mapping[Any, Value]


def implementation(eqn: Eqn) -> Jaxpr | None:
    """Return what a primitive of a library's own does, as `jax_compat.implementation`.

    Raises:
      RetraceError: the library's Python cannot be traced.
    """
    with retracing(f"the Python of {jax_compat.primitive_name(eqn)}"):
        closed = jax_compat.implementation(eqn)
    return None if closed is None else jax_compat.open_jaxpr(closed)


class JaxprReader:
    """A reader of jaxprs that looks at each jaxpr, and each eqn, once for all programs.

    Layers share what they call, and variants of a step most of what is done with its gradients.
    """

    def __init__(self, *, as_written: bool = False) -> None:
        self.as_written = as_written
        self._steps: dict[tuple[int, str], JaxprReading] = {}
        # By the name stacks, and by the id of an eqn, which is kept.
        self._eqns: dict[str, dict[int, EqnReading]] = {}
        # By the id of an aval, which is kept: JAX gives one to many variables.
        self._types: dict[int, tuple[Aval, Value]] = {}
        self._numbers: dict[Hashable, int] = {}
        # By the id of an eqn, which is kept.
        self._implementations: dict[int, tuple[Eqn, Jaxpr | None]] = {}

    def steps(self, jaxpr: Jaxpr, tags: str) -> JaxprReading:
        """Return the eqns of a jaxpr that is called under these name stacks."""
        entry = self._steps.get((id(jaxpr), tags))
        if entry is None:
            eqns = self._eqns.setdefault(tags, {})
            steps = tuple([eqns.get(id(eqn)) or self._step(eqn, tags) for eqn in jaxpr.eqns])
            literals = {id(v): value.copy() for step in steps for v, value in step.literals}
            entry = self._steps[id(jaxpr), tags] = JaxprReading(jaxpr, steps, literals)
        return entry

    def _step(self, eqn: Eqn, tags: str) -> EqnReading:
        step = self._eqns[tags][id(eqn)] = self._read(eqn, tags)
        return step

    def _read(self, eqn: Eqn, tags: str) -> EqnReading:
        name = jax_compat.primitive_name(eqn)
        literals = tuple([(v, literal_of(v)) for v in eqn.invars if jax_compat.is_literal(v)])
        operands: tuple[Var | int, ...] = tuple(eqn.invars)
        if literals:
            operands = tuple([id(v) if jax_compat.is_literal(v) else v for v in eqn.invars])
        if not (name == "name" and self.as_written) and (
            name in _SAME
            or name == "optimization_barrier"
            or (name in _MAYBE_SAME and _MAYBE_SAME[name](eqn))
            or nests(eqn)
            or (name not in PRIMITIVES and self.implementation(eqn) is not None)
        ):
            return EqnReading(eqn, name, operands, literals)
        phase = phase_of(f"{tags}/{jax_compat.name_stack(eqn)}")
        results = tuple([self._type(v) for v in eqn.outvars])
        return EqnReading(eqn, name, operands, literals, self._number(eqn, name), phase, results)

    def implementation(self, eqn: Eqn) -> Jaxpr | None:
        """Return what a primitive of a library's own does; None where that is not known."""
        entry = self._implementations.get(id(eqn))
        if entry is None:
            jaxpr = None
            with contextlib.suppress(RetraceError):
                jaxpr = implementation(eqn)
            entry = self._implementations[id(eqn)] = eqn, jaxpr
        return entry[1]

    def _type(self, var: Var) -> Value:
        aval = var.aval
        entry = self._types.get(id(aval))
        if entry is None:
            entry = self._types[id(aval)] = aval, value_of(var)
        return entry[1]

    def _number(self, eqn: Eqn, name: str) -> int | None:
        if self.as_written or eqn.effects:
            return None
        # What a primitive makes follows from its operands and params, which it orders. A number
        # has its hash at hand.
        try:
            key = (name, *jax_compat.params(eqn).items())
            return self._numbers.setdefault(key, len(self._numbers))
        except TypeError:
            return None


def value_of(var: Var) -> Value:
    """Return a value of the type of a variable."""
    shape, dtype, itemsize, memory = _described(var.aval)
    return Value(shape, dtype, itemsize, memory)


def literal_of(var: Literal) -> Value:
    """Return the value of a literal."""
    shape, dtype, itemsize, memory = _described(var.aval)
    return Value(shape, dtype, itemsize, memory, jax_compat.literal_text(var))


def constant_of(var: Var) -> Value:
    """Return the value of a nested jaxpr's constant, held by the executable as a literal is."""
    return replace(value_of(var), literal=f"constant {id(var)}")


def _described(aval: Aval) -> tuple[tuple[int, ...], str, int, str]:
    dtype = getattr(aval, "dtype", None)
    if dtype is None:  # a token or a ref
        return (), str(aval), 0, "device"
    return (tuple(map(int, aval.shape)), *dtype_of(dtype), jax_compat.memory_space(aval))


def _same_type(eqn: Eqn) -> bool:
    a, b = eqn.invars[0].aval, eqn.outvars[0].aval
    return bool(a.dtype == b.dtype and getattr(a, "shape", None) == getattr(b, "shape", None))


_MAYBE_SAME: dict[str, Callable[[Eqn], bool]] = {
    "reduce_precision": keeps_precision,
    "convert_element_type": _same_type,
    "reshape": _same_type,
    "copy": _same_type,
}
