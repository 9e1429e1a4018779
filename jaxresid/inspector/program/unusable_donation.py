"""Find what a program donates although no output can take it over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from jaxresid.inspector.jaxpr.flows import Flows
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.donation import step_arguments
from jaxresid.inspector.program.ops import Value
from jaxresid.inspector.trace.step import StepTrace


@dataclass(frozen=True, slots=True)
class UnusableLeaf:
    """A donated array that no output takes over, and the output at its place, if any."""

    path: str
    value: Value
    output: Value | None = None
    output_path: str = ""


def unusable_donations(step: StepTrace, program: Program) -> tuple[UnusableLeaf, ...]:
    """Return the donated arrays that cannot be matched with an output, in order.

    JAX matches by shape and dtype, and XLA what is left by bytes. What the step does not read JAX
    leaves out before, and on a mesh it leaves all to XLA: both are not among them.
    """
    if step.sharding is not None or not any(step.donated):
        return ()
    block, lead = program.block, len(program.inputs) - len(step.donated)
    used = {v for op in block.ops for v in op.operands} | set(block.outputs)
    names = {i: a.name for a in step_arguments(step) for i in a.inputs}
    donated = [
        (names[i], step.inputs[i] or "", block.inputs[lead + i])
        for i, is_given in enumerate(step.donated)
        if is_given and i in names and block.inputs[lead + i] in used
    ]
    at = [(path, v) for path, v in zip(step.outputs, block.outputs, strict=True)]
    left = Counter(map(_key, block.outputs))
    # Those that have their own next value choose first: they are the ones that work.
    counterparts = {path: _beside(path[len(name) :], at) for name, path, _ in donated}
    order = sorted(donated, key=lambda leaf: not _is_like(leaf[2], counterparts[leaf[1]]))
    unmatched = set()
    for _, path, v in order:
        if left[_key(v)] > 0:
            left[_key(v)] -= 1
        else:
            unmatched.add(path)
    spare = Counter[tuple[int, str]]()
    for v in block.outputs:
        if left[_key(v)] > 0:
            left[_key(v)] -= 1
            spare[v.size * v.itemsize, v.memory] += 1
    for _, path, v in donated:
        if path in unmatched and spare[v.nbytes, v.memory] > 0:
            spare[v.nbytes, v.memory] -= 1
            unmatched.remove(path)
    if any(counterparts[path] is None for path in unmatched):
        counterparts |= _remade(
            step, [(path, v) for _, path, v in donated if path in unmatched], counterparts, at
        )
    return tuple(
        UnusableLeaf(path, v, *(reversed(beside) if (beside := counterparts[path]) else ()))
        for _, path, v in donated
        if path in unmatched
    )


def _remade(
    step: StepTrace,
    unmatched: list[tuple[str, Value]],
    counterparts: Mapping[str, tuple[str, Value] | None],
    outputs: list[tuple[str, Value]],
) -> dict[str, tuple[str, Value] | None]:
    """Return the outputs that arrays whose path tells none come back as, by their paths.

    Such an output is made of the array, and has its shape, or its dtype and all but one of its
    sizes: a cache that is returned in another dtype, or longer by one token.
    """
    flows, taken = (
        Flows(step.jaxpr).outputs,
        {v for pair in counterparts.values() if pair for v in pair},
    )
    remade: dict[str, tuple[str, Value] | None] = {}
    for path, v in unmatched:
        if counterparts[path] is None and v.shape:
            number = step.inputs.index(path)
            remade[path] = next(
                (
                    (name, output)
                    for (name, output), flow in zip(outputs, flows, strict=True)
                    if flow.inputs >> number & 1 and output not in taken and _is_remade(v, output)
                ),
                None,
            )
    return remade


def _is_remade(v: Value, output: Value) -> bool:
    if len(v.shape) != len(output.shape):
        return False
    others = sum(a != b for a, b in zip(v.shape, output.shape, strict=True))
    return others == 0 or (others == 1 and v.dtype == output.dtype)


def _key(v: Value) -> tuple[tuple[int, ...], str, str]:
    return v.shape, v.dtype, v.memory


def _beside(tail: str, outputs: list[tuple[str, Value]]) -> tuple[str, Value] | None:
    """Return the output at the end of whose path an argument's path inside it is."""
    return next((output for output in outputs if tail and output[0].endswith(tail)), None)


def _is_like(v: Value, beside: tuple[str, Value] | None) -> bool:
    return beside is not None and _key(v) == _key(beside[1])
