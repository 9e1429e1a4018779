"""Trace a function with abstract arguments to its forward and backward jaxprs.

Public API only: `jax.vjp` under `jax.jit(...).trace` on ShapeDtypeStructs. Nothing is computed and
no buffer is allocated; the residuals are the leaves of the vjp function in the traced output.

Frames of this module mark, in every recorded traceback, where the target was called.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.inspector.call.arguments import CONCRETE, Arguments
from jaxresid.inspector.call.calling import called_with_changes
from jaxresid.inspector.call.leaves import float0, is_inexact, split_over_devices, struct
from jaxresid.inspector.call.sharding import Sharding
from jaxresid.inspector.jaxpr.bindings import intercept_bind, strip_trace_context
from jaxresid.inspector.jaxpr.callsites import contains_remat, may_hold_checkpoints
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.inline import flattened
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.jaxpr.while_loops.trips import WhileTrips
from jaxresid.inspector.trace.traced import Lowerable, Traced
from jaxresid.jax_compat.jaxpr_types import ClosedJaxpr, Jaxpr, Var


@dataclass(frozen=True)
class Trace(Traced):
    """The jaxprs of one differentiated function.

    Attributes:
      forward: invars are `arguments.dynamic`; outvars are the primal outputs, then the residuals.
      backward: invars are the residuals, then the cotangents.
      num_outputs: how many of the forward's outvars are primal outputs.
      num_residuals: how many are residuals.
      num_cotangents: how many of the backward's invars are cotangents.
      primal: traces the function itself, which still has its checkpoints; a `jax.stages.Traced` of
        the differentiated leaves, then the other traced ones.
      again: traces the function again with arguments whose leaves may be others, as it is called
        and not as its primal jaxpr has it; None for one that was rewritten.
      pieces: on a mesh, the shapes that a device holds of `kept`, as the compiler
        says; None where it was not asked.
      has_aux: whether the function returns auxiliary data beside its outputs.
    """

    forward: Jaxpr
    backward: Jaxpr
    num_outputs: int
    num_residuals: int
    num_cotangents: int
    primal: Callable[[], TracedFunction]
    again: Callable[[Arguments], Trace] | None = None
    pieces: tuple[tuple[int, ...] | None, ...] | None = None
    has_aux: bool = False

    holds_backward = False

    # Invars in front of the arguments are constants, or tracers that the function leaked.

    @functools.cached_property
    def inputs(self) -> tuple[str | None, ...]:
        """The path of each of the forward's invars; None for one that is no argument."""
        return self._paths_of(self.forward)

    @property
    def primal_inputs(self) -> tuple[str | None, ...]:
        """The path of each of the primal's invars; None for one that is no argument."""
        return self._paths_of(self.written)

    @property
    def backward_inputs(self) -> tuple[str | None, ...]:
        """The path of each of the backward's invars that is an argument; None for the others."""
        paths = dict(zip(self.forward.invars, self.inputs, strict=True))
        known = {
            read: paths.get(kept)
            for kept, read in zip(self.kept, self.read, strict=True)
            if not jax_compat.is_literal(kept)
        }
        return tuple(known.get(var) for var in self.backward.invars)

    @property
    def kept(self) -> list[Var]:
        """The residuals as the forward's outvars."""
        return list(self.forward.outvars[self.num_outputs :])

    @property
    def read(self) -> list[Var]:
        """The residuals as the backward's invars."""
        invars = self.backward.invars
        end = len(invars) - self.num_cotangents
        return list(invars[end - self.num_residuals : end])

    @property
    def is_flat(self) -> bool:
        """Whether no gradient depends on the cotangents: all are zero, whatever the arguments."""
        invars = self.backward.invars
        reached = set(invars[len(invars) - self.num_cotangents :])
        for eqn in self.backward.eqns:
            if any(not jax_compat.is_literal(v) and v in reached for v in eqn.invars):
                reached.update(eqn.outvars)
        outvars = (v for v in self.backward.outvars if not jax_compat.is_literal(v))
        return reached.isdisjoint(outvars)

    @property
    def sharding(self) -> Sharding | None:
        """The split of the forward pass over the arguments' mesh; None without one."""
        pairs = zip(self.kept, self.pieces or (), strict=False)
        known = {
            v: piece for v, piece in pairs if piece is not None and not jax_compat.is_literal(v)
        }
        return self.arguments.sharding(self.forward.invars, known)

    @functools.cached_property
    def tops(self) -> tuple[Level, Level]:
        """The top levels of the forward and of the backward jaxpr.

        Where the primal jaxpr cannot be traced, of a program without one of its checkpoints, lines
        are told from these two alone.
        """
        primal = None
        if self.has_checkpoints:
            with contextlib.suppress(JaxresidError):
                primal = self.written
        return (
            Level(self.forward, primal=primal, inputs=self.inputs),
            Level(self.backward, inputs=self.backward_inputs),
        )

    @functools.cached_property
    def trips(self) -> WhileTrips:
        """The trips of the while loops in its passes."""
        found = WhileTrips(self.arguments.trips)
        lead = len(self.backward.invars) - self.num_cotangents - self.num_residuals
        handed = {lead + i: self.num_outputs + i for i in range(self.num_residuals)}
        found.add(self.forward, self.backward, handed)
        return found

    @property
    def written(self) -> Jaxpr:
        """The open primal jaxpr, which shows the checkpoints."""
        return jax_compat.open_jaxpr(self.primal().jaxpr)

    @property
    def first(self) -> Jaxpr:
        """The open forward jaxpr."""
        return self.forward

    @functools.cached_property
    def holds_gradient(self) -> bool:
        """Whether the function takes a gradient itself, as a training step does.

        Eqns of the forward pass are then tagged as a backward pass.
        """
        for eqn in eqns_in(self.forward):
            _, found, inside = jax_compat.name_stack(eqn).partition("transpose(")
            if found and "jvp(" in inside:
                return True
        return False

    @functools.cached_property
    def has_checkpoints(self) -> bool:
        """Whether the function may hold checkpoints.

        The primal jaxpr, which shows them, would need another trace.
        """
        return contains_remat(self.backward) or may_hold_checkpoints(self.forward, self.frames)

    @property
    def parameters(self) -> tuple[str, ...]:
        """What the parameters of the lowered program are called: the paths of the arguments."""
        return tuple(self.arguments.paths[i] for i in self.arguments.dynamic)

    def runnable(self) -> Callable[[Sequence[Any]], list[Any]]:
        """Return the outputs and then the gradients as a function; see `Traced.runnable`."""
        return self._runnable(auxiliary=False)

    def _runnable(self, *, auxiliary: bool) -> Callable[[Sequence[Any]], list[Any]]:
        """Return what `runnable` does, with the auxiliary outputs between if they are wanted."""
        jax = jax_compat.import_jax()
        primal = self.primal()
        # Of a call JAX makes other eqns than of the code in its place, and a compiler may tell them
        # apart.
        plain = flattened(self.written, everywhere=True)
        evaluate = jax_compat.as_function(jax_compat.with_jaxpr(primal.jaxpr, plain))
        treedef = jax.tree.structure(primal.out_info)
        count = len(self.arguments.having("differentiated"))

        def run(leaves: Sequence[Any]) -> list[Any]:
            def call(chosen: Sequence[Any]) -> Any:
                return jax.tree.unflatten(treedef, evaluate(*chosen, *leaves[count:]))

            y, vjp, aux = jax.vjp(call, list(leaves[:count]), has_aux=True)
            ones = jax.tree.map(lambda a: jax.numpy.ones_like(a) if is_inexact(a) else float0(a), y)
            (gradients,) = vjp(ones)
            more = jax.tree.leaves(aux) if auxiliary else []
            return [*jax.tree.leaves(y), *more, *gradients]

        return run

    def lowerable(self) -> Lowerable:
        """Return the function with all its outputs and its gradients, for cotangents of one.

        A gradient is split as the argument that it belongs to.
        """
        leaves = [self.arguments.leaves[i] for i in self.arguments.dynamic]
        count = len(self.arguments.having("differentiated"))
        gradients = [split_over_devices(leaf) for leaf in leaves[:count]]
        return Lowerable(
            self._runnable(auxiliary=True), leaves, [None] * self.num_outputs + gradients
        )

    def tracing_in(self, around: Callable[[Callable[[], Any]], Callable[[], Any]]) -> Trace:
        """Return the trace whose primal jaxpr is traced in a context; see `Traced.tracing_in`."""
        return replace(self, primal=around(self.primal))

    def run_again(self, fun: Callable[..., Any]) -> None:
        """Run the function once more while JAX traces it; see `Traced.run_again`."""
        primal_trace(fun, self.arguments, False)


