"""Follow values through a training step: past which derivatives, and into which others."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.nesting import Nest, nests
from jaxresid.inspector.jaxpr.phases import BACKWARD, FORWARD, Passes
from jaxresid.inspector.jaxpr.primitives import SIDE_BY_SIDE
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var


@dataclass(frozen=True, slots=True)
class Flow:
    """The origins of what comes together in a variable.

    Attributes:
      inputs: those inputs, a bit each, that reach it with no derivative on the way.
      is_after: whether a gradient is part of it.
      is_steered: whether a gradient only decides about it: whether it is finite, how often it was.
      is_gradient: whether a backward pass itself makes it.
      is_seen: whether what a forward pass makes is part of it.
    """

    inputs: int = 0
    is_after: bool = False
    is_steered: bool = False
    is_gradient: bool = False
    is_seen: bool = False

    def __or__(self, other: Flow) -> Flow:
        return Flow(
            self.inputs | other.inputs,
            self.is_after or other.is_after,
            self.is_steered or other.is_steered,
            self.is_gradient or other.is_gradient,
            self.is_seen or other.is_seen,
        )


NOTHING = Flow()


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of the bits that are set in a mask, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def shape_and_dtype(var: Var) -> tuple[tuple[int, ...] | None, Any]:
    """Return the shape and the dtype of a variable; None for what its aval does not have."""
    return getattr(var.aval, "shape", None), getattr(var.aval, "dtype", None)


def is_inexact(var: Var) -> bool:
    """Return whether a variable is of floats or complex numbers, or of no dtype at all."""
    dtype = getattr(var.aval, "dtype", None)
    return dtype is None or _is_inexact(dtype)


@functools.cache
def _is_inexact(dtype: Any) -> bool:
    jnp = jax_compat.import_jax().numpy
    return bool(jnp.issubdtype(dtype, jnp.inexact))


class Flows:
    """The flows of values through a jaxpr that holds gradients.

    Attributes:
      fed: the inputs, a bit each, that a forward pass reads.
      outputs: what comes together in each outvar.
    """

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.fed = 0
        self._passes = Passes()
        self._like: dict[tuple[tuple[int, ...] | None, Any], int] = {}
        for i, v in enumerate(jaxpr.invars):
            self._like[shape_and_dtype(v)] = self.like(v) | 1 << i
        constants = [NOTHING] * len(jaxpr.constvars)
        self.outputs = self._of(jaxpr, constants + [Flow(1 << i) for i in range(len(jaxpr.invars))])

    @property
    def has_gradient(self) -> bool:
        """True if a gradient is part of any outvar, or decides about one."""
        return any(flow.is_after or flow.is_steered for flow in self.outputs)

    def like(self, var: Var) -> int:
        """Return the inputs, a bit each, that have a variable's shape and dtype."""
        return self._like.get(shape_and_dtype(var), 0)

    def _of(self, jaxpr: Jaxpr, given: Sequence[Flow]) -> list[Flow]:
        """Return what comes together in each outvar of a jaxpr.

        Args:
          jaxpr: the open jaxpr.
          given: what comes together in its constants and then in its invars.
        """
        env = self._env(jaxpr, given)
        return [NOTHING if jax_compat.is_literal(v) else env[v] for v in jaxpr.outvars]

    def _env(self, jaxpr: Jaxpr, given: Sequence[Flow]) -> dict[Var, Flow]:
        """Return what comes together in each variable of a jaxpr; in a Ref, all that it gets."""
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], given, strict=True))
        for eqn in jaxpr.eqns:
            operands = [NOTHING if jax_compat.is_literal(v) else env[v] for v in eqn.invars]
            env.update(zip(eqn.outvars, self._results(eqn, operands), strict=True))
            if eqn.effects:
                for i, flow in self._written(eqn, operands):
                    env[eqn.invars[i]] |= flow
        return env

    def _written(self, eqn: Eqn, operands: Sequence[Flow]) -> Iterator[tuple[int, Flow]]:
        """Yield the operands of an eqn that are Refs which it may write, with what it writes."""
        refs = [i for i, v in enumerate(eqn.invars) if jax_compat.is_ref_type(v.aval)]
        if not refs:
            return
        phase = self._passes.of(eqn)
        if phase == BACKWARD:
            yield from ((i, Flow(is_after=True, is_gradient=True)) for i in refs)
            return
        found = nests(eqn)
        if not found or phase == FORWARD:
            if jax_compat.primitive_name(eqn) in ("get", "freeze", "free_ref"):
                return
            together = NOTHING
            for flow in operands:
                together |= flow
            if phase == FORWARD:
                together = replace(together, inputs=0, is_seen=True)
            yield from ((i, replace(together, is_gradient=False)) for i in refs)
            return
        for nest in found:
            env = self._body(nest, operands)
            for v, i in zip(nest.jaxpr.invars, nest.operands, strict=True):
                if i in refs:
                    yield i, env[v]

    def _results(self, eqn: Eqn, operands: Sequence[Flow]) -> Sequence[Flow]:
        together = NOTHING
        for flow in operands:
            together |= flow
        phase = self._passes.of(eqn)
        if phase == FORWARD:
            for flow in operands:
                # What an optimizer keeps reaches the next step of a loop with the parameters.
                self.fed |= 0 if flow.is_after or flow.is_steered else flow.inputs
            return self._result_flows(
                eqn, replace(together, inputs=0, is_gradient=False, is_seen=True)
            )
        if phase == BACKWARD:
            return self._result_flows(eqn, Flow(is_after=True, is_gradient=True))
        if jax_compat.primitive_name(eqn) in SIDE_BY_SIDE:
            return [replace(flow, is_gradient=False) for flow in operands]
        found = nests(eqn)
        if not found:
            return self._result_flows(
                eqn, replace(together, is_gradient=False) if together.is_gradient else together
            )
        # What no body is given decides which of them runs, or how often.
        given = {i for nest in found for i in nest.operands}
        deciding = [flow for i, flow in enumerate(operands) if i not in given]
        is_steered = any(flow.is_after or flow.is_steered for flow in deciding)
        results = [Flow(is_steered=is_steered)] * len(eqn.outvars)
        for nest in found:
            env = self._body(nest, operands)
            for i, v in zip(nest.results, nest.jaxpr.outvars, strict=True):
                if i is not None and not jax_compat.is_literal(v):
                    results[i] |= env[v]
        return results

    def _result_flows(self, eqn: Eqn, flow: Flow) -> list[Flow]:
        """Return the same flow for each result; bools and integers hold no gradient."""
        if not flow.is_after or all(map(is_inexact, eqn.outvars)):
            return [flow] * len(eqn.outvars)
        result_flow = replace(flow, is_after=False, is_steered=True)
        return [flow if is_inexact(v) else result_flow for v in eqn.outvars]

    def _body(self, nest: Nest, operands: Sequence[Flow]) -> dict[Var, Flow]:
        """Return what comes together in a body's variables; of a loop, after any number of trips.

        What is carried, or held in a Ref, is in it from the trip before.
        """
        jaxpr = nest.jaxpr
        constants = [NOTHING] * len(jaxpr.constvars)
        given = [operands[i] for i in nest.operands]
        refs = [i for i, v in enumerate(jaxpr.invars) if jax_compat.is_ref_type(v.aval)]
        while True:
            env = self._env(jaxpr, constants + given)
            entering = list(given)
            for into, out in nest.carries.items():
                leaving = jaxpr.outvars[out]
                if not jax_compat.is_literal(leaving):
                    entering[into] |= env[leaving]
                    env[leaving] |= given[into]
            for i in refs if nest.kind in ("scan", "while") else ():
                entering[i] |= env[jaxpr.invars[i]]
            if entering == given:
                return env
            given = entering
