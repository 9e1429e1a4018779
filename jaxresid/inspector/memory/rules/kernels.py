"""Turn a block into the kernels that a compiler makes of it.

A kernel's operands are the arrays that it reads, through all that is computed inside it, and its
results those that it writes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxresid.inspector.jaxpr.nesting import Nest
from jaxresid.inspector.jaxpr.primitives import SCATTERS
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.memory.rules.arrays import Arrays, joined, listed
from jaxresid.inspector.memory.rules.fusion import Fusions, fusions
from jaxresid.inspector.memory.rules.layouts import layouts, stored_nbytes
from jaxresid.inspector.memory.rules.op_kinds import (
    LIBRARY,
    MULTIPLIED,
    Move,
    is_elementwise,
    is_multiplied,
    reorders,
)
from jaxresid.inspector.memory.rules.overwriting import kept_operands
from jaxresid.inspector.memory.rules.precision import narrowed
from jaxresid.inspector.program.ops import Block, Op, Value

_FIELDS = tuple(field.name for field in dataclasses.fields(Op))
# So many values are looked up in a set.
_MANY = 16
# These write over their first operand.
_OVERWRITING = SCATTERS | {"dynamic_update_slice"}
# A triangular solve of fewer blocks was not measured.
_LEAST_BLOCKS = 16
# These read arrays.
_CALLED = SCATTERS | LIBRARY


@dataclass(frozen=True, slots=True, eq=False)
class Kernels(Block):
    """Kernels in order, and the bytes of arrays that do not take those of their shape and type."""

    nbytes: Mapping[Value, int] = field(default_factory=dict)


def kernels(block: Block, nest: Nest | None, profile: Profile) -> Kernels:
    """Return the kernels that a compiler makes of a block and of the bodies in it.

    `nest` says how a body lines up with its loop. What is lowered already stays as it is.
    """
    if isinstance(block, Kernels):
        return block
    return _Compiler(block, profile).block(block, nest)


def array_nbytes(value: Value, block: Block) -> int:
    """Return the bytes of an array of a block of kernels, padding included."""
    return block.nbytes.get(value, value.nbytes) if isinstance(block, Kernels) else value.nbytes


def overwritten(op: Op) -> Collection[Value]:
    """Return what an op may write a result over, if it is the last to read it."""
    values = op.overwrites
    return values if len(values) < _MANY else frozenset(values)


# Of more stacks of one shape and type XLA:GPU makes the zeros once and copies them at each loop, as
# no fusion has more operands and outputs. jaxlib 0.10.2 and 0.11.2 fill 96 at once, 99 by copies.
_MOST_FILLED_AT_ONCE = 96


def _array_type(value: Value) -> tuple[tuple[int, ...], str, str]:
    return value.shape, value.dtype, value.memory


def _stacks_alike(block: Block) -> dict[tuple[tuple[int, ...], str, str], list[Value]]:
    stacks: dict[tuple[tuple[int, ...], str, str], list[Value]] = {}
    for op in block.ops:
        for i in sorted(op.nest.stacked) if op.nest else ():
            stacks.setdefault(_array_type(op.results[i]), []).append(op.results[i])
    return stacks


class _Compiler:
    """What is decided for a whole program."""

    def __init__(self, block: Block, profile: Profile) -> None:
        self._fusions: dict[Block, Fusions] = {}
        self.profile = profile
        self.layouts = layouts(block) if profile.pads_to_tiles else {}
        self.narrow = set(narrowed(block, self.fusions)) if profile.narrows_factors else set()

    def fusions(self, block: Block) -> Fusions:
        plan = self._fusions.get(block)
        if plan is None:
            plan = self._fusions[block] = fusions(block, self.profile)
        return plan

    def block(self, block: Block, nest: Nest | None) -> Kernels:
        return _KernelWriter(self, block, nest).write()


class _KernelWriter:
    """A writer of the kernels of one block."""

    def __init__(self, compiler: _Compiler, block: Block, nest: Nest | None) -> None:
        self._compiler = compiler
        self._fusions = compiler.fusions(block)
        self._block = self._fusions.block
        self._nest = nest
        self._kernels: list[Op] = []
        # Value -> the arrays it takes to compute it.
        self._roots: dict[Value, Arrays] = {v: (v,) for v in block.inputs}
        # Values that are arrays, or views of one.
        self._arrays = set(block.inputs)
        # Of a value that is computed where it is read: the arrays that a dot in it reads.
        self._multiplied: dict[Value, Arrays] = {}
        self._slices = frozenset(block.inputs[i] for i in nest.slices) if nest else frozenset()
        self._casts: dict[Value, Value] = {}
        self._nbytes: dict[Value, int] = {}
        self._looped: set[Value] = set()
        # Views in another order than that of their array.
        self._turned: set[Value] = set()
        # A stack's slices -> the copies that dots read, which start with the trip.
        self._copied: dict[Value, Value] = {}
        self._first: list[Op] = []
        # Of a value that is computed where it is read: the arrays that are read elsewhere.
        self._elsewhere: dict[Value, Arrays] = {}
        # Loops' stacks of one shape and type, of several loops.
        self._alike = _stacks_alike(self._block) if compiler.profile.fills_stacks_at_once else {}
        # Stacks -> the zeros that they are written over, and those that they are copied from.
        self._zeros: dict[Value, Value] = {}
        self._copied_zeros: dict[Value, Value] = {}
        # A dot that something finishes -> how many kernels came before it.
        self._begun: dict[Op, int] = {}
        # What such a dot is written as -> the kernel that it follows, at the earliest.
        self._after: dict[Value, int] = {}

    def write(self) -> Kernels:
        begin = {start for end, start in self._fusions.starts.items() if end not in start.results}
        for op in self._block.ops:
            if op in begin:
                self._begun[op] = len(self._kernels)
            if op.name == "barrier":
                self._barrier(op)
            elif op in self._fusions.views:
                self._view(op)
            elif op.bodies:
                self._loop(op)
            elif self._fusions.is_array(op):
                self._kernel(op)
            else:
                self._inside(op)
        outputs = self._outputs()
        ops = self._ordered(outputs)
        kept = kept_operands(ops)
        ops = tuple(
            replace(op, overwrites=tuple(v for v in op.overwrites if v not in kept[op]))
            if op in kept
            else op
            for op in ops
        )
        written = Kernels(self._block.inputs, ops, outputs, self._nbytes)
        self._carry(written, ops)
        return written

    def _outputs(self) -> tuple[Value, ...]:
        outputs = []
        stacked = self._nest.stacked if self._nest else frozenset()
        # A loop writes its stacks as they are; what is returned in another order is a copy.
        is_ordered = self._nest is None and self._compiler.profile.orders_outputs
        for i, v in enumerate(self._block.outputs):
            out = v if v.literal is not None else listed(self._roots[v])[0]
            is_turned = is_ordered and v in self._turned
            if out in self._looped and (i in stacked or is_turned):
                # The inner loop has an array of its own, copied to the outer stack after it.
                out = self._copy(self._kernels[-1], out)
            outputs.append(out)
        return tuple(outputs)

    def _ordered(self, outputs: Sequence[Value]) -> tuple[Op, ...]:
        """Return the kernels; in a loop, those dots last whose results go straight into a stack.

        No other kernel waits for a weight's gradient, and the scheduler puts it at the end of the
        trip: what it reads was still there at the peak in most scans measured.
        """
        early = self._early()
        if self._nest is None:
            return tuple(early)
        stacked = {outputs[i] for i in self._nest.stacked}
        for op in early:
            stacked.difference_update(op.operands)
        last = {op: None for op in early if op.name in MULTIPLIED and op.results[0] in stacked}
        return (*self._first, *(op for op in early if op not in last), *last)

    def _early(self) -> list[Op]:
        """Return the kernels, those of a dot and what finishes it where the dot is.

        What finishes it may stand far behind: gradients are added to those of other microbatches,
        and to the optimizer's state, after the backward pass.
        """
        place: dict[Value, int] = {}
        order: list[tuple[int, bool, int]] = []
        for i, op in enumerate(self._kernels):
            at, is_early = i, bool(op.results) and op.results[0] in self._after
            if is_early:
                at = max(self._after[op.results[0]], *(place.get(v, -1) for v in op.operands))
            place.update(dict.fromkeys(op.results, at))
            order.append((at, is_early, i))
        return [self._kernels[i] for *_, i in sorted(order)]

    def _alias(self, result: Value, operand: Value) -> None:
        self._roots[result] = () if operand.literal is not None else self._roots[operand]
        if operand in self._multiplied:
            self._multiplied[result] = self._multiplied[operand]
        if operand in self._arrays:
            self._arrays.add(result)

    def _view(self, op: Op) -> None:
        result, operand = op.results[0], op.operands[0]
        self._alias(result, operand)
        is_moved = op.name == "transpose"
        if operand in self._turned or reorders(op):
            self._turned.add(result)
        self._elsewhere[result] = self._roots[operand] if is_moved else self._moved(operand)

    def _moved(self, value: Value) -> Arrays:
        """Return the arrays whose elements are read elsewhere than where the value's are written.

        They are among its roots.
        """
        moved = self._elsewhere.get(value)
        if moved is not None:
            return moved
        roots = self._roots[value]
        return () if roots == (value,) else roots

    def _factor(self, op: Op, which: int) -> Value:
        """Return the array that a dot or convolution reads as its first or second factor."""
        value = op.operands[which]
        if value not in self._arrays or not self._roots[value]:
            return value
        (array,) = listed(self._roots[value])
        if array not in self._slices:
            return array
        if array not in self._copied:
            self._copied[array] = self._copy(op, array)
            self._first.append(self._kernels.pop())
        return self._copied[array]

    def _padded(self, op: Op) -> Value:
        """Return the array that a dot or convolution reads as its first factor.

        A library's convolution pads both ends alike; otherwise it reads a padded copy.
        """
        first = self._factor(op, 0)
        if op.name == "conv_general_dilated" and any(a != b for a, b in op.params["padding"]):
            return self._copy(op, first)
        return first

    def _read(self, operands: Sequence[Value]) -> Arrays:
        return joined([self._roots[v] for v in operands if v.literal is None])

    def _within(self, operands: Sequence[Value]) -> Arrays:
        return joined([self._multiplied[v] for v in operands if v in self._multiplied])

    def _inside(self, op: Op) -> None:
        roots = self._read(op.operands)
        within = roots if is_multiplied(op) else self._within(op.operands)
        moved = self._moved_by(op, roots)
        for v in op.results:
            self._roots[v] = roots
            self._elsewhere[v] = moved
            if within:
                self._multiplied[v] = within

    def _moved_by(self, op: Op, roots: Arrays) -> Arrays:
        """Return those of the arrays that an op reads that it may read elsewhere than it writes."""
        if not is_elementwise(op):
            return roots
        return joined([self._moved(v) for v in op.operands if v.literal is None])

    def _kernel(self, op: Op) -> None:
        profile = self._compiler.profile
        start = self._fusions.starts.get(op.results[0]) if op.results else None
        is_whole = start is op
        if op.name in SCATTERS and profile.fuses_gathers:
            op = replace(op, operands=(self._array(op, op.operands[0]), *op.operands[1:]))
        elif op.name in _CALLED and not isinstance(op, Move):
            op = replace(op, operands=tuple(self._array(op, v) for v in op.operands))
        elif is_multiplied(op) and not profile.computes_factors:
            factors = (self._padded(op), self._factor(op, 1))
            op = replace(op, operands=(*factors, *op.operands[2:]))
        op = replace(op, results=(*op.results, *self._scratch(op)))
        roots = listed(self._read(op.operands))
        overwrites: Sequence[Value] = ()
        if op.name in _OVERWRITING:
            overwrites = listed(self._read(op.operands[:1]))
        elif start is not None:
            # A dot is written over what its epilogue reads; a loop over nothing.
            within = frozenset(listed(self._within(op.operands)))
            overwrites = () if is_whole else [v for v in roots if v not in within]
            if start in self._begun:
                self._after[op.results[0]] = self._begun[start] - 1
            op = replace(
                op, name=start.name, eqn=start.eqn, context=start.context, phase=start.phase
            )
        elif is_elementwise(op):
            moved = frozenset(listed(self._moved_by(op, roots)))
            overwrites = [v for v in roots if v not in moved]
        self._emit(op, roots, overwrites)

    def _scratch(self, op: Op) -> list[Value]:
        """Return what a Fourier transform or a triangular solve takes while it runs.

        A TPU has no complex numbers: real and imaginary parts are arrays, all frequencies of them.
        What is left to solve after each block of rows is an array of its own: 16,384 rows for as
        many right-hand sides take 66 GiB on a v5e (libtpu 0.0.52).
        """
        profile = self._compiler.profile
        if op.name == "fft":
            whole = max(op.operands[0], op.results[0], key=lambda v: v.size)
            width = max(op.operands[0].itemsize, op.results[0].itemsize)
            part = Value(whole.shape, f"complex{8 * width}", width)
            return [part.copy() for _ in range(profile.fft_arrays)]
        if op.name == "triangular_solve" and profile.solved_rows is not None:
            blocks = op.operands[0].shape[-1] // profile.solved_rows
            if blocks >= _LEAST_BLOCKS:
                (solution,) = op.results
                return [Value((blocks // 2, *solution.shape), solution.dtype, solution.itemsize)]
        return []

    def _array(self, op: Op, value: Value) -> Value:
        if value.literal is not None or value in self._arrays:
            return value
        return self._copy(op, value)

    def _copy(self, near: Op, value: Value) -> Value:
        copy = value.copy()
        if value in self._compiler.narrow:
            self._compiler.narrow.add(copy)
        op = Op("copy", (value,), (copy,), near.eqn, near.context, near.phase)
        self._emit(op, listed(self._roots[value]), ())
        return copy

    def _emit(self, op: Op, operands: tuple[Value, ...], overwrites: Sequence[Value]) -> None:
        # What was marked for the decisions, such as `Elementwise`, is a plain op from here on.
        kernel = Op(*(getattr(op, name) for name in _FIELDS))
        self._kernels.append(replace(kernel, operands=operands, overwrites=tuple(overwrites)))
        stacks = {op.results[i] for i in op.nest.stacked} if op.nest else ()
        for v in op.results:
            self._roots[v] = (v,)
            self._elsewhere.pop(v, None)
            self._arrays.add(v)
            width = self._fusions.widths.get(v, v.itemsize)
            if v in self._compiler.narrow:
                width = 2
            nbytes = v.size * width
            if self._compiler.profile.pads_to_tiles:
                is_stack = v in stacks
                nbytes = stored_nbytes(v, width, self._compiler.layouts, is_stack=is_stack)
            if nbytes != v.nbytes:
                self._nbytes[v] = nbytes

    def _barrier(self, op: Op) -> None:
        """Let a barrier's results be its operands.

        A stack's slice is an array of its own from here on.
        """
        for a, b in zip(op.operands, op.results, strict=True):
            if a in self._slices:
                self._roots[b] = (self._copy(op, a),)
                self._arrays.add(b)
            else:
                self._alias(b, a)

    def _loop(self, op: Op) -> None:
        nest = op.nest
        bodies = tuple(
            self._compiler.block(b, nest if i == 0 else None) for i, b in enumerate(op.bodies)
        )
        operands: dict[Value, None] = {}
        overwrites: list[Value] = []
        carried = {nest.operands[i] for i in nest.carries} if nest else set()
        for i, v in enumerate(op.operands):
            if v.literal is not None:
                continue
            roots = listed(self._roots[v])
            if i in carried:
                overwrites += roots
            elif nest:
                inputs = op.bodies[0].inputs
                is_narrow = i < len(inputs) and inputs[i] in self._compiler.narrow
                if is_narrow and v not in self._compiler.narrow and v.dtype == "float32":
                    roots = (self._cast(op, v),)
                elif v in self._slices:
                    roots = (self._copy(op, v),)
            operands.update(dict.fromkeys(roots))
        self._fill(op)
        zeros = [self._zeros[v] for v in op.results if v in self._zeros]
        operands.update(dict.fromkeys(zeros))
        copied = [self._copied_zeros[v] for v in op.results if v in self._copied_zeros]
        operands.update(dict.fromkeys(copied))
        self._emit(replace(op, bodies=bodies), tuple(operands), [*overwrites, *zeros])
        self._looped.update(op.results)

    def _fill(self, op: Op) -> None:
        """Make the zeros that later loops write stacks over that are like those of this loop."""
        for v in op.results:
            alike = self._alike.pop(_array_type(v), ())
            later = [w for w in alike if w not in op.results]
            if not later:
                continue
            if len(alike) > _MOST_FILLED_AT_ONCE:
                zeros = dict.fromkeys(alike, v.copy())
                self._copied_zeros.update(zeros)
            else:
                zeros = {w: w.copy() for w in later}
                self._zeros.update(zeros)
            results = tuple(dict.fromkeys(zeros.values()))
            fill = Op("broadcast_in_dim", (), results, op.eqn, op.context, op.phase)
            self._emit(fill, (), ())

    def _cast(self, op: Op, value: Value) -> Value:
        """Return what a loop multiplies, cast before the loop, once and all of it."""
        narrow = self._casts.get(value)
        if narrow is None:
            narrow = self._casts[value] = replace(value, dtype="bfloat16", itemsize=2)
            cast = Op("convert_element_type", (value,), (narrow,), op.eqn, op.context, op.phase)
            self._emit(cast, listed(self._roots[value]), ())
        return narrow

    def _carry(self, block: Kernels, ops: Sequence[Op]) -> None:
        """Let a carry's next value take the buffer of the carry, if nothing reads it any more."""
        if self._nest is None:
            return
        last: dict[Value, int] = {}
        born: dict[Value, int] = {}
        for i, op in enumerate(ops):
            last.update(dict.fromkeys(op.operands, i))
            born.update(dict.fromkeys(op.results, i))
        returned = set(block.outputs)
        for entering, leaving in self._nest.carries.items():
            old, new = block.inputs[entering], block.outputs[leaving]
            at = born.get(new)
            if at is None or old in returned:
                continue
            end = last.get(old, -1)
            if end < at or (end == at and old in ops[at].overwrites):
                self._nbytes[new] = 0
