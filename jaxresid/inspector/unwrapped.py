"""A differentiated program as it would be without one of its checkpoints.

Of a training step there is no primal to differentiate again: its jaxpr holds both passes already.
There, a checkpoint that is gone is one whose recomputation moves into the forward pass. In
straight-line code that is a matter of order, and what both passes compute is computed once. Out of
a loop over the backward pass it moves into the loop of the forward pass, which then stacks what the
backward pass reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from jaxresid.inspector.nesting import Nest
from jaxresid.inspector.ops import Block, Op, Value
from jaxresid.inspector.phases import BACKWARD, FORWARD, RECOMPUTE
from jaxresid.inspector.program import UNWRAPPED, Program, pruned, whole
from jaxresid.inspector.step_program import settled


def unwrapped(jaxpr: Any, written: Program, removed: frozenset[int]) -> Program:
    """The program of an open jaxpr without some checkpoints.

    Args:
      written: the program with all of them.
      removed: see `program.whole`.
    """
    found = settled(
        whole(jaxpr, written.inputs, written.outputs, removed=removed, sharding=written.sharding)
    )
    return replace(found, block=pruned(_ahead(_inside(found.block))))


def kept_nbytes(block: Block) -> int:
    """Device bytes of what the forward pass of a differentiated program keeps for the backward
    pass: what a forward op makes and another pass reads."""
    forward = {v for op in block.ops if op.phase == FORWARD for v in op.results}
    read = {
        v: None
        for op in block.ops
        if op.phase in (RECOMPUTE, BACKWARD)
        for v in op.operands
        if v in forward and v.memory == "device"
    }
    inside = 0
    for op in block.ops:
        if op.phase not in (FORWARD, RECOMPUTE, BACKWARD):  # both passes may be in its body
            inside += sum(kept_nbytes(body) for body in op.bodies)
    return sum(v.nbytes for v in read) + inside


def _inside(block: Block) -> Block:
    """The block with what leaves the loops of its backward pass in those of its forward pass."""
    ops = []
    for op in block.ops:
        bodies = tuple(_inside(body) for body in op.bodies)
        if op.phase not in (FORWARD, RECOMPUTE, BACKWARD, UNWRAPPED):
            bodies = tuple(_ahead(body) for body in bodies)  # both passes may be in its body
        ops.append(replace(op, bodies=bodies))
    return replace(block, ops=tuple(_out_of_loops(ops)))


def _ahead(block: Block) -> Block:
    """The block with its unwrapped ops as early as their operands allow: as forward ones, or as
    recomputed ones where they are made of what another checkpoint recomputes."""
    if all(op.phase != UNWRAPPED for op in block.ops):
        return block
    place: dict[Value, int] = {}
    late: set[Value] = set()
    last = max((i for i, op in enumerate(block.ops) if op.phase == FORWARD), default=-1)
    order: list[tuple[int, int, int, Op]] = []
    for i, op in enumerate(block.ops):
        moves, at, again = op.phase == UNWRAPPED, i, False
        if moves:
            at = max((place.get(v, -1) for v in op.operands), default=-1)
            again = any(v in late for v in op.operands)
            if op.bodies:  # behind the loop that it may repeat
                at = max(at, last)
        phase = op.phase if not moves else RECOMPUTE if again else FORWARD
        if phase in (RECOMPUTE, BACKWARD):
            late.update(op.results)
        order.append((at, int(moves), i, replace(op, phase=phase) if moves else op))
        place.update(dict.fromkeys(op.results, at))
    order.sort(key=lambda item: item[:3])
    moved = {id(op) for _, moves, _, op in order if moves}
    return _loops_merged(replace(block, ops=tuple(op for *_, op in order)), moved)


def _loops_merged(block: Block, moved: Set[int]) -> Block:
    """The block with those moved loops merged into an earlier one that they repeat, to stack
    more."""
    ops: list[Op] = []
    names: dict[Value, Value] = {}
    for each in block.ops:
        op = _renamed(each, names) if names else each
        merged = None
        if op.name == "scan" and op.phase == FORWARD and id(each) in moved:
            merged = _into_one(ops, op)
            names.update(merged or {})
        if merged is None:
            ops.append(op)
    return Block(block.inputs, tuple(ops), tuple(names.get(v, v) for v in block.outputs))


def _into_one(ops: list[Op], op: Op) -> dict[Value, Value] | None:
    """Merges a loop into one of `ops`; what its results are then. None where there is none."""
    for i, earlier in enumerate(ops):
        if earlier.name == "scan" and earlier.phase in (FORWARD, UNWRAPPED):
            merged = _merged(earlier, op, _made(ops[i:]))
            if merged is not None:
                ops[i], found = merged
                return found
    return None


def _out_of_loops(ops: Sequence[Op]) -> list[Op]:
    """The ops with what leaves a loop in an earlier one, or in a loop of its own before it."""
    found: list[Op] = []
    for op in ops:
        found.append(op)
        if op.name != "scan" or op.phase == UNWRAPPED:
            continue
        leaving = _leaving(op)
        if not leaving:
            continue
        ahead = _ahead_of(found[:-1], op)
        made = None if ahead is None else _moved(found[ahead], op, leaving, _made(found[ahead:]))
        if ahead is not None and made is not None:
            found[ahead], found[-1] = made
        else:
            found[-1:] = _split(op, leaving)
    return found


def _made(ops: Sequence[Op]) -> Set[Value]:
    return {v for op in ops for v in op.results}


def _split(loop: Op, leaving: Sequence[Op]) -> tuple[Op, Op]:
    """A loop of the ops that leave, and the loop without them."""
    nest = loop.nest
    assert nest is not None
    empty = replace(
        loop,
        operands=(),
        results=(),
        phase=UNWRAPPED,
        bodies=(Block((), (), ()),),
        nest=replace(
            nest, operands=(), results=(), carries={}, slices=frozenset(), stacked=frozenset()
        ),
    )
    made = _moved(empty, loop, leaving, frozenset())
    assert made is not None
    return made


def _leaving(loop: Op) -> tuple[Op, ...]:
    """The unwrapped ops of a loop's body that need nothing of the trips before."""
    nest, body = loop.nest, loop.bodies[0]
    assert nest is not None
    fixed = {v for i, v in enumerate(body.inputs) if i not in nest.carries}
    chosen = []
    for op in body.ops:
        if op.phase != UNWRAPPED:
            continue
        if all(v.literal is not None or v in fixed for v in op.operands):
            chosen.append(op)
            fixed.update(op.results)
    return tuple(chosen)


