"""Trace a function of the user's, as it is called and not yet differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError
from jaxresid.inspector.call.arguments import CONCRETE, Arguments
from jaxresid.inspector.call.calling import called_with_changes
from jaxresid.inspector.jaxpr.bindings import strip_trace_context
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.jax_compat.jaxpr_types import ClosedJaxpr


class StoppedError(Exception):
    """A function was stopped at what it returned."""


class TracedFunction(Protocol):
    """What is read of a `jax.stages.Traced`."""

    @property
    def jaxpr(self) -> ClosedJaxpr: ...

    @property
    def out_info(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class TraceWithoutRefs:
    """A traced function as a `jax.stages.Traced` has it, with what Refs hold in the place of Refs.

    Attributes:
      unknown: Refs that it reaches and that are no input yet.
    """

    jaxpr: ClosedJaxpr
    out_info: Any
    unknown: tuple[Any, ...] = ()


def primal_trace(fun: Callable[..., Any], arguments: Arguments, has_aux: bool) -> TracedFunction:
    """Return the `jax.stages.Traced` of the function; of one with Refs, a `TraceWithoutRefs`.

    It is a function of the differentiated leaves and then of the other traced ones, to the output
    and auxiliary arrays.
    """
    return marked(primal_of(fun, arguments, has_aux), arguments)


def traced_once(fun: Callable[..., Any], arguments: Arguments) -> TracedFunction:
    """Return what `primal_trace` does, never traced again.

    What was jitted and traced before has no marks on its derivatives then.
    """
    return traced_primal(primal_of(fun, arguments, False), arguments)


def marked(primal: Primal, arguments: Arguments) -> TracedFunction:
    """Return the traced function, with marks on the derivatives that it takes."""
    traced = traced_primal(primal, arguments)
    if any(map(jax_compat.is_unmarked, eqns_in(jax_compat.open_jaxpr(traced.jaxpr)))):
        # A jitted function that was traced before, such as one that has run, has no marks.
        with jax_compat.intercept_bind({}):
            traced = traced_primal(primal, arguments)
        strip_trace_context(jax_compat.open_jaxpr(traced.jaxpr))
    return traced


def operands(arguments: Arguments) -> tuple[list[Any], list[Any]]:
    leaves = arguments.leaves
    diff, rest = arguments.having("differentiated"), arguments.having("traced")
    return [leaves[i] for i in diff], [leaves[i] for i in rest]


Primal = Callable[[Sequence[Any], Sequence[Any]], tuple[Any, Any]]


def primal_of(
    fun: Callable[..., Any],
    arguments: Arguments,
    has_aux: bool,
    *,
    stops_at: Callable[[Any], bool] | None = None,
) -> Primal:
    diff, rest = arguments.having("differentiated"), arguments.having("traced")

    def primal(diff_leaves: Sequence[Any], rest_leaves: Sequence[Any]) -> tuple[Any, Any]:
        dynamic = zip(diff + rest, [*diff_leaves, *rest_leaves], strict=True)
        with jax_compat.marking_derivatives():
            result, changes = called_with_changes(fun, arguments, dict(dynamic))
        if stops_at is not None and stops_at(result):
            raise StoppedError
        if not has_aux:
            return result, ([], changes)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise InputsError(
                f"with has_aux the function must return (output, aux), not {_returned(result)}"
            )
        # jax.vjp hands on strings and the like; a traced function cannot return them.
        leaves = jax_compat.import_jax().tree.leaves(result[1])
        arrays = [v for v in leaves if hasattr(v, "dtype") and not jax_compat.is_ref(v)]
        return result[0], (arrays, changes)

    return primal


def as_evaluation(written: TracedFunction) -> Primal:
    """Return a traced function as one to trace; no user code runs."""
    jax = jax_compat.import_jax()
    treedef = jax.tree.structure(written.out_info)
    evaluate = jax_compat.as_function(written.jaxpr)

    def call(diff_leaves: Sequence[Any], rest_leaves: Sequence[Any]) -> Any:
        return jax.tree.unflatten(treedef, evaluate(*diff_leaves, *rest_leaves))

    return call


def traced_primal(primal: Primal, arguments: Arguments) -> TracedFunction:
    with jax_compat.in_mesh(arguments.context):
        leaves = operands(arguments)
        traced = jax_compat.import_jax().jit(primal).trace(*leaves)
        jax_compat.settle_derivatives(eqns_in(jax_compat.open_jaxpr(traced.jaxpr)))
        _check_closed(traced, leaves)
        return _without_refs(traced, arguments)


def _without_refs(traced: TracedFunction, arguments: Arguments) -> TracedFunction:
    closed = traced.jaxpr
    reached = jax_compat.held_refs(closed)
    if not reached and not arguments.refs:
        return traced
    jax = jax_compat.import_jax()
    result, (aux, (held, loose, moved)) = traced.out_info
    jaxpr = jax_compat.open_jaxpr(closed)
    inputs, outvars = list(jaxpr.invars), list(jaxpr.outvars)
    paths = [arguments.paths[i] for i in arguments.dynamic]
    refs = arguments.refs
    places = {id(refs[i]): n for n, i in enumerate(arguments.dynamic) if i in refs}
    unknown = []
    for var, ref in reached.items():
        if id(ref) in places:
            inputs[places[id(ref)]] = var
        else:
            unknown.append((var, ref))
    front = [var for var, _ in unknown]
    closed, returned = jax_compat.without_refs(closed, [*front, *inputs])
    jaxpr = jax_compat.open_jaxpr(closed)
    finals = zip(returned, jaxpr.outvars[len(outvars) :], strict=True)
    in_the_end = {
        paths[i - len(front)]: var
        for i, var in finals
        if i >= len(front) and var is not jaxpr.invars[i]
    }
    wanted = arguments.changing
    ends = [len(jax.tree.leaves(tree)) for tree in ((result, aux), held)]
    first, second = ends[0], sum(ends)
    outvars = list(jaxpr.outvars[: len(outvars)])
    outputs = dict(zip(sorted(held), outvars[first:second], strict=True))
    outputs |= {
        path: var
        for path, var in in_the_end.items()
        if path not in held and (wanted is None or path in wanted)
    }
    shapes = {path: jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for path, v in outputs.items()}
    outvars[first:second] = [outputs[path] for path in sorted(outputs)]
    return TraceWithoutRefs(
        jax_compat.with_outvars(closed, outvars),
        (result, (aux, (shapes, loose, moved))),
        tuple(ref for _, ref in unknown),
    )


def _check_closed(traced: TracedFunction, leaves: tuple[list[Any], list[Any]]) -> None:
    """Check that a function depends on its arguments alone.

    JAX makes an operand, ahead of them, of each tracer of another trace.
    """
    others = foreign(traced, leaves)
    if not others:
        return
    listed = ", ".join(v.aval.str_short() for v in others[:3])
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    raise InputsError(
        f"the target reads values leaked from another trace ({listed}{more}); what a loss computes"
        " and the rest of a step reads has to be returned by it (has_aux=True), and no earlier call"
        f" nor the inputs function may leave traced arrays behind, for example in a global\n"
        f"  {CONCRETE}"
    )


def foreign(traced: TracedFunction, leaves: tuple[list[Any], list[Any]]) -> list[Any]:
    invars = jax_compat.open_jaxpr(traced.jaxpr).invars
    return list(invars[: len(invars) - sum(map(len, leaves))])


def _returned(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of length {len(result)}"
    return "an array" if hasattr(result, "dtype") else f"a value of type {type(result).__name__}"
