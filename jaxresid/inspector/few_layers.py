"""Work out the figures of a function that repeats a layer from the trace of a few of its layers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from jaxresid import jax_compat
from jaxresid.inspector.call.arguments import Arguments
from jaxresid.inspector.cost.jaxpr_cost import passes_cost
from jaxresid.inspector.jaxpr.alike.repeats import (
    BEFORE,
    LAST,
    Layer,
    Run,
    Shortened,
    has_layer,
    layers_of,
)
from jaxresid.inspector.jaxpr.nesting import Nest, eqns_in, nests
from jaxresid.inspector.memory.lowered import Lowered, lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.memory.unfolded import unfolded
from jaxresid.inspector.program.build import Program, all_ops, value_and_gradients
from jaxresid.inspector.program.transfers import moves
from jaxresid.inspector.residuals.offloading import kept_each
from jaxresid.inspector.trace.function import Trace, retrace
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import Cost, Phases


@dataclass(frozen=True, slots=True, eq=False)
class FewLayers:
    """The trace of a function of which layers were left out.

    Attributes:
      trace: the trace.
      numbers: the places in `Arguments.dynamic` of the whole function's leaves that it has.
      runs: what was left out.
    """

    trace: Trace
    numbers: tuple[int, ...]
    runs: tuple[Run, ...]

    def split(self, arguments: Arguments) -> FewLayers:
        """Return the trace with other arguments of the whole function, of the same types."""
        return replace(self, trace=replace(self.trace, arguments=arguments.some(self.numbers)))


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """What is known of a whole function from a few of its layers; see `choices.Variant`.

    Attributes:
      passes: the costs of the forward and of the backward pass.
    """

    kept_nbytes: int
    host_nbytes: int
    peak_nbytes: int
    passes: tuple[Cost, Cost]
    lowered: Lowered

    @property
    def phases(self) -> Phases:
        """The costs of the passes; recomputation is in the backward pass."""
        return Phases(*self.passes, Cost())


def can_leave_out_layers(traced: Trace) -> bool:
    """Return whether the figures of a function may be worked out from a few of its layers."""
    arguments = traced.arguments
    if arguments.refs or arguments.mesh is not None:
        return False
    return len(traced.written.invars) == len(arguments.dynamic)


def few_layers(traced: Trace, short: Shortened) -> FewLayers:
    """Return the trace of a function whose primal jaxpr was rewritten, of a few of its layers.

    Args:
      traced: the trace before.
      short: the rewritten jaxpr, with layers left out.

    Raises:
      Exception: whatever JAX raises where it cannot differentiate that.
    """
    primal = jax_compat.with_jaxpr(traced.primal().jaxpr, short.jaxpr)
    made = retrace(traced, primal, traced.arguments.some(short.invars))
    return FewLayers(made, short.invars, short.runs)


def whole_figures(few: FewLayers, profile: Profile) -> Figures | None:
    """Return the figures that the trace of the whole function gives.

    Args:
      few: the trace of a few layers.
      profile: the profile of the compiler.

    Returns:
      The figures; None where two layers in the middle do not lead to the same.
    """
    traced = few.trace
    lowered = lowered_whole(few, profile)
    layers = _LayersOf(traced)
    if lowered is None or not layers.is_clear:
        return None
    kept = _kept(traced, lowered.program, layers, few.runs)
    passes = _passes(traced, layers, few.runs)
    if kept is None or passes is None:
        return None
    return Figures(kept["device"], kept["host"], peak_nbytes(lowered), passes, lowered)


def lowered_whole(few: FewLayers, profile: Profile) -> Lowered | None:
    """Return the whole program as a compiler runs it, with layers left out of its ops.

    Args:
      few: the trace of a few layers.
      profile: the profile of the compiler.

    Returns:
      The program; None where two layers in the middle do not lead to the same kernels.
    """
    traced = few.trace
    program = value_and_gradients(traced)
    if _has_hidden_moves(program):
        return None
    # What leads the arguments are constants.
    forward, dynamic = traced.forward, traced.arguments.dynamic
    lead = len(forward.constvars) + len(forward.invars) - len(dynamic)
    count = len(traced.arguments.having("differentiated"))
    gradients = {lead + i: traced.num_outputs + i for i in range(count)}
    runs = [
        replace(run, inputs=tuple(tuple(lead + i for i in own) for own in run.inputs))
        for run in few.runs
    ]
    return unfolded(lower(program, profile), runs, gradients)


def _has_hidden_moves(program: Program) -> bool:
    """Return whether anything is moved to or from host memory that no value says it is in.

    No kernel moves that, so it is not known how often it is moved.
    """
    return any(
        move.before.memory == move.after.memory
        for op in all_ops(program.block.ops)
        for move in moves(op, frozenset())
    )


def _alike(runs: Iterable[Run]) -> list[tuple[Layer, Layer, int]]:
    """Return for each run two layers that are like those left out, and how many these are."""
    return [((r.number, BEFORE - 1), (r.number, BEFORE), r.omitted) for r in runs]


def _kept(
    traced: Trace, program: Program, found: _LayersOf, runs: Iterable[Run]
) -> Counter[str] | None:
    """Return the bytes of computed residuals by the memory that they are in."""
    total = Counter[str]()
    of_layers: dict[Layer | None, Counter[str]] = defaultdict(Counter)
    for var, each in kept_each(traced, program):
        eqn = found.maker(traced.forward, var)
        nbytes = of_layers[None if eqn is None else found.layers[id(eqn)]]
        for kept in each:
            nbytes[kept.memory] += kept.nbytes
            total[kept.memory] += kept.nbytes
    for one, other, count in _alike(runs):
        if of_layers[one] != of_layers[other]:
            return None
        for memory, each_nbytes in of_layers[one].items():
            total[memory] += each_nbytes * count
    return total


def _passes(traced: Trace, found: _LayersOf, runs: Iterable[Run]) -> tuple[Cost, Cost] | None:
    """Return the costs of the passes; None where two layers in the middle differ in one."""
    layers = dict(found.layers)
    if not _assign_zeros(traced, runs, found, layers):
        return None
    forward, backward = passes_cost(traced)

    def costs(layer: Layer) -> tuple[Cost, Cost]:
        return passes_cost(traced, lambda eqn: layers.get(id(eqn)) == layer, found.opened)

    for one, other, count in _alike(runs):
        each = costs(one)
        if each != costs(other):
            return None
        forward, backward = forward + each[0] * count, backward + each[1] * count
    return forward, backward


class _LayersOf:
    """The layers of the eqns of a trace.

    Attributes:
      layers: by the id of an eqn.
      opened: the calls that hold eqns of several layers, by their ids.
      is_clear: whether what is in no layer, or in the outer ones, reads nothing of those between.
    """

    def __init__(self, traced: Trace) -> None:
        self.layers: dict[int, Layer | None] = {}
        self.opened: dict[int, Nest] = {}
        self._makers: dict[int, dict[Var, tuple[Eqn, int]]] = {}
        self.is_clear = all(map(self._look, (traced.forward, traced.backward)))

    def _look(self, jaxpr: Jaxpr) -> bool:
        stacks = [jax_compat.name_stack(eqn) for eqn in jaxpr.eqns]
        found = layers_of(stacks)
        is_clear = True
        for eqn, stack in zip(jaxpr.eqns, stacks, strict=True):
            inner = () if has_layer(stack) else nests(eqn)
            if len(inner) == 1 and inner[0].kind == "call" and _holds_layers(inner[0].jaxpr):
                self.opened[id(eqn)] = inner[0]
                is_clear = self._look(inner[0].jaxpr) and is_clear
        self.layers.update(zip(map(id, jaxpr.eqns), found, strict=True))
        return is_clear and _is_by_layers(jaxpr, found, self.opened)

    def maker(self, jaxpr: Jaxpr, var: Var) -> Eqn | None:
        """Return the eqn that makes a value, in a call perhaps; None for an input."""
        if jax_compat.is_literal(var):
            return None
        if id(jaxpr) not in self._makers:
            self._makers[id(jaxpr)] = {
                v: (eqn, i) for eqn in jaxpr.eqns for i, v in enumerate(eqn.outvars)
            }
        made = self._makers[id(jaxpr)].get(var)
        if made is None:
            return None
        eqn, i = made
        nest = self.opened.get(id(eqn))
        return eqn if nest is None else self.maker(nest.jaxpr, nest.jaxpr.outvars[i])


def _holds_layers(jaxpr: Jaxpr) -> bool:
    return any(has_layer(jax_compat.name_stack(eqn)) for eqn in eqns_in(jaxpr))


def _assign_zeros(
    traced: Trace, runs: Iterable[Run], found: _LayersOf, layers: dict[int, Layer | None]
) -> bool:
    """Let the zeros that are a layer's gradients belong to that layer, behind which they are made.

    Returns:
      Whether each gradient of a layer's own inputs belongs to it, or to its neighbour, now.
    """
    given: dict[int, Layer] = {}
    for run in runs:
        for layer, own in enumerate(run.inputs):
            for i in own:
                if i >= len(traced.backward.outvars):
                    continue  # not differentiated
                eqn = found.maker(traced.backward, traced.backward.outvars[i])
                if eqn is None:
                    continue
                if all(map(jax_compat.is_literal, eqn.invars)):
                    if given.setdefault(id(eqn), (run.number, layer)) != (run.number, layer):
                        return False
                    continue
                made = layers[id(eqn)]
                if made is None or made[0] != run.number or abs(made[1] - layer) > 1:
                    return False
    layers.update(given)
    return True


def _is_by_layers(jaxpr: Jaxpr, layers: Sequence[Layer | None], opened: Container[int]) -> bool:
    """Return whether what is in no layer, or in the outer ones, reads nothing of those between."""
    made: dict[Var, Layer] = {}
    for eqn, layer in zip(jaxpr.eqns, layers, strict=True):
        if id(eqn) in opened:
            continue
        for v in eqn.invars:
            before = None if jax_compat.is_literal(v) else made.get(v)
            if before is None or before[1] in (0, LAST):
                continue
            if layer is None or layer[0] != before[0] or abs(layer[1] - before[1]) > 1:
                return False
        if layer is not None:
            made.update(dict.fromkeys(eqn.outvars, layer))
    return True