def _ahead_of(ops: Sequence[Op], loop: Op) -> int | None:
    """The loop of the forward pass that stacked what this one reads."""
    assert loop.nest is not None
    read = set(loop.operands)
    for i in range(len(ops) - 1, -1, -1):
        op = ops[i]
        if op.name != "scan" or op.nest is None or op.nest.length != loop.nest.length:
            continue
        if any(op.results[j] in read for j in op.nest.stacked):
            return i
    shared = {v for j, v in enumerate(loop.operands) if j in loop.nest.slices}
    for i in range(len(ops) - 1, -1, -1):
        op = ops[i]
        if op.name == "scan" and op.nest is not None and op.nest.length == loop.nest.length:
            slices = {op.operands[op.nest.operands[j]] for j in op.nest.slices}
            if shared & slices:
                return i
    return None


class _Loop:
    """A loop that grows."""

    def __init__(self, op: Op) -> None:
        assert op.nest is not None
        self.op = op
        self.nest: Nest = op.nest
        self.inputs = list(op.bodies[0].inputs)
        self.ops = list(op.bodies[0].ops)
        self.outputs = list(op.bodies[0].outputs)
        self.operands = list(op.operands)
        self.results = list(op.results)
        self.slices = set(self.nest.slices)
        self.stacked = set(self.nest.stacked)
        self.positions = list(self.nest.operands)

    def given(self, operand: Value, inner: Value, is_slice: bool) -> Value:
        """The body's input that is this operand, sliced or whole; a new one if need be."""
        for i, position in enumerate(self.positions):
            same = self.operands[position] is operand and i not in self.nest.carries
            if same and (i in self.slices) == is_slice:
                return self.inputs[i]
        made = replace(inner)
        self.inputs.append(made)
        self.operands.append(operand)
        self.positions.append(len(self.operands) - 1)
        if is_slice:
            self.slices.add(len(self.inputs) - 1)
        return made

    def carry(self, operand: Value) -> Value | None:
        """The body's carry that starts as this operand."""
        for i in self.nest.carries:
            if self.operands[self.positions[i]] is operand:
                return self.inputs[i]
        return None

    def stack(self, value: Value, length: int) -> Value:
        """The result that holds a body's value for all trips."""
        for j in self.stacked:
            if self.outputs[j] is value:
                return self.results[j]
        made = Value(
            (length, *value.shape),
            value.dtype,
            value.itemsize,
            value.memory,
            whole=None if value.whole is None else (length, *value.whole),
            spec=f"None,{value.spec}" if value.spec else "",
        )
        self.outputs.append(value)
        self.results.append(made)
        self.stacked.add(len(self.outputs) - 1)
        return made

    def built(self) -> Op:
        nest = replace(
            self.nest,
            operands=tuple(self.positions),
            results=tuple(range(len(self.results))),
            slices=frozenset(self.slices),
            stacked=frozenset(self.stacked),
        )
        body = Block(tuple(self.inputs), tuple(self.ops), tuple(self.outputs))
        return replace(
            self.op,
            operands=tuple(self.operands),
            results=tuple(self.results),
            bodies=(body, *self.op.bodies[1:]),
            nest=nest,
        )


