"""Drop what nothing reads of a program, and put what is recomputed where compilers put it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from jaxresid.inspector.jaxpr.phases import BACKWARD, RECOMPUTE
from jaxresid.inspector.program.ops import Block, Op, Value

# More readers than this of one value are not fused; a bound on the search.
_SIBLINGS = 8


def pruned(block: Block, *, is_body: bool = False) -> Block:
    """Return the block without ops, and its loops without results, that nothing reads."""
    return _scheduled(_needed(block), is_body)


def _scheduled(block: Block, is_body: bool) -> Block:
    """Return the block with what is recomputed where a compiler's scheduler puts it.

    The jaxpr recomputes all of a checkpoint's region first. A scheduler does not: of a whole
    function under dots_saveable, each layer's elementwise values are made when the backward pass
    comes to that layer. A chain of them is still recomputed at once, as its last value is read
    first. Where no barrier holds it back, recomputation belongs to the forward pass.
    """
    if all(op.phase != RECOMPUTE or op.name == "barrier" for op in block.ops):
        return block
    late = set(block.inputs) if is_body else set()
    place: dict[Value, int] = {}
    order: list[tuple[int, int, int, bool]] = []
    for i, op in enumerate(block.ops):
        recomputes = op.phase == RECOMPUTE and op.name != "barrier"
        held = not late.isdisjoint(op.operands)
        at = i
        if op.phase in (RECOMPUTE, BACKWARD) and (held or not recomputes):
            late.update(op.results)
        elif recomputes:
            at = max([place.get(v, -1) for v in op.operands], default=-1)
        order.append((at, int(at != i), i, recomputes and held))
        for v in op.results:
            place[v] = at
    order.sort()
    return _placed_before_readers(
        Block(block.inputs, tuple(block.ops[i] for _, _, i, _ in order), block.outputs),
        [waits for *_, waits in order],
    )


def _placed_before_readers(block: Block, waits: Sequence[bool]) -> Block:
    """Return the block with the ops that wait placed right before what reads them.

    Those that read one value are made together where that is its last use: a compiler fuses them.
    """
    if not any(waits):
        return block
    makers = {v: i for i, op in enumerate(block.ops) for v in op.results}
    waiting = {v: i for v, i in makers.items() if waits[i]}
    readers: dict[Value, list[int]] = {}
    for i, op in enumerate(block.ops):
        for v in op.operands:
            readers.setdefault(v, []).append(i)
    placed: set[int] = set()
    ops: list[Op] = []

    def missing(i: int) -> list[int]:
        needed = {waiting[v] for v in block.ops[i].operands if v in waiting} - placed
        return sorted(needed, reverse=True)

    def is_ready(i: int) -> bool:
        return placed.issuperset([makers[v] for v in block.ops[i].operands if v in makers])

    def emit(i: int) -> None:
        placed.add(i)
        ops.append(block.ops[i])

    def run(first: int) -> None:
        stack = [first]
        while stack:
            at = stack[-1]
            if at in placed:
                stack.pop()
                continue
            left = missing(at)
            if left:
                stack += left
                continue
            emit(stack.pop())
            if not waits[at]:
                continue
            for v in block.ops[at].operands:
                if len(readers[v]) > _SIBLINGS:
                    continue
                rest = [i for i in readers[v] if i not in placed]
                if rest and all(waits[i] and is_ready(i) for i in rest):
                    for i in rest:
                        emit(i)

    for i, op in enumerate(block.ops):
        if waits[i]:
            continue
        if waiting.keys().isdisjoint(op.operands):
            emit(i)
        else:
            run(i)
    for i in range(len(block.ops)):
        if waits[i]:
            run(i)
    return Block(block.inputs, tuple(ops), block.outputs)


def _needed(block: Block) -> Block:
    needed = {v for v in block.outputs if v.literal is None}
    kept: list[Op] = []
    for op in reversed(block.ops):
        if needed.isdisjoint(op.results) and not getattr(op.eqn, "effects", None):
            continue
        trimmed = _trimmed(op, needed) if op.bodies or op.name == "barrier" else op
        needed.update(trimmed.operands)
        kept.append(trimmed)
    return Block(block.inputs, tuple(reversed(kept)), block.outputs)


def _trimmed(op: Op, needed: set[Value]) -> Op:
    if op.name == "barrier":
        return _trim_barrier(op, needed)
    if op.is_loop:
        return _trim_loop(op, needed)
    return _trim_branches(op, needed) if op.bodies else op


def _trim_barrier(op: Op, needed: set[Value]) -> Op:
    # All of a barrier's operands wait for each other, whether or not they are read behind it; but
    # a compiler drops those that are not.
    pairs = [(a, b) for a, b in zip(op.operands, op.results, strict=True) if b in needed]
    return replace(op, operands=tuple(a for a, _ in pairs), results=tuple(b for _, b in pairs))


def _trim_loop(op: Op, needed: set[Value]) -> Op:
    nest, body = op.nest, op.bodies[0]
    assert nest is not None
    carries = nest.carries
    live = {i for i, v in enumerate(op.results) if v in needed}
    entering = {out: inner for inner, out in carries.items()}
    condition = set()
    if len(op.bodies) > 1:  # the condition reads carries of its own
        inner_reads = _reads(op.bodies[1])
        count = len(op.bodies[1].inputs) - len(body.outputs)
        condition = {
            i for i in range(len(body.outputs)) if op.bodies[1].inputs[count + i] in inner_reads
        }
        live |= condition
    while True:
        trimmed = pruned(replace(body, outputs=_only(body.outputs, live)), is_body=True)
        inner_reads = _reads(trimmed)
        more = {
            out
            for out, inner in entering.items()
            if out not in live and body.inputs[inner] in inner_reads
        }
        if not more:
            break
        live |= more
    used = {i for i, v in enumerate(body.inputs) if v in inner_reads}
    used |= {entering[i] for i in live if i in entering}
    inputs = [i for i in range(len(body.inputs)) if i in used]
    outputs = [i for i in range(len(body.outputs)) if i in live]
    place = {old: new for new, old in enumerate(inputs)}
    out_place = {old: new for new, old in enumerate(outputs)}
    block = Block(
        tuple(body.inputs[i] for i in inputs),
        trimmed.ops,
        tuple(body.outputs[i] for i in outputs),
    )
    operands = [nest.operands[i] for i in inputs]
    condition_operands = op.operands[: nest.condition_constants]
    trimmed_nest = replace(
        nest,
        operands=tuple(range(len(inputs))),
        results=tuple(range(len(outputs))),
        carries={
            place[inner]: out_place[out] for inner, out in carries.items() if out in out_place
        },
        slices=frozenset(place[i] for i in nest.slices if i in place),
        stacked=frozenset(out_place[i] for i in nest.stacked if i in out_place),
    )
    return replace(
        op,
        operands=(*(op.operands[i] for i in operands), *condition_operands),
        results=tuple(op.results[i] for i in outputs),
        bodies=(block, *op.bodies[1:]),
        nest=trimmed_nest,
    )


def _only(outputs: Sequence[Value], live: Iterable[int]) -> tuple[Value, ...]:
    chosen = set(live)
    return tuple(v for i, v in enumerate(outputs) if i in chosen)


def _reads(block: Block) -> set[Value]:
    operands = {v for op in block.ops for v in op.operands}
    return operands.union(block.outputs)


def _trim_branches(op: Op, needed: set[Value]) -> Op:
    live = [i for i, v in enumerate(op.results) if v in needed]
    blocks = tuple(
        pruned(replace(b, outputs=tuple(b.outputs[i] for i in live)), is_body=True)
        for b in op.bodies
    )
    return replace(op, results=tuple(op.results[i] for i in live), bodies=blocks)
