"""List what goes into a program without a gradient, and what comes out of it."""

from __future__ import annotations

from jaxresid.inspector.program.avals import aval_of_value
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.updated_arguments import updated_arguments
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.results import ProgramArray

ProgramArrays = tuple[tuple[ProgramArray, ...], tuple[ProgramArray, ...]]


def program_arrays(step: StepTrace, program: Program) -> ProgramArrays:
    """Return the arguments and the outputs of a program without a gradient, in order.

    Args:
      step: its trace.
      program: its program.
    """
    updated = updated_arguments(step)
    lead = len(program.inputs) - len(step.inputs)
    pairs = [(i, j) for i, nexts in updated.items() for j in sorted(nexts)[:1]]
    nexts = {i: step.outputs[j] for i, j in pairs}
    before = {j: step.inputs[i] for i, j in reversed(pairs)}
    arguments = tuple(
        ProgramArray(
            role.path or "", aval_of_value(v), role.kind, role.donated, nexts.get(n - lead)
        )
        for n, (v, role) in enumerate(zip(program.block.inputs, program.inputs, strict=True))
    )
    outputs = tuple(
        ProgramArray(path, aval_of_value(v), role.kind, counterpart=before.get(j))
        for j, (path, v, role) in enumerate(
            zip(step.outputs, program.block.outputs, program.outputs, strict=True)
        )
    )
    return arguments, outputs
