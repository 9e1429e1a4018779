"""What the inputs and outputs of a training step are: parameters, optimizer state, batch.

Told by the way that values take through the step, not by names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid.inspector import _jax
from jaxresid.inspector.nesting import Nest, nests
from jaxresid.inspector.phases import BACKWARD, FORWARD, Passes
from jaxresid.inspector.program import Role
from jaxresid.inspector.steps import StepTrace

PARAMETERS, OPTIMIZER_STATE, BATCH = "parameters", "optimizer-state", "batch"

# Of several operands at once each result is its own: a tree that is moved is one eqn.
_SIDE_BY_SIDE = frozenset({"device_put", "optimization_barrier"})


@dataclass(frozen=True, slots=True)
class _Flow:
    """What comes together in a variable.

    Attributes:
      inputs: those inputs, a bit each, that reach it with no derivative on the way.
      is_after: whether a gradient has a part in it.
      is_gradient: whether a backward pass itself makes it.
    """

    inputs: int = 0
    is_after: bool = False
    is_gradient: bool = False

    def __or__(self, other: _Flow) -> _Flow:
        return _Flow(
            self.inputs | other.inputs,
            self.is_after or other.is_after,
            self.is_gradient or other.is_gradient,
        )


_NOTHING = _Flow()


def roles(step: StepTrace) -> tuple[tuple[Role, ...], tuple[Role, ...]]:
    """The roles of a step's inputs (its constants, then its arguments) and of its outputs.

    `parameters` are read by a forward pass and come back changed by a gradient, or their gradient
    is returned; `optimizer-state` comes back and no forward pass reads it; `batch` is read by a
    forward pass and stands in an argument without any of these; the rest, such as running means or
    frozen layers beside parameters, is `argument`. An output is a `gradient` where a backward pass
    makes it, what its input is where it is the next value of a donated one, else `output`.
    """
    jaxpr = step.jaxpr
    found = _ways(step)
    lead = len(jaxpr.invars) - len(step.arguments.dynamic)
    holders = [-1] * lead + _argument_numbers(step)
    own = {holders[i] for i in (*found.parameters, *found.state)}
    inputs = [Role("constant")] * len(jaxpr.constvars)
    kinds = ["gradient" if is_gradient else "output" for is_gradient in found.is_gradient]
    for i, path in enumerate(step.inputs):
        kind = "argument"
        if path is None:
            kind = "constant"
        elif i in found.parameters:
            kind = PARAMETERS
        elif i in found.state:
            kind = OPTIMIZER_STATE
        elif i in found.fed - found.carried and holders[i] not in own:
            kind = BATCH
        inputs.append(Role(kind, path, step.donated[i]))
        if step.donated[i]:
            for j in found.parameters.get(i, set()) | found.state.get(i, set()):
                kinds[j] = kind
    outputs = zip(kinds, step.outputs, strict=True)
    return tuple(inputs), tuple(Role(kind, path) for kind, path in outputs)


@dataclass(frozen=True, slots=True)
class _Ways:
    """How inputs go through a step, by number.

    Attributes:
      fed: those that a forward pass reads.
      parameters, state: an input -> the outputs that are its next value, or its gradient.
      carried: those that no gradient changes and whose next value a forward pass makes, such as
        running means.
      is_gradient: for each output whether a backward pass itself makes it.
    """

    fed: frozenset[int]
    parameters: dict[int, set[int]]
    state: dict[int, set[int]]
    carried: frozenset[int]
    is_gradient: tuple[bool, ...]


def _ways(step: StepTrace) -> _Ways:
    jaxpr = step.jaxpr
    flows = _Flows()
    given = [_NOTHING] * len(jaxpr.constvars) + [_Flow(1 << i) for i in range(len(jaxpr.invars))]
    made = flows.of(jaxpr, given)
    fed = frozenset(_bits(flows.fed))
    like: dict[Any, int] = {}
    for i, v in enumerate(jaxpr.invars):
        like[_described(v)] = like.get(_described(v), 0) | 1 << i
    back: dict[int, set[int]] = {}
    for j, (v, flow) in enumerate(zip(jaxpr.outvars, made, strict=True)):
        for i in _bits(flow.inputs & like.get(_described(v), 0)):
            back.setdefault(i, set()).add(j)
    after = {j for j, flow in enumerate(made) if flow.is_after}
    parameters = {i: at for i, at in back.items() if i in fed and at & after}
    # What an optimizer keeps flows into the parameters as well as into its own next value.
    nexts = set().union(*parameters.values())
    state = {i: at - nexts for i, at in back.items() if i not in fed and at - nexts}
    # Parameters may be remade of a copy that the optimizer keeps; the copy needs a next value too.
    needed = {j for at in state.values() if len(at) == 1 for j in at}
    paired = _paired(step, sorted(fed - parameters.keys()), sorted(after - nexts - needed))
    parameters |= paired
    nexts.update(*paired.values())
    state = {i: at - nexts for i, at in state.items()}
    others = set(range(len(made))) - nexts - needed
    nested = [i for i in sorted(fed - parameters.keys()) if _keys(step.inputs[i] or "")]
    carried = frozenset(_paired(step, nested, sorted(others)))
    is_gradient = tuple(flow.is_gradient for flow in made)
    return _Ways(fed, parameters, state, carried, is_gradient)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _described(var: Any) -> tuple[Any, Any]:
    return getattr(var.aval, "shape", None), getattr(var.aval, "dtype", None)


def _paired(step: StepTrace, inputs: Sequence[int], outputs: Sequence[int]) -> dict[int, set[int]]:
    """The inputs whose gradient, or whose next value made of something else, is among outputs,
    each with that output.

    They stand in the same place of a like tree: `params['w']` and `[0]['w']`. Each output stands
    for one input; inputs that are deep in a tree choose first.
    """
    keys = {i: _keys(path) for i in inputs if (path := step.inputs[i]) is not None}
    free: dict[Any, list[int]] = {}
    for j in outputs:
        free.setdefault(_described(step.jaxpr.outvars[j]), []).append(j)
    found = {}
    for i in sorted(keys, key=lambda i: -len(keys[i])):
        alike = free.get(_described(step.jaxpr.invars[i]), [])
        for j in alike:
            tail = _keys(step.outputs[j])
            if tail[len(tail) - len(keys[i]) :] == keys[i]:
                found[i] = {j}
                alike.remove(j)
                break
    return found


def _keys(path: str) -> list[str]:
    """`params['layers'][3].w` -> `['layers']`, `[3]`, `.w`."""
    return re.findall(r"\[(?:'[^']*'|[^\]]*)\]|(?<=[\w\]])\.\w+|^\.\w+", path)


def _argument_numbers(step: StepTrace) -> list[int]:
    """For each input that is an argument, the number of the argument that holds it."""
    positional, named = step.arguments.treedef.children()
    counts = [tree.num_leaves for tree in (*positional.children(), *named.children())]
    holders = [n for n, count in enumerate(counts) for _ in range(count)]
    return [holders[i] for i in step.arguments.dynamic]


class _Flows:
    """Follows values through a step; `fed` are the inputs that a forward pass reads."""

    def __init__(self) -> None:
        self.fed = 0
        self._passes = Passes()

    def of(self, jaxpr: Any, given: Sequence[_Flow]) -> list[_Flow]:
        """What comes together in each outvar of a jaxpr called with `given`, constants first."""
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], given, strict=True))
        for eqn in jaxpr.eqns:
            operands = [_NOTHING if _jax.is_literal(v) else env[v] for v in eqn.invars]
            env.update(zip(eqn.outvars, self._results(eqn, operands), strict=True))
        return [_NOTHING if _jax.is_literal(v) else env[v] for v in jaxpr.outvars]

    def _results(self, eqn: Any, operands: Sequence[_Flow]) -> Sequence[_Flow]:
        together = _NOTHING
        for flow in operands:
            together |= flow
        phase = self._passes.of(eqn)
        if phase == FORWARD:
            for flow in operands:
                # What an optimizer keeps reaches the next step of a loop with the parameters.
                self.fed |= 0 if flow.is_after else flow.inputs
            return [_Flow(is_after=together.is_after)] * len(eqn.outvars)
        if phase == BACKWARD:
            return [_Flow(is_after=True, is_gradient=True)] * len(eqn.outvars)
        if _jax.primitive_name(eqn) in _SIDE_BY_SIDE:
            return [_Flow(flow.inputs, flow.is_after) for flow in operands]
        found = nests(eqn)
        if not found:
            return [_Flow(together.inputs, together.is_after)] * len(eqn.outvars)
        results = [_NOTHING] * len(eqn.outvars)
        for nest in found:
            for i, flow in zip(nest.results, self._body(nest, operands), strict=True):
                if i is not None:
                    results[i] |= flow
        return results

    def _body(self, nest: Nest, operands: Sequence[_Flow]) -> list[_Flow]:
        """What comes together in a body's outvars, of a loop's after any number of trips."""
        constants = [_NOTHING] * len(nest.jaxpr.constvars)
        given = [operands[i] for i in nest.operands]
        while True:
            made = self.of(nest.jaxpr, constants + given)
            entering = list(given)
            for into, out in nest.carries.items():
                entering[into] |= made[out]
                made[out] |= given[into]
            if entering == given:
                return made
            given = entering
