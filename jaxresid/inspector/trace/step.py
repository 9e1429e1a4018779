"""Trace functions that hold their own gradients, such as a whole training step.

Of such a function no derivative is taken: its jaxpr holds the forward pass, the backward pass and
what is done with the gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import calls_user_code
from jaxresid.inspector.call.arguments import Arguments
from jaxresid.inspector.call.sharding import Sharding
from jaxresid.inspector.jaxpr.callsites import may_hold_checkpoints
from jaxresid.inspector.jaxpr.flows import is_inexact
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.jaxpr.phases import BACKWARD, Passes
from jaxresid.inspector.jaxpr.primitives import RULES
from jaxresid.inspector.jaxpr.while_loops.trips import WhileTrips
from jaxresid.inspector.trace.changes import (
    changes,
    changes_by_step,
    drops_gradients,
    paths_of,
    trace_with_changes,
)
from jaxresid.inspector.trace.function import Trace, TracedFunction, traced_once
from jaxresid.inspector.trace.jitted import as_jitted, jitted_with, operands, with_sharding
from jaxresid.inspector.trace.traced import Lowerable, Traced
from jaxresid.jax_compat.jaxpr_types import ClosedJaxpr, Jaxpr, Var


@dataclass(frozen=True)
class StepTrace(Traced):
    """The jaxpr of a function that holds its own gradients.

    `arguments.dynamic` is the order of the inputs; which of them a gradient is taken of is for the
    jaxpr to say, see `step_roles`.

    Attributes:
      closed: the closed jaxpr as JAX gives it, with its constants.
      donated: for each invar whether the function gives its buffer away.
      outputs: the path of each outvar in what the function returns, `[0]['w']`; after these, for
        what it changes in place, the path of the input.
      num_returned: how many are returned.
      to_compile: returns what a compiler is given in its place, with the code of checkpoints that
        were removed where these stood: of a call JAX makes other eqns, and compilers tell them
        apart. None: itself.
      passes: the passes of its eqns, and of those of the steps that it was made from, which share
        most.
    """

    closed: ClosedJaxpr
    donated: tuple[bool, ...]
    outputs: tuple[str, ...]
    num_returned: int
    passes: Passes = field(default_factory=Passes, compare=False, repr=False)
    to_compile: Callable[[], StepTrace] | None = field(default=None, compare=False, repr=False)

    holds_backward = True

    @property
    def sharding(self) -> Sharding | None:
        """The split of the step over the arguments' mesh; None without one."""
        return self.arguments.sharding(self.jaxpr.invars, {})

    @property
    def jaxpr(self) -> Jaxpr:
        """The open jaxpr."""
        return jax_compat.open_jaxpr(self.closed)

    @functools.cached_property
    def inputs(self) -> tuple[str | None, ...]:
        """The path of each invar; None for one that is no argument (a constant in front)."""
        return self._paths_of(self.jaxpr)

    @property
    def updates(self) -> dict[int, int]:
        """The inputs that are changed in place: an invar -> the outvar that is its next value."""
        changed = {path: self.num_returned + i for i, path in enumerate(self._changed)}
        return {i: changed[path] for i, path in enumerate(self.inputs) if path in changed}

    @property
    def _changed(self) -> tuple[str, ...]:
        return self.outputs[self.num_returned :]

    @functools.cached_property
    def tops(self) -> tuple[Level]:
        """The top level of the jaxpr."""
        return (Level(self.jaxpr, inputs=self.inputs),)

    @functools.cached_property
    def trips(self) -> WhileTrips:
        """The trips of its while loops."""
        found = WhileTrips(self.arguments.trips)
        found.add(self.jaxpr)
        return found

    @functools.cached_property
    def holds_gradient(self) -> bool:
        """Whether it takes a gradient anywhere."""
        return BACKWARD in self.passes.within(self.jaxpr)

    @functools.cached_property
    def is_dead(self) -> bool:
        """Whether it takes gradients, and none is part of what it returns or changes."""
        return self.holds_gradient and drops_gradients(self.jaxpr)

    @functools.cached_property
    def kept(self) -> frozenset[Var]:
        """What its gradients keep, as far as that stands in it as the variables that it was."""
        pairs = (pair for eqn in eqns_in(self.jaxpr) for pair in jax_compat.derivatives(eqn))
        taken = {id(derivative): derivative for derivative, _ in pairs if derivative.is_transposed}
        return frozenset(var for derivative in taken.values() for var in derivative.kept)

    @property
    def is_differentiable(self) -> bool:
        """Whether it may as well be asked for its gradient: floats of floats, none given away."""
        if any(self.donated) or not self.arguments.having("differentiated"):
            return False
        paths = {self.arguments.paths[i] for i in self.arguments.having("differentiated")}
        reached = {v for v, p in zip(self.jaxpr.invars, self.inputs, strict=True) if p in paths}
        for eqn in self.jaxpr.eqns:
            if any(not jax_compat.is_literal(v) and v in reached for v in eqn.invars):
                reached.update(v for v in eqn.outvars if is_inexact(v))
        returned = self.jaxpr.outvars[: self.num_returned]
        if not any(not jax_compat.is_literal(v) and v in reached for v in returned):
            return False
        # Reverse-mode differentiation needs to know how often a loop runs, or a rule of its own.
        return not any(
            jax_compat.primitive_name(eqn) == "while" and any(map(is_inexact, eqn.outvars))
            for eqn in eqns_in(self.jaxpr, closed=RULES)
        )

    @property
    def written(self) -> Jaxpr:
        """The open jaxpr itself, whose backward passes hold the checkpoints."""
        return self.jaxpr

    @property
    def first(self) -> Jaxpr:
        """The open jaxpr itself."""
        return self.jaxpr

    @functools.cached_property
    def has_checkpoints(self) -> bool:
        """Whether the step may hold checkpoints."""
        return may_hold_checkpoints(self.jaxpr, self.frames)

    @property
    def parameters(self) -> tuple[str, ...]:
        """What the parameters of the lowered program are called."""
        return tuple(path or "a constant" for path in self.inputs)

    def runnable(self) -> Callable[[Sequence[Any]], list[Any]]:
        """Return the outputs as a function of the dynamic leaves; see `Traced.runnable`."""
        step = jax_compat.as_function(self.closed)
        return lambda leaves: list(step(*leaves))

    def lowerable(self) -> Lowerable:
        """Return the training step as it was jitted.

        It gives away what it was jitted to give away, and its shardings and memory kinds are those
        that it was jitted with.
        """
        if self.to_compile is not None:
            return self.to_compile().lowerable()
        closed = as_jitted(self.closed)
        jaxpr, run = jax_compat.open_jaxpr(closed), jax_compat.as_function(closed)
        leaves = [self.arguments.leaves[i] for i in self.arguments.dynamic]
        inputs, outputs = jitted_with(jaxpr)
        given = [
            leaf if asked is None else with_sharding(leaf, asked)
            for leaf, asked in zip(operands(jaxpr, leaves), inputs, strict=True)
        ]
        donated = [i for i, is_given in enumerate(self.donated) if is_given]
        return Lowerable(lambda values: run(*values), given, outputs, donated)

    def run_again(self, fun: Callable[..., Any]) -> None:
        """Run the step once more while JAX traces it; see `Traced.run_again`."""
        step_primal(fun, self.arguments)


