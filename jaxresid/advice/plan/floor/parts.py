"""Take apart what no checkpoint can remove from the peak of a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from jaxresid.inspector.jaxpr.phases import BACKWARD, UPDATE
from jaxresid.inspector.jaxpr.primitives import TRANSPARENT
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.ops import Block, Value
from jaxresid.inspector.program.step_roles import next_values
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.inspector.trace.traced import Traced
from jaxresid.inspector.variants.choices import Variant
from jaxresid.results import FloorPart

# What a loss function does not show of the training that it is part of.
WITHOUT_STEP = ("the optimizer's state and its update",)


def floor_parts(subject: Subject, variant: Variant) -> tuple[FloorPart, ...]:
    """Return what no checkpoint can remove from a variant of a program, biggest first.

    It is the same for all variants of a program, but for the gradients of a training step: what
    of them has no room in buffers of outputs, and no more than the variant's peak leaves.
    """
    program = variant.program
    step = subject.holes.as_step(variant.trace)
    found = [*_input_parts(subject, program), *_output_parts(step, variant.trace, program)]
    held = sum(part.nbytes for part in found)
    if step is not None:
        spare = sum(part.nbytes for part in found if part.kind in ("updated", "output", "gradient"))
        gradients = min(gradient_nbytes(program) - spare, variant.peak_nbytes - held)
        if gradients > 0:
            found.append(FloorPart("gradient", gradients, until_update=True))
    return tuple(sorted((part for part in found if part.nbytes), key=lambda part: -part.nbytes))


def argument_name(path: str) -> str:
    """Return the name of the argument that a path leads into: `params` of `params['w'].mu`."""
    for i, character in enumerate(path):
        if character in "[.":
            return path[:i]
    return path


def gradient_nbytes(program: Program) -> int:
    """Return the most bytes of a step's gradients that are there at once.

    They are what the backward pass makes and the update reads, each from where it is made to where
    it is read last.
    """
    block = program.block
    made = {v: i for i, op in enumerate(block.ops) for v in op.results}
    phases = {v: op.phase for op in block.ops for v in op.results}
    last = _last_reads(block)
    changes: Counter[int] = Counter()
    outputs = set(block.outputs)
    for v in _gradients(block, phases) - outputs:
        changes[made[v]] += v.nbytes
        changes[last[v] + 1] -= v.nbytes
    most = now = 0
    for at in sorted(changes):
        now += changes[at]
        most = max(most, now)
    return most


def _gradients(block: Block, phases: Mapping[Value, str]) -> set[Value]:
    """Return what the backward pass makes and the update reads, before it is seen another way."""
    behind = {op.results[0]: op.operands[0] for op in block.ops if op.name in TRANSPARENT}
    found = set()
    for op in block.ops:
        if op.phase != UPDATE:
            continue
        for read in op.operands:
            if phases.get(read) == BACKWARD and read.memory == "device":
                made = read
                while made in behind and phases.get(behind[made]) == BACKWARD:
                    made = behind[made]
                found.add(made)
    return found


def _last_reads(block: Block) -> dict[Value, int]:
    """Return the number of the last op that reads each value, itself or seen another way."""
    last: dict[Value, int] = {}
    for i in reversed(range(len(block.ops))):
        op = block.ops[i]
        until = max([i, *(last.get(v, i) for v in op.results)]) if op.name in TRANSPARENT else i
        for v in op.operands:
            last[v] = max(last.get(v, 0), until)
    return last


def _input_parts(subject: Subject, program: Program) -> list[FloorPart]:
    """Return the arguments and constants by kind; without a gradient arguments are of one."""
    target = subject.target
    sums: dict[str, list[tuple[Value, str | None]]] = {}
    for v, role in zip(program.block.inputs, program.inputs, strict=True):
        kind: str = role.kind
        if role.path is not None and target.mode == "loss":
            kind = "differentiated" if role.path in target.differentiated else "argument"
        elif role.path is not None and not target.has_gradient:
            kind = "argument"
        if v.memory == "device":
            sums.setdefault(kind, []).append((v, role.path))
    return [_part(kind, values) for kind, values in sums.items()]


def _output_parts(step: StepTrace | None, traced: Traced, program: Program) -> list[FloorPart]:
    """Return the outputs by kind, without those that take over a donated argument's buffer."""
    nexts: dict[int, str] = {}
    gradients: range = range(0)
    if step is not None:
        nexts = {j: step.inputs[i] or "" for i, at in next_values(step).items() for j in at}
        of = dict(nexts)
    else:
        call, count = traced.arguments, len(program.outputs)
        wanted = [call.paths[i] for i in call.having("differentiated")]
        of = dict(enumerate(wanted, count - len(wanted)))
        gradients = range(count - len(wanted), count)
    donated = Counter(
        (v.shape, v.dtype)
        for v, role in zip(program.block.inputs, program.inputs, strict=True)
        if role.donated and v.memory == "device"
    )
    sums: dict[str, list[tuple[Value, str | None]]] = {}
    for j, (v, role) in enumerate(zip(program.block.outputs, program.outputs, strict=True)):
        if v.memory != "device":
            continue
        if donated[v.shape, v.dtype] > 0:
            donated[v.shape, v.dtype] -= 1
            continue
        is_gradient = j in gradients or role.kind == "gradient"
        kind = "updated" if j in nexts else "gradient" if is_gradient else "output"
        sums.setdefault(kind, []).append((v, of.get(j)))
    return [_part(kind, values) for kind, values in sums.items()]


def _part(kind: str, values: Iterable[tuple[Value, str | None]]) -> FloorPart:
    """Return values as one part; an output has a buffer even where it is a literal."""
    each = list(values)
    return FloorPart(
        kind,  # type: ignore[arg-type]
        sum(v.size * v.itemsize for v, _ in each),
        tuple(dict.fromkeys(argument_name(path) for _, path in each if path)),
    )
