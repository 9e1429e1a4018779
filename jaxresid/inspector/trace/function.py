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
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.inspector.call.arguments import Arguments
from jaxresid.inspector.call.leaves import float0, is_inexact, split_over_devices, struct
from jaxresid.inspector.call.sharding import Sharding
from jaxresid.inspector.jaxpr.callsites import contains_remat, may_hold_checkpoints
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.inline import flattened
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.jaxpr.while_loops.trips import WhileTrips
from jaxresid.inspector.trace.primal import (
    Primal,
    TracedFunction,
    TraceWithoutRefs,
    as_evaluation,
    foreign,
    marked,
    operands,
    primal_of,
    primal_trace,
    traced_primal,
)
from jaxresid.inspector.trace.traced import Lowerable, Traced
from jaxresid.jax_compat.jaxpr_types import ClosedJaxpr, Jaxpr, Var


@dataclass(frozen=True)
class Trace(Traced):
    """The jaxprs of one differentiated function.

    Attributes:
      forward: invars are `arguments.dynamic`; outvars are the primal outputs, then the residuals.
      backward: invars are the residuals, then the cotangents.
      primal: traces the function itself, which still has its checkpoints; a `jax.stages.Traced` of
        the differentiated leaves, then the other traced ones.
      again: traces the function again with arguments whose leaves may be others, as it is called
        and not as its primal jaxpr has it; None for one that was rewritten.
      pieces: on a mesh, the shapes that a device holds of `kept`, as the compiler
        says; None where it was not asked.
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
        return self._paths_of(self.forward)

    @property
    def primal_inputs(self) -> tuple[str | None, ...]:
        return self._paths_of(self.written)

    @property
    def backward_inputs(self) -> tuple[str | None, ...]:
        paths = dict(zip(self.forward.invars, self.inputs, strict=True))
        path_of = {
            residual: paths.get(kept)
            for kept, residual in zip(self.kept, self.read, strict=True)
            if not jax_compat.is_literal(kept)
        }
        return tuple(path_of.get(var) for var in self.backward.invars)

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
            if any(v in reached for v in jax_compat.variables(eqn.invars)):
                reached.update(eqn.outvars)
        outvars = jax_compat.variables(self.backward.outvars)
        return reached.isdisjoint(outvars)

    @property
    def sharding(self) -> Sharding | None:
        pairs = zip(self.kept, self.pieces or (), strict=False)
        pieces = {
            v: piece for v, piece in pairs if piece is not None and not jax_compat.is_literal(v)
        }
        return self.arguments.sharding(self.forward.invars, pieces)

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
        trips = WhileTrips(self.arguments.trips)
        lead = len(self.backward.invars) - self.num_cotangents - self.num_residuals
        handed = {lead + i: self.num_outputs + i for i in range(self.num_residuals)}
        trips.add(self.forward, self.backward, handed)
        return trips

    @property
    def written(self) -> Jaxpr:
        return jax_compat.open_jaxpr(self.primal().jaxpr)

    @property
    def first(self) -> Jaxpr:
        return self.forward

    @functools.cached_property
    def holds_gradient(self) -> bool:
        """Whether the function takes a gradient itself, as a training step does.

        Eqns of the forward pass are then tagged as a backward pass.
        """
        for eqn in eqns_in(self.forward):
            _, tag, inside = jax_compat.name_stack(eqn).partition("transpose(")
            if tag and "jvp(" in inside:
                return True
        return False

    @functools.cached_property
    def has_checkpoints(self) -> bool:
        """Whether the function may hold checkpoints, told without another trace."""
        return contains_remat(self.backward) or may_hold_checkpoints(self.forward, self.frames)

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(self.arguments.paths[i] for i in self.arguments.dynamic)

    def runnable(self) -> Callable[[Sequence[Any]], list[Any]]:
        return self._runnable(auxiliary=False)

    def _runnable(self, *, auxiliary: bool) -> Callable[[Sequence[Any]], list[Any]]:
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
        """Return the function with all its outputs, and its gradients split as the arguments."""
        leaves = [self.arguments.leaves[i] for i in self.arguments.dynamic]
        count = len(self.arguments.having("differentiated"))
        gradients = [split_over_devices(leaf) for leaf in leaves[:count]]
        return Lowerable(
            self._runnable(auxiliary=True), leaves, [None] * self.num_outputs + gradients
        )

    def tracing_in(self, around: Callable[[Callable[[], Any]], Callable[[], Any]]) -> Trace:
        return replace(self, primal=around(self.primal))

    def run_again(self, fun: Callable[..., Any]) -> None:
        primal_trace(fun, self.arguments, False)


class BackwardError(Exception):
    """The forward pass of a function traced, its transposition failed as the cause says."""

    def __init__(self, forward: Jaxpr) -> None:
        self.forward = forward
        super().__init__("the backward pass cannot be traced")


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
      stops_at: whether to differentiate nothing, told from what the function returned.

    Raises:
      StoppedError: it returned what `stops_at` stops at.
      BackwardError: the forward pass traced, its transposition failed.
      InputsError: the outputs have no gradient.
      Exception: whatever the function raises while JAX traces it.
    """

    def again(arguments: Arguments) -> Trace:
        primal = primal_of(fun, arguments, has_aux, stops_at=stops_at)
        written = functools.cache(lambda: marked(primal, arguments))
        # What is differentiated holds no Refs.
        passes = _passes(as_evaluation(written()) if arguments.refs else primal, arguments, frames)
        return replace(passes, primal=written)

    return replace(again(arguments), again=again, has_aux=has_aux)


def retrace(traced: Trace, primal: ClosedJaxpr, arguments: Arguments | None = None) -> Trace:
    """Return the trace of the same function after its primal jaxpr was rewritten.

    No user code runs.

    Args:
      arguments: the arguments of a jaxpr that has only some of the inputs.
    """
    written = TraceWithoutRefs(primal, traced.primal().out_info)
    return _passes(as_evaluation(written), arguments or traced.arguments, traced.frames)


def _passes(primal: Primal, arguments: Arguments, frames: Frames) -> Trace:
    """Trace the passes of a function that returns its output and auxiliary arrays."""
    with jax_compat.in_mesh(arguments.context):
        return _passes_here(primal, arguments, frames)


def _passes_here(primal: Primal, arguments: Arguments, frames: Frames) -> Trace:
    jax = jax_compat.import_jax()

    def forward(diff_leaves: Sequence[Any], rest_leaves: Sequence[Any]) -> Any:
        y, vjp, aux = jax.vjp(lambda d: primal(d, rest_leaves), diff_leaves, has_aux=True)
        return (y, aux), vjp

    leaves = operands(arguments)
    traced = jax.jit(forward).trace(*leaves)
    jax_compat.settle_derivatives(eqns_in(jax_compat.open_jaxpr(traced.jaxpr)))
    if foreign(traced, leaves):
        # With jax_remat3 a rule that closes over a tracer of the target's own leaves one here, too,
        # but not where the target alone is traced.
        traced_primal(primal, arguments)
    if jax_compat.held_refs(traced.jaxpr):
        raise InputsError(_UNFOUND)
    (y, aux), vjp = traced.out_info
    _check_differentiable(y)

    def backward(vjp: Any, cotangents: Sequence[Any]) -> Any:
        values = iter(cotangents)
        return vjp(jax.tree.map(lambda s: next(values) if is_inexact(s) else float0(s), y))

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
        primal=functools.cache(lambda: traced_primal(primal, arguments)),
    )


_UNFOUND = (
    "the target reads a jax.Ref that is neither one of its arguments nor found in its closure; pass"
    " it as an argument"
)


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