def step_primal(fun: Callable[..., Any], arguments: Arguments) -> TracedFunction:
    """Return the `jax.stages.Traced` of the function itself, as `function.primal_trace` does.

    It is traced without has_aux, and once, also where derivatives have no marks. What it returns
    that is no array is left out: the modules that an Equinox step returns hold functions.

    Raises:
      Exception: whatever the function raises while JAX traces it.
    """
    return traced_once(_returning_arrays(fun), arguments)


def step_trace_with_changes(
    fun: Callable[..., Any], arguments: Arguments
) -> tuple[TracedFunction, Arguments]:
    """Return what `step_primal` does, and the arguments that the function turns out to have.

    See `changes.trace_with_changes`.
    """
    return trace_with_changes(_returning_arrays(fun), arguments)


def ignores_gradients(fun: Callable[..., Any], traced: Trace) -> bool:
    """Return whether a differentiated function takes gradients itself and does nothing with them.

    Of a jitted function that is differentiated JAX drops what nothing depends on.
    """
    if not traced.holds_gradient and not is_jitted(fun):
        return False
    return holds_gradient(traced.written) and drops_gradients(traced.written)


def is_jitted(fun: Callable[..., Any]) -> bool:
    """Return whether a function is jitted: by JAX, Flax or Equinox, which give it a `lower`."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    try:
        return callable(getattr(fun, "lower", None))
    except Exception:  # a callable's own __getattr__ may raise anything
        return False


def holds_gradient(jaxpr: Jaxpr) -> bool:
    """Return whether an open jaxpr holds the backward pass of some gradient, at any depth."""
    return BACKWARD in Passes().within(jaxpr)


def step_trace(primal: TracedFunction, arguments: Arguments, frames: Frames) -> StepTrace:
    """Return the trace of the step that was traced as `primal`; nothing is traced again.

    Args:
      primal: the traced function, see `step_primal`.
      arguments: the arguments that it was traced with.
      frames: reads the tracebacks of its eqns.
    """
    jaxpr = jax_compat.open_jaxpr(primal.jaxpr)
    returned = paths_of(primal.out_info[0])
    made = changes(primal, arguments)
    order = {arguments.paths[i]: n for n, i in enumerate(arguments.dynamic)}
    changed = sorted(changes_by_step(made), key=lambda c: order.get(c.path, len(order)))
    outvars = [*jaxpr.outvars[: len(returned)], *(jaxpr.outvars[c.output] for c in changed)]
    closed = primal.jaxpr
    if outvars != list(jaxpr.outvars):
        closed = jax_compat.with_outvars(closed, outvars)
        jaxpr = jax_compat.open_jaxpr(closed)
    given = _donated(jaxpr)
    # A Ref is written where it stands.
    refs = {arguments.paths[i] for i in arguments.refs} & {c.path for c in changed}
    paths = [arguments.paths[i] for i in arguments.dynamic]
    given |= {v for v, p in zip(reversed(jaxpr.invars), reversed(paths), strict=False) if p in refs}
    return StepTrace(
        arguments=replace(arguments, changing=frozenset(c.path for c in changed)),
        frames=frames,
        closed=closed,
        donated=tuple(v in given for v in jaxpr.invars),
        outputs=(*returned, *(c.path for c in changed)),
        num_returned=len(returned),
    )


def _donated(jaxpr: Jaxpr) -> set[Var]:
    """Return the variables that a jitted function called in a jaxpr is given for good.

    A variable that another eqn reads is not among them: it is kept.
    """
    given: dict[Var, int] = {}
    for eqn in jaxpr.eqns:
        marks = (
            eqn.params.get("donated_invars", ()) if jax_compat.primitive_name(eqn) == "jit" else ()
        )
        inner = set()
        if marks and not any(marks) and len(jaxpr.eqns) == 1:
            # A jitted function around the one that donates.
            body = jax_compat.open_jaxpr(eqn.params["jaxpr"])
            found = _donated(body)
            inner = {i for i, v in enumerate(body.invars) if v in found}
        for i, v in enumerate(eqn.invars):
            if not jax_compat.is_literal(v):
                is_given = i in inner or (i < len(marks) and marks[i])
                given[v] = given.get(v, 0) + (1 if is_given else 2)
    return {v for v, uses in given.items() if uses == 1}


def _returning_arrays(fun: Callable[..., Any]) -> Callable[..., Any]:
    jax = jax_compat.import_jax()

    @functools.wraps(fun)  # its signature names the arguments
    @calls_user_code
    def call(*args: Any, **kwargs: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf if _is_array(leaf) else None, fun(*args, **kwargs))

    return call


def _is_array(leaf: Any) -> bool:
    if jax_compat.is_ref(leaf):  # which cannot be returned; what it holds is a change
        return False
    return hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float | complex)
