"""Find what a program moves between device and host memory."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.phases import RECOMPUTE
from jaxresid.inspector.jaxpr.primitives import PARTS, VIEWS
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.ops import Block, Op, Value
from jaxresid.results import Transfers

# Results that are parts of their operand, or it in another shape, where it lies.
IN_PLACE = PARTS | VIEWS


@dataclass(frozen=True, slots=True)
class Move:
    """One value that an op moves.

    Attributes:
      before: the value where it was.
      after: the value where it is moved to.
      to: the memory that it is moved into, `host` or `device`.
    """

    before: Value
    after: Value
    to: str

    @property
    def nbytes(self) -> int:
        """The bytes that are moved."""
        return self.after.nbytes


def moves(op: Op, hosted: Set[Value]) -> Iterator[Move]:
    """Yield what an op moves between device and host memory.

    Until JAX 0.7.1 avals do not tell where they are; a device_put that names a memory is then taken
    to move.

    Args:
      op: the op.
      hosted: values in host memory whose avals do not say so, see `entering`.
    """
    if op.name != "device_put":
        return
    moved = zip(op.eqn.invars, op.operands, op.results, strict=True)
    for i, (var, before, after) in enumerate(moved):
        if not hasattr(var.aval, "memory_space"):
            to = jax_compat.moved_to(op.eqn, i)
            if to is not None:
                yield Move(before, after, to)
        elif _is_on_host(before, hosted) != _is_on_host(after, hosted):
            yield Move(before, after, "host" if _is_on_host(after, hosted) else "device")


def entering(op: Op, hosted: Set[Value]) -> set[Value]:
    """Return the inputs of a loop's body that are in host memory.

    Until JAX 0.11 their own avals forget it where one pass hands them to the next.
    """
    if op.nest is None:
        return set()
    pairs = zip(op.nest.operands, op.bodies[0].inputs, strict=True)
    return {v for i, v in pairs if _is_on_host(op.operands[i], hosted)}


def follow(op: Op, known: set[Value]) -> None:
    """Add to `known` the results of an op that are known values, or parts of them, not copied."""
    if op.name == "barrier":
        known.update(b for a, b in zip(op.operands, op.results, strict=False) if a in known)
    elif op.name in IN_PLACE and op.operands[0] in known:
        known.update(op.results)


def transfers(program: Program) -> Transfers:
    """Return the bytes that a program moves each way.

    What a loop moves counts once per trip (once where the number of trips is not known); for a cond
    it is the branch that moves most.
    """
    return _of(program.block, set())


def _of(block: Block, known: Set[Value]) -> Transfers:
    total, hosted = Transfers(), set(known)
    for op in block.ops:
        follow(op, hosted)
        for move in moves(op, hosted):
            is_host = move.to == "host"
            total = _sum(
                total, Transfers(move.nbytes * is_host, move.nbytes * (not is_host)), times=1
            )
        if op.bodies:
            inner = hosted | entering(op, hosted)
            each = [_of(body, inner) for body in op.bodies]
            trips = op.nest.length or 1 if op.nest is not None else 1
            most = max(each, key=lambda t: t.to_host_nbytes + t.to_device_nbytes)
            total = _sum(total, most, times=trips)
    return total


def refetched_nbytes(program: Program) -> int:
    """Return the bytes of arguments in host memory that checkpoints move to the device again."""
    inputs = {v for v in program.block.inputs if v.memory == "host"}
    return _refetched(program.block, inputs)


def _refetched(block: Block, arguments: Set[Value]) -> int:
    total, known = 0, set(arguments)
    for op in block.ops:
        follow(op, known)
        for move in moves(op, known):
            if op.phase == RECOMPUTE and move.before in known:
                total += move.nbytes
        if op.nest is not None:
            pairs = zip(op.nest.operands, op.bodies[0].inputs, strict=True)
            inner = {v for i, v in pairs if op.operands[i] in known}
            total += _refetched(op.bodies[0], inner) * (op.nest.length or 1)
    return total


def _sum(total: Transfers, more: Transfers, *, times: int) -> Transfers:
    return Transfers(
        total.to_host_nbytes + more.to_host_nbytes * times,
        total.to_device_nbytes + more.to_device_nbytes * times,
    )


def _is_on_host(value: Value, hosted: Set[Value]) -> bool:
    return value.memory == "host" or value in hosted
