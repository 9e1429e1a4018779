"""Read what a target is where no mode is chosen: a loss to differentiate, or a program as it is."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.call.arguments import Arguments
from jaxresid.inspector.jaxpr.flows import Flows, is_inexact
from jaxresid.inspector.jaxpr.smooth import smooth_outputs
from jaxresid.inspector.trace.changes import changes, passed_through, paths_of
from jaxresid.inspector.trace.function import is_real_scalar, is_scalar_with_aux
from jaxresid.inspector.trace.primal import TracedFunction
from jaxresid.inspector.trace.step import holds_gradient


@dataclass(frozen=True, slots=True)
class Reading:
    """What a target is taken for.

    Attributes:
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
    has_aux = is_scalar_with_aux(result)
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
    """It comes back where it is alike and most of its arrays are updated."""
    jaxpr = jax_compat.open_jaxpr(primal.jaxpr)
    first = arguments.names[0]
    paths = [arguments.paths[i] for i in arguments.dynamic]
    lead = len(jaxpr.invars) - len(paths)
    held = {
        path.removeprefix(first): lead + i
        for i, path in enumerate(paths)
        if path.removeprefix(first)[:1] in ("", ".", "[") and path.startswith(first)
    }
    aux = primal.out_info[0][1]
    begin = 1
    for tree in (aux, *(aux if isinstance(aux, tuple | list) else ())):
        back = paths_of(tree)
        if tree is not aux and back == ():
            continue
        if set(back) == set(held):
            updated = [
                passed_through(jaxpr, jaxpr.outvars[at]) != held[path]
                and flows.outputs[at].inputs >> held[path] & 1
                for at, path in enumerate(back, begin)
                if is_inexact(jaxpr.outvars[at])
            ]
            if 2 * sum(updated) > len(updated):
                return True
        begin += 0 if tree is aux else len(back)
    return False