def _moved(
    forward: Op, backward: Op, leaving: Sequence[Op], later: Set[Value]
) -> tuple[Op, Op] | None:
    """The two loops after ops left the one's body for the other's; None where these need a value
    of `later`, which the first loop cannot have."""
    ahead, behind = _Loop(forward), _Loop(backward)
    body = backward.bodies[0]
    inside = _absorbed(ahead, backward, leaving)
    if inside is None or any(v in later for v in ahead.operands):
        return None
    gone = {id(op) for op in leaving}
    left = [op for op in body.ops if id(op) not in gone]
    own = set(body.inputs)
    read = [v for op in left for v in op.operands] + list(body.outputs)
    renamed: dict[Value, Value] = {}
    for v in dict.fromkeys(v for v in read if v in inside and v not in own):
        operand, is_slice = _operand_of(ahead, inside[v], behind.nest.length or 1)
        renamed[v] = behind.given(operand, v, is_slice)
    behind.ops = [_renamed(op, renamed) for op in left]
    behind.outputs = [renamed.get(v, v) for v in behind.outputs]
    return ahead.built(), behind.built()


def _merged(forward: Op, again: Op, later: Set[Value]) -> tuple[Op, dict[Value, Value]] | None:
    """A loop that does what both do, and what the results of the second are of its; None if the
    second is not the first with more to stack, or needs a value of `later`."""
    one, other = forward.nest, again.nest
    if one is None or other is None:
        return None
    if one.length != other.length:
        return None
    if other.carries and forward.params.get("reverse") != again.params.get("reverse"):
        return None
    ahead, body = _Loop(forward), again.bodies[0]
    inside = _absorbed(ahead, again, body.ops)
    if inside is None or any(v in later for v in ahead.operands):
        return None
    results: dict[Value, Value] = {}
    for inner, out in other.carries.items():
        entering = inside.get(body.inputs[inner])
        if entering is None:
            return None
        j = one.carries[ahead.inputs.index(entering)]
        if inside.get(body.outputs[out], body.outputs[out]) is not ahead.outputs[j]:
            return None
        results[again.results[out]] = ahead.results[j]
    for out in other.stacked:
        value = inside.get(body.outputs[out], body.outputs[out])
        results[again.results[out]] = ahead.stack(value, one.length or 1)
    return ahead.built(), results


def _absorbed(ahead: _Loop, source: Op, ops: Sequence[Op]) -> dict[Value, Value] | None:
    """Adds ops of another loop's body to a loop; what their values are there.

    None where one of them reads a carry that the loop does not have.
    """
    nest, body = source.nest, source.bodies[0]
    assert nest is not None
    stacked = {ahead.results[j]: ahead.outputs[j] for j in ahead.stacked}
    inside: dict[Value, Value] = {}
    for i, inner in enumerate(body.inputs):
        operand = source.operands[nest.operands[i]]
        if i in nest.carries:
            same = ahead.carry(operand)
            if same is not None:
                inside[inner] = same
            elif any(inner in op.operands for op in ops):
                return None
        elif i in nest.slices and operand in stacked:
            inside[inner] = stacked[operand]
        elif operand.literal is not None:
            inside[inner] = operand
        elif any(inner in op.operands for op in ops) or inner in body.outputs:
            inside[inner] = ahead.given(operand, inner, i in nest.slices)
    known = {_key(op): op for op in ahead.ops if _key(op) is not None}
    for op in ops:
        moved = _renamed(replace(op, phase=ahead.op.phase), inside)
        merged = _into_one(ahead.ops, moved) if op.name == "scan" else None
        if merged is not None:
            inside.update(merged)
            continue
        key = _key(moved)
        same_op = None if key is None else known.get(key)
        if same_op is None:
            moved = replace(moved, results=tuple(replace(v) for v in op.results))
            ahead.ops.append(moved)
            same_op = moved
            if key is not None:
                known[key] = moved
        inside.update(zip(op.results, same_op.results, strict=True))
    return inside


def _operand_of(ahead: _Loop, value: Value, length: int) -> tuple[Value, bool]:
    """What the loop after it is given for a value of a loop's body, and whether in slices."""
    for i, inner in enumerate(ahead.inputs):
        if inner is value and i not in ahead.nest.carries:
            return ahead.operands[ahead.positions[i]], i in ahead.slices
    return ahead.stack(value, length), True


def _renamed(op: Op, names: Mapping[Value, Value]) -> Op:
    return replace(op, operands=tuple(names.get(v, v) for v in op.operands))


def _key(op: Op) -> object:
    """What makes an op equal to another on the same operands; None for one with bodies."""
    if op.bodies or op.name == "barrier":
        return None
    params = tuple(sorted((k, str(v)) for k, v in op.params.items()))
    operands = tuple(v if v.literal is None else (v.literal, v.dtype) for v in op.operands)
    return op.name, params, operands