class BackwardError(Exception):
    """The error of a function whose forward pass traced and whose transposition failed.

    The cause says why.
    """

    def __init__(self, forward: Jaxpr) -> None:
        self.forward = forward
        super().__init__("the backward pass cannot be traced")


class StoppedError(Exception):
    """A function was stopped at what it returned."""


def trace(
    fun: Callable[..., Any],
    arguments: Arguments,
    has_aux: bool,
    frames: Frames,
    *,
    stops_at: Callable[[Any], bool] | None = None,
) -> Trace:
    """Trace the forward and the backward pass of a function.

    Args:
      fun: the function.
      arguments: the arguments to trace it with.
      has_aux: whether it returns `(output, auxiliary data)`.
      frames: reads the tracebacks of its eqns.
      stops_at: whether to differentiate nothing, told from what the function returned.

    Raises:
      StoppedError: it returned what `stops_at` stops at.
      BackwardError: the forward pass traced, its transposition failed.
      InputsError: the outputs have no gradient.
      Exception: whatever the function raises while JAX traces it.
    """

    def again(arguments: Arguments) -> Trace:
        primal = _primal(fun, arguments, has_aux, stops_at=stops_at)
        written = functools.cache(lambda: _marked(primal, arguments))
        # What is differentiated holds no Refs.
        passes = _passes(_as_evaluation(written()) if arguments.refs else primal, arguments, frames)
        return replace(passes, primal=written)

    return replace(again(arguments), again=again, has_aux=has_aux)


