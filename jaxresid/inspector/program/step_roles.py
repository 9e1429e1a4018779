"""Tell what the inputs and outputs of a training step are: parameters, optimizer state, batch.

They are told by the way that values take through the step, not by names.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.flows import NOTHING, Flow, Flows, bits, is_inexact, shape_and_dtype
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.program.build import ValueRole
from jaxresid.inspector.program.frozen_weights import frozen_weights
from jaxresid.inspector.program.updated_arguments import (
    argument_roles,
    path_keys,
    updated_arguments,
)
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.inspector.trace.taken_gradients import lines_of_gradients
from jaxresid.jax_compat.jaxpr_types import Var
from jaxresid.results import LiveKind

PARAMETERS: Final = "parameters"
OPTIMIZER_STATE: Final = "optimizer-state"
BATCH: Final = "batch"
FROZEN: Final = "frozen-weights"

_SOLVES: Final = frozenset(
    {"cholesky", "lu", "qr", "eigh", "triangular_solve", "custom_linear_solve"}
)

# Of the inputs (constants, then arguments), and of the outputs.
Roles = tuple[tuple[ValueRole, ...], tuple[ValueRole, ...]]


def roles(step: StepTrace) -> Roles:
    """Return the roles of a step's inputs (its constants, then its arguments) and of its outputs.

    `parameters` are read by a forward pass and come back changed by a gradient, or their gradient
    is returned. `optimizer-state` comes back, no forward pass reads it, and it is no metric, that
    is, not made only of what a forward pass makes. `batch` is read by a forward pass, is not
    changed in place, and is in an argument that holds none of these. `frozen-weights` are read by a
    forward pass as the weights of what is made of the batch, and no gradient changes them, see
    `frozen_weights`. The rest, such as running means or metrics, is `argument`. An output is a
    `gradient` where a backward pass makes it; it has the role of its input where it is the next
    value of a donated one; otherwise it is `output`. Without a gradient they are those of
    `argument_roles`.
    """
    if not step.holds_gradient:
        return argument_roles(step)
    jaxpr = step.jaxpr
    holders = argument_numbers(step)
    found = _input_uses(step, holders)
    own = {holders[i] for i in (*found.parameters, *found.state)}
    frozen = frozen_weights(jaxpr, step.passes, found.parameters, sorted(found.unchanged), holders)
    inputs = [ValueRole("constant")] * len(jaxpr.constvars)
    kinds: list[LiveKind] = ["gradient" if each else "output" for each in found.is_gradient]
    for i, path in enumerate(step.inputs):
        kind: LiveKind = "argument"
        if path is None:
            kind = "constant"
        elif i in found.parameters:
            kind = PARAMETERS
        elif i in found.state:
            kind = OPTIMIZER_STATE
        elif i in frozen:
            kind = FROZEN
        elif (
            i in found.fed - found.carried.keys()
            and holders[i] not in own
            and i not in step.updates
        ):
            kind = BATCH
        inputs.append(ValueRole(kind, path, step.donated[i]))
        if step.donated[i]:
            for j in found.parameters.get(i, set()) | found.state.get(i, set()):
                kinds[j] = kind
    for i in frozen & found.carried.keys():
        if step.donated[i]:
            kinds[found.carried[i]] = FROZEN
    outputs = zip(kinds, step.outputs, strict=True)
    return tuple(inputs), tuple(ValueRole(kind, path) for kind, path in outputs)


def next_values(step: StepTrace, *, only_of_itself: bool = False) -> dict[int, frozenset[int]]:
    """Return the inputs that a step returns updated, each with the outputs that are its next value.

    They are parameters and optimizer state, by number. A gradient is no next value.

    Args:
      step: the trace of the step.
      only_of_itself: leave out what nothing but its place tells, and what is not made of the input:
        parameters remade of an optimizer's copy, and what looks like these, updates that the caller
        adds to the parameters.
    """
    if not step.holds_gradient:
        return updated_arguments(step)
    return _nexts(step, _input_uses(step, argument_numbers(step)), only_of_itself=only_of_itself)


def _nexts(
    step: StepTrace, found: _InputUses, *, only_of_itself: bool
) -> dict[int, frozenset[int]]:
    back = {**found.state, **found.parameters}
    each = {i: frozenset(j for j in at if not found.is_gradient[j]) for i, at in back.items()}
    left_out = found.placed if only_of_itself else frozenset()
    return {
        i: at for i, at in each.items() if at and step.inputs[i] is not None and i not in left_out
    }


def is_training_step(step: StepTrace, inputs: Sequence[ValueRole]) -> bool:
    """Return whether a step trains: it lowers a loss of a batch by gradients of its parameters.

    A sampler draws from a key beside the gradient, and Newton's method takes derivatives of the
    gradient or solves with it: without an optimizer's state neither is said to train. A step of
    molecular dynamics has no batch.

    Args:
      step: the trace of the step.
      inputs: the roles of its inputs.
    """
    kinds = {role.kind for role in inputs}
    if kinds.isdisjoint({BATCH, FROZEN}) or not step.holds_gradient:
        return False
    found = _input_uses(step, argument_numbers(step))
    if not found.parameters.keys() & _nexts(step, found, only_of_itself=True).keys():
        return False
    names = {jax_compat.primitive_name(eqn) for eqn in eqns_in(step.jaxpr)}
    own = lines_of_gradients(step.taken_gradients)
    is_newton = not names.isdisjoint(_SOLVES) or any("jvp" in each.kind for each in own)
    return not found.is_drawn and (OPTIMIZER_STATE in kinds or not is_newton)


@dataclass(frozen=True, slots=True)
class _InputUses:
    """How inputs go through a step, by number.

    Attributes:
      fed: the inputs that a forward pass reads.
      parameters, state: an input -> the outputs that are its next value, or its gradient.
      carried: the inputs that no gradient changes and that come back, such as running means, each
        with the output at its place.
      is_gradient: for each output, whether a backward pass itself makes it.
      placed: those of `parameters` that nothing but the place of an output tells.
      unchanged: the inputs that a forward pass reads, and of whose next value neither a gradient
        nor what a forward pass makes is part.
      is_drawn: whether a random key is part of what parameters become, not by a forward pass alone.
    """

    fed: frozenset[int]
    parameters: dict[int, set[int]]
    state: dict[int, set[int]]
    carried: dict[int, int]
    is_gradient: tuple[bool, ...]
    placed: frozenset[int]
    unchanged: frozenset[int]
    is_drawn: bool


def _input_uses(step: StepTrace, holders: Sequence[int]) -> _InputUses:
    jaxpr = step.jaxpr
    flows = Flows(jaxpr)
    made, fed = flows.outputs, frozenset(bits(flows.fed))
    # Of what is changed in place the next value is known.
    back = {i: {j} for i, j in step.updates.items()}
    for j, (v, flow) in enumerate(zip(jaxpr.outvars, made, strict=True)):
        if j < step.num_returned:
            for i in bits(flow.inputs & flows.like(v)):
                if i not in step.updates:
                    back.setdefault(i, set()).add(j)
    after = {j for j, flow in enumerate(made) if flow.is_after}
    parameters = {i: at for i, at in back.items() if i in fed and at & after}
    # What an optimizer keeps flows into the parameters as well as into its own next value.
    nexts = set().union(*parameters.values())
    steering = _union(made[j].inputs for j in nexts)
    kept = {i: at - nexts for i, at in back.items() if i not in fed and at - nexts}
    metrics = {i for i, at in kept.items() if not steering >> i & 1 and _is_seen(made, at)}
    # What is counted beside metrics, in an argument without gradients, is one of them.
    # So is what is counted beside a scale of the loss, which gradients only decide about.
    scales = {i for i, at in back.items() if i in fed and any(made[j].is_steered for j in at)}
    metric_holders = {holders[i] for i in metrics | scales} - {
        holders[i] for i, at in (*kept.items(), *parameters.items()) if at & after
    }
    state = {
        i: at for i, at in kept.items() if i not in metrics and holders[i] not in metric_holders
    }
    unread = _unread_parameters(step, made, parameters, state, holders)
    parameters |= unread
    nexts.update(*unread.values())
    state = {i: at for i, at in state.items() if i not in unread}
    # Parameters may be remade of a copy that the optimizer keeps; the copy needs a next value too.
    needed = {j for at in state.values() if len(at) == 1 for j in at}
    paired = _paired_outputs(step, sorted(fed - parameters.keys()), sorted(after - nexts - needed))
    parameters |= paired
    nexts.update(*paired.values())
    state = {i: at - nexts for i, at in state.items()}
    others = set(range(len(made))) - nexts - needed
    nested = [i for i in sorted(fed - parameters.keys()) if path_keys(step.inputs[i] or "")]
    carried = {i: j for i, (j,) in _paired_outputs(step, nested, sorted(others)).items()}
    is_gradient = tuple(flow.is_gradient for flow in made)
    # What a forward pass makes may be the next value of whatever is like it.
    seen = _union(
        flows.like(v)
        for v, flow in zip(jaxpr.outvars, made, strict=True)
        if flow.is_seen and not flow.is_after
    )
    changed = {i for i, at in back.items() if any(made[j].is_after for j in at)}
    unchanged = fed - changed - set(bits(seen)) - parameters.keys() - state.keys()
    keys = _union(1 << i for i, v in enumerate(jaxpr.invars) if _is_key(v))
    is_drawn = any(made[j].inputs & keys for at in parameters.values() for j in at)
    return _InputUses(
        fed,
        parameters,
        state,
        carried,
        is_gradient,
        frozenset(paired),
        frozenset(unchanged),
        is_drawn,
    )


def _is_key(var: Var) -> bool:
    """Return whether a variable may be a random key, typed or of two or four integers."""
    shape, dtype = shape_and_dtype(var)
    is_raw = str(dtype) == "uint32" and shape is not None and shape[-1:] in ((2,), (4,))
    return is_raw or str(dtype).startswith("key<")


def _unread_parameters(
    step: StepTrace,
    made: Sequence[Flow],
    parameters: Mapping[int, set[int]],
    state: Mapping[int, set[int]],
    holders: Sequence[int],
) -> dict[int, set[int]]:
    """Return those of `state` that are parameters which no forward pass reads.

    They are in an argument together with parameters, and what they become is made of them and of
    what an optimizer keeps for them. What an optimizer keeps is made of itself alone, or of
    gradients, and goes into parameters; a mean of parameters is made of them, and the mean of a
    gradient's norm is a number.
    """
    others = _union(1 << j for j in parameters)

    def is_apart(i: int, outputs: set[int]) -> bool:
        var = step.jaxpr.invars[i]
        reached = {j for j, flow in enumerate(made) if flow.inputs >> i & 1}
        is_number = not var.aval.shape and any(made[j].is_after for j in outputs)
        is_mean = any(made[j].inputs & others for j in outputs)
        return is_inexact(var) and reached <= outputs and not is_number and not is_mean

    found = {i: at for i, at in state.items() if step.inputs[i] and is_apart(i, at)}

    def is_beside(i: int) -> bool:
        beside = [
            path_keys(step.inputs[j] or "")[:-1] for j in parameters if holders[j] == holders[i]
        ]
        if not any(holders[j] == holders[i] for j in state.keys() - found.keys()):
            return bool(beside)
        shared = _shared(beside)
        return bool(beside) and path_keys(step.inputs[i] or "")[: len(shared)] == shared

    return {i: at for i, at in found.items() if is_beside(i)}


def _shared(paths: Sequence[Sequence[str]]) -> list[str]:
    """Return the keys that all paths begin with."""
    found = []
    for keys in zip(*paths, strict=False):
        if len(set(keys)) > 1:
            break
        found.append(keys[0])
    return found


def _union(masks: Iterable[int]) -> int:
    return functools.reduce(operator.or_, masks, 0)


def _is_seen(made: Sequence[Flow], outputs: Iterable[int]) -> bool:
    """Return whether outputs are made of what a forward pass makes and of no gradient.

    A metric is made this way.
    """
    flow = functools.reduce(operator.or_, (made[j] for j in outputs), NOTHING)
    return flow.is_seen and not flow.is_after and not flow.is_steered


def _paired_outputs(
    step: StepTrace, inputs: Sequence[int], outputs: Sequence[int]
) -> dict[int, set[int]]:
    """Return the inputs whose gradient or next value is among outputs, with that output.

    The next value is one that is made of something else than the input. The output is in the same
    place of a similar tree: `params['w']` and `[0]['w']`. Each output is paired with one input;
    inputs that are deep in a tree choose first.
    """
    keys = {i: path_keys(path) for i in inputs if (path := step.inputs[i]) is not None}
    free: dict[Hashable, list[int]] = {}
    for j in outputs:
        free.setdefault(shape_and_dtype(step.jaxpr.outvars[j]), []).append(j)
    found = {}
    for i in sorted(keys, key=lambda i: -len(keys[i])):
        alike = free.get(shape_and_dtype(step.jaxpr.invars[i]), [])
        for j in alike:
            tail = path_keys(step.outputs[j])
            if tail[len(tail) - len(keys[i]) :] == keys[i]:
                found[i] = {j}
                alike.remove(j)
                break
    return found


def argument_numbers(step: StepTrace) -> list[int]:
    """Return, for each input, the number of what holds it; -1 for one that is no argument.

    That is an argument, or an object that the function reaches by itself.
    """
    lead = len(step.jaxpr.invars) - len(step.arguments.dynamic)
    positional, named = step.arguments.treedef.children()
    numbers: dict[str, int] = {}
    counts = [tree.num_leaves for tree in (*positional.children(), *named.children())]
    holders = [n for n, count in enumerate(counts) for _ in range(count)]
    # What the function reaches by itself stands in an object each.
    for each in step.arguments.reached:
        found = numbers.setdefault(each.path.partition(".")[0], len(counts) + len(numbers))
        holders += [found] * (each.stop - each.start)
    return [-1] * lead + [holders[i] for i in step.arguments.dynamic]
