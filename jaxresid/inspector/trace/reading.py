"""Read what a target is where no mode is chosen: a loss to differentiate, or a program as it is."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.call.arguments import Arguments
from jaxresid.inspector.jaxpr.flows import Flows, bits, is_inexact
from jaxresid.inspector.jaxpr.smooth import smooth_outputs
from jaxresid.inspector.trace.changes import changes
from jaxresid.inspector.trace.function import TracedFunction, is_real_scalar
from jaxresid.inspector.trace.step import holds_gradient


@dataclass(frozen=True, slots=True)
class Reading:
    """What a target is taken for.

    Attributes:
      is_loss: whether it is differentiated; else it is a program as it is.
      has_aux: whether a loss returns auxiliary data beside its scalar.
    """

    is_loss: bool
    has_aux: bool = False


_PROGRAM, _LOSS, _LOSS_WITH_AUX = Reading(False), Reading(True), Reading(True, has_aux=True)


def reading(primal: TracedFunction, arguments: Arguments) -> Reading:
    """Return what a traced function (a `step.step_primal`) is taken for.

    What returns one real scalar of float arguments is a loss, also beside auxiliary data, and also
    where it takes gradients itself, as that of a force field or a differential equation. A training
    step changes something by a gradient, or returns one beside a scalar that none is part of, or
    does nothing with it. What returns its first argument updated beside the scalar is a program as
    well, such as a step of a simulation with its energy, and what has no derivative but zero, such
    as an accuracy.
    """
    if not arguments.having("differentiated"):
        return _PROGRAM
    result = primal.out_info[0]
    has_aux = isinstance(result, tuple) and len(result) == 2 and is_real_scalar(result[0])
    if not has_aux and not is_real_scalar(result):
        return _PROGRAM
    jaxpr = jax_compat.open_jaxpr(primal.jaxpr)
    if 0 not in smooth_outputs(jaxpr, range(len(jaxpr.invars))):
        return _PROGRAM
    if any(change.is_after for change in changes(primal, arguments)):
        return _PROGRAM
    flows = Flows(jaxpr)
    if holds_gradient(jaxpr):
        value, *aux = flows.outputs
        if not flows.has_gradient:
            return _PROGRAM
        if any(flow.is_after for flow in aux) and not value.is_after:
            return _PROGRAM
    if not has_aux:
        return _LOSS
    return _PROGRAM if _returns_first_argument(primal, arguments, flows) else _LOSS_WITH_AUX


def _returns_first_argument(primal: TracedFunction, arguments: Arguments, flows: Flows) -> bool:
    """Return whether most arrays of the first argument come back updated."""
    jaxpr = jax_compat.open_jaxpr(primal.jaxpr)
    paths = [arguments.paths[i] for i in arguments.dynamic]
    lead = len(jaxpr.invars) - len(paths)
    first = {
        lead + i
        for i, path in enumerate(paths)
        if _argument(path) == arguments.names[0] and is_inexact(jaxpr.invars[lead + i])
    }
    count = len(jax_compat.import_jax().tree.leaves(primal.out_info[0]))
    updated = {
        i
        for v, flow in zip(jaxpr.outvars[1:count], flows.outputs[1:count], strict=True)
        for i in bits(flow.inputs & flows.like(v))
    }
    return bool(first) and 2 * len(first & updated) > len(first)


def _argument(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]