class TracedFunction(Protocol):
    """What is read of a `jax.stages.Traced`."""

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The closed jaxpr."""

    @property
    def out_info(self) -> Any:
        """Its output, auxiliary arrays and changes, as a tree of what is known of each array."""


@dataclass(frozen=True, slots=True)
class TraceWithoutRefs:
    """A traced function as a `jax.stages.Traced` has it, with what Refs hold in the place of Refs.

    Attributes:
      jaxpr: the closed jaxpr.
      out_info: its output, auxiliary arrays and changes; what Refs hold in the end is among these.
      unknown: Refs that it reaches and that are no input yet.
    """

    jaxpr: ClosedJaxpr
    out_info: Any
    unknown: tuple[Any, ...] = ()


def primal_trace(fun: Callable[..., Any], arguments: Arguments, has_aux: bool) -> TracedFunction:
    """Return the `jax.stages.Traced` of the function; of one with Refs, a `TraceWithoutRefs`.

    It is a function of the differentiated leaves and then of the other traced ones, to the output
    and auxiliary arrays.

    Args:
      fun: the function.
      arguments: the arguments to trace it with.
      has_aux: whether it returns `(output, auxiliary data)`.
    """
    return _marked(_primal(fun, arguments, has_aux), arguments)


def traced_once(fun: Callable[..., Any], arguments: Arguments) -> TracedFunction:
    """Return what `primal_trace` does of a function without auxiliary data, never traced again.

    What was jitted and traced before has no marks on its derivatives then.
    """
    return _traced(_primal(fun, arguments, False), arguments)


def _marked(primal: _Primal, arguments: Arguments) -> TracedFunction:
    """Return a function of the user's traced, with marks on the derivatives that it takes."""
    traced = _traced(primal, arguments)
    if any(map(jax_compat.is_unmarked, eqns_in(jax_compat.open_jaxpr(traced.jaxpr)))):
        # A jitted function that was traced before, such as one that has run, has no marks.
        with intercept_bind({}):
            traced = _traced(primal, arguments)
        strip_trace_context(jax_compat.open_jaxpr(traced.jaxpr))
    return traced


