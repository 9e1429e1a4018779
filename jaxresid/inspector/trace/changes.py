"""Read off a function's jaxpr what it changes in place.

A function jitted by Flax NNX returns every leaf of what it is given, changed or not: an output
that is only handed through from its own input is no change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.call.arguments import Arguments, with_reached
from jaxresid.inspector.call.objects import entries, is_variable
from jaxresid.inspector.call.outside import inner_path
from jaxresid.inspector.jaxpr.flows import Flows
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.inspector.trace.function import TracedFunction, primal_trace
from jaxresid.jax_compat.jaxpr_types import Jaxpr, Var


@dataclass(frozen=True, slots=True)
class Change:
    """A leaf that is not what it was.

    Attributes:
      path: the path of the input that it was, or would be.
      output: the index of the outvar that it now is.
      is_held: whether it is in an object whose changes its owner sees whatever the function is
        jitted with; in a dict or a list its owner sees them without jit alone.
      is_after: whether a gradient is part of it, or decides about it.
    """

    path: str
    output: int
    is_held: bool
    is_after: bool


def changes(primal: TracedFunction, arguments: Arguments) -> tuple[Change, ...]:
    """Return what a traced function changes.

    Args:
      primal: the traced function, see `function.primal_trace`.
      arguments: the arguments that it was traced with.
    """
    jax = jax_compat.import_jax()
    jaxpr = jax_compat.open_jaxpr(primal.jaxpr)
    result, (aux, (held, loose, _)) = primal.out_info
    start = len(jax.tree.leaves((result, aux)))
    if not held and not loose:
        return ()
    paths = [arguments.paths[i] for i in arguments.dynamic]
    inputs = [*[None] * (len(jaxpr.invars) - len(paths)), *paths]
    flows = Flows(jaxpr).outputs
    found = []
    # As the leaves of a dict are: sorted.
    for at, path in enumerate((*sorted(held), *sorted(loose)), start):
        origin = passed_through(jaxpr, jaxpr.outvars[at])
        if origin is None or inputs[origin] != path:
            is_after = flows[at].is_after or flows[at].is_steered
            found.append(Change(path, at, path in held, is_after))
    return tuple(found)


def trace_with_changes(
    fun: Callable[..., Any], arguments: Arguments
) -> tuple[TracedFunction, Arguments]:
    """Return a traced function (see `function.primal_trace`) and its arguments.

    Its arguments then include those things that it reaches by itself and either reads as Variables
    or replaces by something else.

    Raises:
      Exception: whatever the function raises while JAX traces it.
    """
    primal = primal_trace(fun, arguments, False)
    unknown = getattr(primal, "unknown", ())
    if not arguments.owners and not arguments.reached and not unknown:
        return primal, arguments
    _, (_, (held, _, moved)) = primal.out_info
    jaxpr = jax_compat.open_jaxpr(primal.jaxpr)
    read = {v for eqn in jaxpr.eqns for v in eqn.invars if not jax_compat.is_literal(v)}
    read |= {v for v in jaxpr.outvars if not jax_compat.is_literal(v)}
    inputs = [arguments.paths[i] for i in arguments.dynamic]
    used = {
        path
        for path, v in zip(reversed(inputs), reversed(jaxpr.invars), strict=False)
        if v in read or path in held
    }
    kept = [
        (each.owner, each.key, each.path)
        for each in arguments.reached
        if not used.isdisjoint(arguments.paths[each.start : each.stop])
    ]
    added = [
        (owner, key, at)
        for path, owner in arguments.owners
        for key in entries(owner)
        if (at := inner_path(path, owner, key)) in moved
    ]
    added += [(None, ref, f"Ref {i}") for i, ref in enumerate(unknown, 1)]
    if len(kept) == len(arguments.reached) and not added:
        return primal, arguments
    found = with_reached(arguments, [*kept, *added])
    return primal_trace(fun, found, False), found


def changes_by_step(found: Sequence[Change]) -> tuple[Change, ...]:
    """Return those changes that a training step makes for others to see.

    Those of arguments that are dicts or lists are among them if a gradient is part of any change of
    the argument; else they are the function's own notes.
    """
    argument = {c.path: c.path.partition(".")[0].partition("[")[0] for c in found}
    updated = {argument[c.path] for c in found if c.is_after}
    return tuple(c for c in found if c.is_held or argument[c.path] in updated)


def changes_by_function(found: Sequence[Change]) -> tuple[Change, ...]:
    """Return those changes that a function makes for others to see."""
    return tuple(c for c in found if c.is_held)


def drops_gradients(jaxpr: Jaxpr) -> bool:
    """Return whether no gradient is part of what an open jaxpr returns, which includes changes."""
    return not Flows(jaxpr).has_gradient


def passed_through(jaxpr: Jaxpr, var: Var) -> int | None:
    """Return the index of the invar that an outvar is, whatever it was handed through.

    None if it is no invar.
    """
    makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    places = {v: i for i, v in enumerate(jaxpr.invars)}
    while not jax_compat.is_literal(var):
        if var in places:
            return places[var]
        eqn = makers.get(var)
        if eqn is None:
            return None
        result = eqn.outvars.index(var)
        inside = [nest for nest in nests(eqn) if result in nest.results]
        if not inside:
            return None
        operands = set()
        for nest in inside:
            at = nest.outvar(result)
            inner = passed_through(nest.jaxpr, nest.jaxpr.outvars[at])
            # What goes into a scan in slices and comes out of it stacked is whole again.
            if inner is None or (at in nest.stacked) != (inner in nest.slices):
                return None
            if nest.carries and nest.carries.get(inner, at) != at:
                return None
            operands.add(nest.operands[inner])
        found = [eqn.invars[i] for i in operands]
        if any(jax_compat.is_literal(v) or v is not found[0] for v in found):
            return None
        var = found[0]
    return None


def paths_of(tree: Any) -> tuple[str, ...]:
    """Return the paths of a tree's leaves.

    The value of an NNX Variable has the path of the Variable.
    """
    jax = jax_compat.import_jax()
    with_paths, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_variable)
    found: list[str] = []
    for path, leaf in with_paths:
        inner = jax.tree_util.tree_flatten_with_path(leaf)[0] if is_variable(leaf) else [((), leaf)]
        found += [
            jax.tree_util.keystr(path if len(inner) == 1 else (*path, *key[1:])) for key, _ in inner
        ]
    return tuple(found)
