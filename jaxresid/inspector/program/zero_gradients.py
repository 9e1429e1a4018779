"""Find what an optimizer keeps for weights whose gradient is zero for every input."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxresid.inspector.jaxpr.dependence import dependences
from jaxresid.inspector.jaxpr.flows import Flows, bits, is_inexact, mask_of, shape_and_dtype
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.ops import Block
from jaxresid.inspector.program.pruning import pruned
from jaxresid.inspector.program.step_roles import argument_numbers
from jaxresid.inspector.trace.step import StepTrace


@dataclass(frozen=True, slots=True)
class NeedlessMoments:
    """The state that an optimizer keeps for weights that get no gradient.

    Attributes:
      moments: the paths of what is kept for them.
      weights_nbytes, moments_nbytes: the bytes of both, on one device.
      program: the program in which the weights stay as they are, without these moments.
    """

    weights: tuple[str, ...]
    moments: tuple[str, ...]
    weights_nbytes: int
    moments_nbytes: int
    program: Program


def needless_moments(step: StepTrace, program: Program) -> NeedlessMoments | None:
    """Return what an optimizer keeps for weights whose gradient is zero; None if it keeps nothing.

    The weights come back, made of themselves and of what is kept for them alone, and that is made
    of itself alone, but for numbers such as a count or a rate: no gradient is part of either. The
    gradient of an embedding, of which few rows are read, or of an expert that gets no tokens, is
    part of what these become.
    """
    invars = step.jaxpr.invars
    masks = dependences(step.jaxpr, step.passes)
    big = mask_of(i for i, v in enumerate(invars) if shape_and_dtype(v)[0] and is_inexact(v))
    beside = big | 1 << len(invars)  # the bit of a gradient
    fed = Flows(step.jaxpr).fed

    def is_next(i: int, j: int) -> bool:
        return shape_and_dtype(invars[i]) == shape_and_dtype(step.jaxpr.outvars[j])

    arrays = {j: list(bits(mask & beside)) for j, mask in enumerate(masks) if mask is not None}
    alone = {
        at[0]: j
        for j, at in arrays.items()
        if len(at) == 1 and is_next(at[0], j) and not fed >> at[0] & 1
    }
    weights, moments = dict[int, int](), dict[int, int]()
    for j, at in arrays.items():
        own = [i for i in at if i not in alone]
        if len(own) == 1 < len(at) and own[0] < len(invars) and is_next(own[0], j):
            weights[own[0]] = j
            moments |= {i: alone[i] for i in at if i in alone}
    # What a gradient of zero is multiplied by, such as RMSProp's, goes into nothing else.
    holders = argument_numbers(step)
    others = collections.Counter(i for at in arrays.values() for i in at)
    gradient = len(invars)
    beside_trained = {
        holders[i]
        for j, at in arrays.items()
        if at[-1:] == [gradient]
        for i in at[:-1]
        if not fed >> i & 1 and is_next(i, j)
    }
    unread = {i: j for i, j in alone.items() if others[i] == 1 and holders[i] in beside_trained}
    same = {
        at[0]: j
        for j, at in arrays.items()
        if len(at) == 1 and at[0] < gradient and fed >> at[0] & 1 and is_next(at[0], j)
    }
    if unread and same:
        weights |= same
        moments |= unread
    if not weights or any(step.inputs[i] is None for i in (*weights, *moments)):
        return None
    left = _without(step, program, weights, moments)
    if left is None:
        return None
    lead = len(program.inputs) - len(step.donated)

    def nbytes(which: Mapping[int, int]) -> int:
        return sum(program.block.inputs[lead + i].nbytes for i in which)

    def paths(which: Mapping[int, int]) -> tuple[str, ...]:
        return tuple(step.inputs[i] or "" for i in sorted(which))

    return NeedlessMoments(paths(weights), paths(moments), nbytes(weights), nbytes(moments), left)


def _without(
    step: StepTrace, program: Program, weights: Mapping[int, int], moments: Mapping[int, int]
) -> Program | None:
    lead = len(program.inputs) - len(step.donated)
    block = program.block
    stays = {j: block.inputs[lead + i] for i, j in weights.items()}
    gone = {lead + i for i in moments}
    kept = [j for j in range(len(block.outputs)) if j not in moments.values()]
    left = pruned(
        Block(block.inputs, block.ops, tuple(stays.get(j, block.outputs[j]) for j in kept))
    )
    used = {v for op in left.ops for v in op.operands}.union(left.outputs)
    if any(block.inputs[i] in used for i in gone):
        return None
    inputs = [i for i in range(len(block.inputs)) if i not in gone]
    return replace(
        program,
        block=replace(left, inputs=tuple(block.inputs[i] for i in inputs)),
        inputs=tuple(program.inputs[i] for i in inputs),
        outputs=tuple(program.outputs[j] for j in kept),
    )