def _operands(arguments: Arguments) -> tuple[list[Any], list[Any]]:
    """Return the differentiated leaves and the other traced ones."""
    leaves = arguments.leaves
    diff, rest = arguments.having("differentiated"), arguments.having("traced")
    return [leaves[i] for i in diff], [leaves[i] for i in rest]


_Primal = Callable[[Sequence[Any], Sequence[Any]], tuple[Any, Any]]


def _primal(
    fun: Callable[..., Any],
    arguments: Arguments,
    has_aux: bool,
    *,
    stops_at: Callable[[Any], bool] | None = None,
) -> _Primal:
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


def retrace(traced: Trace, primal: ClosedJaxpr, arguments: Arguments | None = None) -> Trace:
    """Return the trace of the same function after its primal jaxpr was rewritten.

    No user code runs.

    Args:
      traced: the trace before.
      primal: the rewritten closed jaxpr, with the inputs and outputs that `traced.primal()` has.
      arguments: the arguments of a jaxpr that has only some of the inputs.
    """
    written = TraceWithoutRefs(primal, traced.primal().out_info)
    return _passes(_as_evaluation(written), arguments or traced.arguments, traced.frames)


def _as_evaluation(written: TracedFunction) -> _Primal:
    """Return a traced function as one that can be traced; no user code runs."""
    jax = jax_compat.import_jax()
    treedef = jax.tree.structure(written.out_info)
    evaluate = jax_compat.as_function(written.jaxpr)

    def call(diff_leaves: Sequence[Any], rest_leaves: Sequence[Any]) -> Any:
        return jax.tree.unflatten(treedef, evaluate(*diff_leaves, *rest_leaves))

    return call


def _passes(primal: _Primal, arguments: Arguments, frames: Frames) -> Trace:
    """Trace the passes of a function of the differentiated and the other traced leaves.

    The function returns its output and auxiliary arrays.
    """
    with jax_compat.in_mesh(arguments.context):
        return _passes_here(primal, arguments, frames)


def _passes_here(primal: _Primal, arguments: Arguments, frames: Frames) -> Trace:
    jax = jax_compat.import_jax()

    def forward(diff_leaves: Sequence[Any], rest_leaves: Sequence[Any]) -> Any:
        y, vjp, aux = jax.vjp(lambda d: primal(d, rest_leaves), diff_leaves, has_aux=True)
        return (y, aux), vjp

    operands = _operands(arguments)
    traced = jax.jit(forward).trace(*operands)
    jax_compat.settle_derivatives(eqns_in(jax_compat.open_jaxpr(traced.jaxpr)))
    if _foreign(traced, operands):
        # With jax_remat3 a rule that closes over a tracer of the target's own leaves one here, too,
        # but not where the target alone is traced.
        _traced(primal, arguments)
    if jax_compat.held_refs(traced.jaxpr):
        raise InputsError(_UNFOUND)
    (y, aux), vjp = traced.out_info
    _check_differentiable(y)

    def backward(vjp: Any, cotangents: Sequence[Any]) -> Any:
        found = iter(cotangents)
        return vjp(jax.tree.map(lambda s: next(found) if is_inexact(s) else float0(s), y))

    cotangents = [struct(leaf) for leaf in jax.tree.leaves(y) if is_inexact(leaf)]
    try:
        traced_back = jax.jit(backward).trace(vjp, cotangents)
    except Exception as e:
        raise BackwardError(jax_compat.open_jaxpr(traced.jaxpr)) from e
    return Trace(
        arguments=arguments,
        frames=frames,
        forward=jax_compat.open_jaxpr(traced.jaxpr),
        backward=jax_compat.open_jaxpr(traced_back.jaxpr),
        num_outputs=len(jax.tree.leaves((y, aux))),
        num_residuals=len(jax.tree.leaves(vjp)),
        num_cotangents=len(cotangents),
        primal=functools.cache(lambda: _traced(primal, arguments)),
    )


