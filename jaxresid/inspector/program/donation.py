"""Find the arguments that a program returns updated and that its caller could give away.

`jax.jit` donates whole arguments: one is a candidate if all of its arrays come back, so that a
caller who goes on with what is returned misses none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxresid.inspector.jaxpr.flows import shape_and_dtype
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.step_roles import next_values
from jaxresid.inspector.trace.step import StepTrace


@dataclass(frozen=True, slots=True)
class StepArgument:
    """An argument of a step that holds arrays.

    Attributes:
      position: its number among the positional arguments; None: it is passed by name.
    """

    name: str
    position: int | None
    inputs: tuple[int, ...]

    def donated_by(self, step: StepTrace) -> bool:
        """Return whether a step gives all of it away."""
        return all(step.donated[i] for i in self.inputs)


@dataclass(frozen=True, slots=True)
class MissingDonation:
    """The arguments that a step could give away and keeps, with the bytes of their arrays.

    The step and its program are those that give them away: outputs take over buffers.
    """

    arguments: tuple[StepArgument, ...]
    nbytes: int
    step: StepTrace
    program: Program


def step_arguments(step: StepTrace) -> tuple[StepArgument, ...]:
    """Return the arguments of a step that hold traced arrays, in order.

    What the function reaches by itself is none of them.
    """
    call = step.arguments
    positional, named = call.treedef.children()
    keys = sorted(named.node_data()[1]) if named.node_data() else []
    counts = [tree.num_leaves for tree in (*positional.children(), *named.children())]
    names = [*call.names[: len(counts) - len(keys)], *keys]
    lead = len(step.jaxpr.invars) - len(call.dynamic)
    invars = {leaf: lead + n for n, leaf in enumerate(call.dynamic)}
    arguments, start = [], 0
    for at, (name, count) in enumerate(zip(names, counts, strict=True)):
        inputs = [invars[leaf] for leaf in range(start, start + count) if leaf in invars]
        start += count
        if inputs:
            position = at if at < len(counts) - len(keys) else _position(call.names, name)
            arguments.append(StepArgument(name, position, tuple(inputs)))
    return tuple(arguments)


def _position(names: Sequence[str], name: str) -> int | None:
    return names.index(name) if name in names else None


def missing_donation(
    step: StepTrace, program: Program, least_nbytes: float = 0
) -> MissingDonation | None:
    """Return the arguments that a step returns updated and does not donate; None without any.

    It is None, too, where outputs cannot take over more than `least_nbytes`.
    """
    if taken_over_nbytes(program, are_donated=False) <= least_nbytes:
        return None
    nexts = next_values(step, only_of_itself=True)
    if not nexts:
        return None
    arguments = tuple(
        argument
        for argument in step_arguments(step)
        if any(i in nexts and not step.donated[i] for i in argument.inputs)
        and _comes_back(step, argument, nexts)
    )
    if not arguments:
        return None
    newly_donated = {i for argument in arguments for i in argument.inputs}
    lead = len(program.inputs) - len(step.donated)
    inputs = tuple(
        replace(role, donated=True) if i - lead in newly_donated else role
        for i, role in enumerate(program.inputs)
    )
    return MissingDonation(
        arguments,
        sum(program.block.inputs[lead + i].nbytes for i in newly_donated if not step.donated[i]),
        replace(step, donated=tuple(d or i in newly_donated for i, d in enumerate(step.donated))),
        replace(program, inputs=inputs),
    )


def taken_over_nbytes(program: Program, memory: str = "device", *, are_donated: bool = True) -> int:
    """Return the bytes of outputs that are like donated arguments, or like those that are not."""
    inputs = zip(program.block.inputs, program.inputs, strict=True)
    left = Counter(
        (v.shape, v.dtype)
        for v, role in inputs
        if role.donated == are_donated and v.memory == memory
    )
    total = 0
    for v in program.block.outputs:
        if v.memory == memory and left[v.shape, v.dtype] > 0:
            left[v.shape, v.dtype] -= 1
            total += v.size * v.itemsize
    return total


def _comes_back(
    step: StepTrace, argument: StepArgument, nexts: Mapping[int, frozenset[int]]
) -> bool:
    """Return whether all arrays of an argument are returned, or are in an object that has them.

    They are returned at the same places of a tree like the argument, or each is known to be the
    next value of one of them.
    """
    if all(i in nexts for i in argument.inputs) or is_changed_in_place(step, argument):
        return True
    outputs = {path: j for j, path in enumerate(step.outputs[: step.num_returned])}
    tails = {i: (step.inputs[i] or "")[len(argument.name) :] for i in argument.inputs}

    def is_at(root: str, i: int) -> bool:
        j = outputs.get(root + tails[i])
        return j is not None and shape_and_dtype(step.jaxpr.outvars[j]) == shape_and_dtype(
            step.jaxpr.invars[i]
        )

    roots = {
        step.outputs[j].removesuffix(tails[i])
        for i in argument.inputs
        for j in nexts.get(i, ())
        if step.outputs[j].endswith(tails[i])
    }
    return any(all(is_at(root, i) for i in argument.inputs) for root in roots)


def is_changed_in_place(step: StepTrace, argument: StepArgument) -> bool:
    """Return whether an argument is an object, such as an NNX module, whose Variables change."""
    call = step.arguments
    lead = len(step.jaxpr.invars) - len(call.dynamic)
    held = {
        leaf
        for slot in call.layout.slots
        if slot.treedef is not None
        for leaf in range(slot.start, slot.stop)
    }
    return any(i in step.updates and call.dynamic[i - lead] in held for i in argument.inputs)