def _traced(primal: _Primal, arguments: Arguments) -> TracedFunction:
    with jax_compat.in_mesh(arguments.context):
        operands = _operands(arguments)
        traced = jax_compat.import_jax().jit(primal).trace(*operands)
        jax_compat.settle_derivatives(eqns_in(jax_compat.open_jaxpr(traced.jaxpr)))
        _check_closed(traced, operands)
        return _without_refs(traced, arguments)


def _without_refs(traced: TracedFunction, arguments: Arguments) -> TracedFunction:
    """Return the `TraceWithoutRefs` of a traced function with Refs; one without as it is."""
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
    known = {id(refs[i]): n for n, i in enumerate(arguments.dynamic) if i in refs}
    unknown = []
    for var, ref in reached.items():
        if id(ref) in known:
            inputs[known[id(ref)]] = var
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
    ends = [len(jax.tree.leaves(each)) for each in ((result, aux), held)]
    first, second = ends[0], sum(ends)
    outvars = list(jaxpr.outvars[: len(outvars)])
    made = dict(zip(sorted(held), outvars[first:second], strict=True))
    made |= {
        path: var
        for path, var in in_the_end.items()
        if path not in held and (wanted is None or path in wanted)
    }
    shapes = {path: jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for path, v in made.items()}
    outvars[first:second] = [made[path] for path in sorted(made)]
    return TraceWithoutRefs(
        jax_compat.with_outvars(closed, outvars),
        (result, (aux, (shapes, loose, moved))),
        tuple(ref for _, ref in unknown),
    )


_UNFOUND = (
    "the target reads a jax.Ref that is neither one of its arguments nor found in its closure; pass"
    " it as an argument"
)


def _check_closed(traced: TracedFunction, operands: tuple[list[Any], list[Any]]) -> None:
    """Check that a function depends on its arguments alone.

    JAX makes an operand, ahead of them, of each tracer of another trace that it comes upon.

    Raises:
      InputsError: it depends on such a tracer.
    """
    foreign = _foreign(traced, operands)
    if not foreign:
        return
    listed = ", ".join(v.aval.str_short() for v in foreign[:3])
    more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
    raise InputsError(
        f"the target reads values leaked from another trace ({listed}{more}); what a loss computes"
        " and the rest of a step reads has to be returned by it (has_aux=True), and no earlier call"
        f" nor the inputs function may leave traced arrays behind, for example in a global\n"
        f"  {CONCRETE}"
    )


def _foreign(traced: TracedFunction, operands: tuple[list[Any], list[Any]]) -> list[Any]:
    """Return the invars of a traced function that are none of its operands."""
    invars = jax_compat.open_jaxpr(traced.jaxpr).invars
    return list(invars[: len(invars) - sum(map(len, operands))])


def is_real_scalar(result: Any) -> bool:
    """Return whether what a function returns is one real scalar, as `jax.grad` needs it.

    One in a list or a dict, such as a dict of metrics, is none.
    """
    if isinstance(result, list | tuple | dict):
        return False
    jax = jax_compat.import_jax()
    leaves = jax.tree.leaves(result)
    if len(leaves) != 1 or not hasattr(leaves[0], "dtype"):
        return len(leaves) == 1 and isinstance(leaves[0], float)
    return leaves[0].shape == () and bool(jax.numpy.issubdtype(leaves[0].dtype, jax.numpy.floating))


def is_scalar_with_aux(result: Any) -> bool:
    """Return whether what a function returns may be a real scalar and auxiliary data."""
    return isinstance(result, tuple) and len(result) == 2 and is_real_scalar(result[0])


def _returned(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of length {len(result)}"
    return "an array" if hasattr(result, "dtype") else f"a value of type {type(result).__name__}"


def _check_differentiable(y: Any) -> None:
    leaves = jax_compat.import_jax().tree.leaves(y)
    if any(is_inexact(leaf) for leaf in leaves):
        return
    if not leaves:
        raise InputsError("the function returns no arrays, so there is nothing to differentiate")
    dtypes = ", ".join(sorted({str(leaf.dtype) for leaf in leaves}))
    raise InputsError(
        f"the function returns only {dtypes}, which has no gradient; return a float or complex one,"
        " or use mode program to take it as it is"
    )
