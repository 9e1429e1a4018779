"""Add what a jaxpr leaves to XLA:CPU: the copies that its dots, convolutions and loops need.

This was read off the passes of jaxlib 0.12 and the programs that come out of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from jaxresid.inspector.jaxpr.nesting import Nest
from jaxresid.inspector.jaxpr.primitives import SCATTERS, VIEWS
from jaxresid.inspector.memory.cpu.fusion import ELEMENTWISE, kernel
from jaxresid.inspector.program.ops import Block, Op, Value

# A transposition is a copy, if nothing takes it in.
_VIEWS = VIEWS - {"transpose"}
# These write over their first operand.
OVERWRITING = SCATTERS | {"dynamic_update_slice"}


@dataclass(frozen=True, slots=True)
class BlockWithCopies:
    """A block with nothing left out.

    Attributes:
      block: the block with its copies, broadcasts and reshapes.
      rewritten: results of dots that are written the other way round to save a transposition.
      plain: results of dots that no library fusion takes in.
    """

    block: Block
    rewritten: frozenset[Value]
    plain: frozenset[Value]


def insert_copies(block: Block, nest: Nest | None) -> BlockWithCopies:
    """Return the block with its copies, broadcasts and reshapes.

    Args:
      block: the block.
      nest: how it lines up with the loop whose body it is; None if it is no loop's.
    """
    writer = _CopyInserter(nest)
    made = writer.block(block)
    return BlockWithCopies(made, frozenset(writer.rewritten), frozenset(writer.plain()))


@dataclass(frozen=True, slots=True)
class _Transposed:
    """A value that is another one with its axes permuted."""

    base: Value
    permutation: tuple[int, ...]


class _CopyInserter:
    """A writer of what the jaxpr leaves to the compiler."""

    def __init__(self, nest: Nest | None) -> None:
        self._nest = nest
        self._ops: list[Op] = []
        self._same: dict[Value, Value] = {}
        self._turned: dict[Value, _Transposed] = {}
        self._makers: dict[Value, Op] = {}
        self._readers: dict[Value, int] = {}
        self._wide: dict[Hashable, Value] = {}
        self._copies: dict[Hashable, Value] = {}
        # Results of dots that were turned round, and of those that the library does not take.
        self.rewritten: set[Value] = set()
        self._narrow: set[Value] = set()
        self._reading: dict[Value, list[Op]] = {}
        self._held: dict[Value, tuple[Value, ...]] = {}
        # What is written over -> the copies of it that are.
        self._writable: dict[Value, list[Value]] = {}

    def plain(self) -> set[Value]:
        return self.rewritten | self._narrow

    def block(self, block: Block) -> Block:
        self._inputs = frozenset(block.inputs)
        for op in block.ops:
            for v in op.operands:
                self._readers[v] = self._readers.get(v, 0) + 1
                self._reading.setdefault(v, []).append(op)
        for v in block.outputs:
            self._readers[v] = self._readers.get(v, 0) + 1
        slices = frozenset(block.inputs[i] for i in self._nest.slices) if self._nest else ()
        for op in block.ops:
            for v in op.operands:
                if v in slices and v not in self._same:
                    # A trip's slice of a stack is an array of its own, for those that need one.
                    self._same[v] = self._add(op, "dynamic_slice", (v,), replace(v))
            self._write(op)
        outputs = [self._of(v) for v in block.outputs]
        if self._nest and block.ops:
            for i in self._nest.stacked:
                v = outputs[i]
                maker = self._makers.get(v, block.ops[-1])
                outputs[i] = self._add(maker, "dynamic_update_slice", (v,), _like(v, v.shape))
        self._upcast()
        return Block(block.inputs, self._owned(outputs), tuple(outputs))

    def _upcast(self) -> None:
        """Compute in float32 the dots of half precision that the library does not take."""
        ops, self._ops = self._ops, []
        plain = self.plain()
        wide: dict[Value, Value] = {}
        for op in ops:
            result = op.results[0] if op.name == "dot_general" else None
            if result is None or not (
                op.operands[0].dtype == "float16"
                or (op.operands[0].dtype == "bfloat16" and result in plain)
            ):
                self._ops.append(op)
                continue
            for v in op.operands:
                if v not in wide:
                    made = Value(v.shape, "float32", 4, v.memory)
                    wide[v] = self._add(op, "convert_element_type", (v,), made)
            operands = tuple(wide[v] for v in op.operands)
            if result.dtype == "float32":
                self._narrow.add(result)
                self._emit(replace(op, operands=operands))
                continue
            made = Value(result.shape, "float32", 4, result.memory)
            self._narrow.add(made)
            self._emit(replace(op, operands=operands, results=(made,)))
            if result in self.rewritten:
                self.rewritten.add(made)
            self._add(op, "convert_element_type", (made,), result)

    def _owned(self, outputs: Sequence[Value]) -> tuple[Op, ...]:
        """Return the ops without the copies that are not needed.

        What only one op writes over, and nothing else reads, needs no copy; if the op writes over
        it several times, one of its copies is dropped. Of several ops, one that runs after all
        others needs no copy.
        """
        readers: dict[Value, list[Op | None]] = {v: [None] for v in outputs}
        for op in self._ops:
            for v in op.operands:
                readers.setdefault(v, []).append(op)
        needless: dict[Value, Value] = {}
        for source, copies in self._writable.items():
            if source not in self._makers or len(readers[source]) != len(copies):
                continue
            writers = list(dict.fromkeys(op for v in copies for op in readers[v] if op))
            if len(writers) == 1:
                needless[copies[0]] = source
            elif self._runs_last(writers):
                last = next(v for v in reversed(copies) if writers[-1] in readers[v])
                needless[last] = source
        return tuple(
            replace(op, operands=tuple(needless.get(v, v) for v in op.operands))
            if any(v in needless for v in op.operands)
            else op
            for op in self._ops
            if not (op.results and op.results[0] in needless)
        )

    def _runs_last(self, writers: Sequence[Op]) -> bool:
        """Return whether the last of these ops needs the results of all others."""
        missing = set(writers[:-1])
        seen: set[Op] = set()
        ahead = [writers[-1]]
        while ahead and missing:
            op = ahead.pop()
            for v in op.operands:
                maker = self._makers.get(v)
                if maker is not None and maker not in seen:
                    seen.add(maker)
                    missing.discard(maker)
                    ahead.append(maker)
        return not missing

    def _of(self, value: Value) -> Value:
        return self._same.get(value, value)

    def _emit(self, op: Op) -> None:
        self._ops.append(op)
        for v in op.results:
            self._makers[v] = op

    def _add(self, near: Op, name: str, operands: tuple[Value, ...], result: Value) -> Value:
        made = replace(near, name=name, operands=operands, results=(result,), bodies=(), nest=None)
        self._emit(made)
        return result

    def _write(self, op: Op) -> None:
        operands = tuple(self._of(v) for v in op.operands)
        name = op.name
        if name in _VIEWS or (name == "broadcast_in_dim" and _keeps_size(op)):
            self._same[op.results[0]] = self._view(op, operands[0], op.results[0])
        elif name == "max" and "-inf" in (operands[0].literal, operands[1].literal):
            self._same[op.results[0]] = operands[operands[0].literal == "-inf"]
        elif name == "transpose":
            self._transpose(op, operands[0])
        elif name == "split":
            for v in op.results:
                self._emit(replace(op, name="slice", operands=operands, results=(v,)))
        elif name == "dot_general":
            self._dot(op, operands)
        elif name == "conv_general_dilated":
            self._convolution(op, operands)
        elif name == "select_and_scatter_add":
            self._pooling_gradient(op, *operands)
        elif name == "scatter-add" and self._adds_to_zeros(op, operands[0]):
            self._held[op.results[0]] = operands[1:]
        elif name in ("add", "add_any") and self._held.keys() & {*operands}:
            # Zeros, scattered to, added to an array: scattered to the array.
            first, second = operands
            array, held = (second, first) if first in self._held else (first, second)
            array = self._of_held(op, array)
            scattered = (self._own(op, array), *self._held[held])
            self._emit(replace(op, name="scatter-add", operands=scattered))
        elif name in ELEMENTWISE:
            self._emit(replace(op, operands=self._widened(op, operands)))
        elif name in OVERWRITING:
            self._emit(replace(op, operands=(self._own(op, operands[0]), *operands[1:])))
        elif name == "broadcast_in_dim" and operands[0].literal == "0.0":
            key = ("0.0", op.results[0].dtype, op.results[0].shape)
            if key in self._wide:
                self._same[op.results[0]] = self._wide[key]
            else:
                self._wide[key] = op.results[0]
                self._emit(op)
        elif op.nest is not None:
            self._emit(replace(op, operands=self._loop_operands(op, op.nest, operands)))
        else:
            self._emit(replace(op, operands=operands))

    def _pooling_gradient(self, op: Op, source: Value, operand: Value) -> None:
        """Write the gradient of a maximum over windows as XLA's SelectAndScatterExpander does.

        A reduction of the operand and the coordinates of its elements, one array per axis, finds
        the places that the source is then scattered to.
        """
        axes = range(len(operand.shape))
        places = tuple(self._add(op, "iota", (), Value(operand.shape, "int32", 4)) for _ in axes)
        found = tuple(Value(source.shape, "int32", 4) for _ in axes)
        read, results = (operand, *places), (replace(source), *found)
        self._emit(replace(op, name="reduce_window", operands=read, results=results))
        table = Value((source.size, len(axes)), "int32", 4)
        indices = self._add(op, "concatenate", found, table)
        target = self._own(op, self._zeros(op, op.results[0]))
        self._emit(replace(op, name="scatter-add", operands=(target, indices, source)))

    def _adds_to_zeros(self, op: Op, operand: Value) -> bool:
        readers = self._reading.get(op.results[0], [])
        return (
            operand is self._wide.get(("0.0", operand.dtype, operand.shape))
            and self._readers[op.results[0]] == 1
            and len(readers) == 1
            and readers[0].name in ("add", "add_any")
        )

    def _of_held(self, op: Op, value: Value) -> Value:
        """Return the value; if it was itself held back, it is made now."""
        operands = self._held.pop(value, None)
        if operands is None:
            return value
        zeros = self._zeros(op, value)
        self._emit(
            replace(
                op,
                name="scatter-add",
                operands=(self._own(op, zeros), *operands),
                results=(value,),
            )
        )
        return value

    def _view(self, near: Op, value: Value, like: Value) -> Value:
        """Return the value in another shape.

        One that only gains or loses axes of length 1 stays as it is.
        """
        if value.literal is not None:
            return value
        maker = self._makers.get(value)
        if maker is not None and maker.name == "reshape":
            value = maker.operands[0]
        if _long(value.shape) == _long(like.shape):
            return value
        key = (value, like.shape, like.dtype)
        if key not in self._copies:
            self._copies[key] = self._add(near, "reshape", (value,), replace(like))
        return self._copies[key]

    def _widened(self, op: Op, operands: Sequence[Value]) -> tuple[Value, ...]:
        """Return the operands, broadcast to the result; each broadcast is made once."""
        result = op.results[0]
        found = []
        for v in operands:
            if result.size in (v.size, 1):
                found.append(v)
                continue
            key = (v.literal or v, v.dtype, result.shape)
            if key not in self._wide:
                wide = _like(v, result.shape)
                self._wide[key] = self._add(op, "broadcast_in_dim", (v,), wide)
            found.append(self._wide[key])
        return tuple(found)

    def _transpose(self, op: Op, operand: Value) -> None:
        result, permutation = op.results[0], tuple(op.params["permutation"])
        maker = self._makers.get(operand)
        if maker is not None and maker.name == "dot_general":
            # A dot writes its result either way round: the last two axes, after the batch.
            rank = len(permutation)
            turned = (*range(rank - 2), rank - 1, rank - 2)
            if (
                self._readers.get(op.operands[0], 0) == 1
                and permutation == turned
                and _batch(maker) == rank - 2
            ):
                self._same[result] = operand
                self.rewritten ^= {operand}
                return
        base = operand
        if operand in self._turned and operand.shape == op.operands[0].shape:
            before = self._turned[operand]
            base, permutation = before.base, tuple(before.permutation[i] for i in permutation)
        if base.shape == op.operands[0].shape or base is not operand:
            if _keeps_order(base.shape, permutation):
                self._same[result] = base
                return
            self._turned[result] = _Transposed(base, permutation)
            known = self._copies.get((base, permutation))
            if known is not None:
                self._same[result] = known
                return
            self._copies[base, permutation] = result
        self._emit(replace(op, operands=(base,)))

    def _dot(self, op: Op, operands: Sequence[Value]) -> None:
        """Write a matrix product.

        Its operands are in the order of batch, rows, columns, with rows and columns a single axis
        each. An operand that is not in this order is copied, except for plain matrices, which are
        read in either orientation.
        """
        contracting, batch = op.params["dimension_numbers"]
        found, sizes = [], []
        joined = False
        for side, (declared, v) in enumerate(zip(op.operands, operands, strict=True)):
            shape = declared.shape
            summed, batched = tuple(contracting[side]), tuple(batch[side])
            free = tuple(i for i in range(len(shape)) if i not in summed and i not in batched)
            order = (*batched, *free, *summed) if side == 0 else (*batched, *summed, *free)
            made, turned = self._ordered(op, declared, v, order, len(batched))
            first, second = (free, summed) if side == 0 else (summed, free)
            matrix = (
                *(shape[i] for i in batched),
                math.prod(shape[i] for i in first),
                math.prod(shape[i] for i in second),
            )
            several = max(len(_long([shape[i] for i in axes])) for axes in (free, summed)) > 1
            joined = joined or len(_long([shape[i] for i in free])) > 1
            if several:
                made = self._view(op, made, _like(made, matrix))
            elif side == 0 and turned:
                self._narrow.add(op.results[0])
            found.append(made)
            sizes.append(math.prod(shape[i] for i in free))
        result = op.results[0]
        self._emit(replace(op, operands=tuple(found)))
        if joined:  # a dot makes a single axis of those of each side
            shape = (*(op.operands[0].shape[i] for i in batch[0]), *sizes)
            self._same[result] = self._add(op, "reshape", (result,), _like(result, shape))

    def _ordered(
        self, op: Op, declared: Value, value: Value, order: tuple[int, ...], batch: int | None
    ) -> tuple[Value, bool]:
        """Return the value with its axes in this order, and whether its matrices stay transposed.

        They may stay so only where `batch` leading axes are followed by the two axes of a matrix.
        """
        if value.literal is not None:
            return value, False
        base, shape = value, declared.shape
        turned = self._turned.get(value)
        if turned is not None and value.shape == declared.shape:
            composed = tuple(turned.permutation[i] for i in order)
            if _keeps_order(turned.base.shape, composed):
                return turned.base, False
            if _swaps(turned.base.shape, composed, batch):
                return turned.base, True
            if not _keeps_order(shape, order) and not _swaps(shape, order, batch):
                base, shape, order = turned.base, turned.base.shape, composed
        if _keeps_order(shape, order):
            return value, False
        if base is value and _swaps(shape, order, batch):
            return value, True
        key = (base, order)
        if key not in self._copies:
            made = _like(base, tuple(shape[i] for i in order))
            self._copies[key] = self._add(op, "transpose", (base,), made)
        return self._copies[key], False

    def _convolution(self, op: Op, operands: Sequence[Value]) -> None:
        """Write a convolution: images as batch, space, features and kernels as space, in, out.

        Operands in another order are copied.
        """
        numbers = op.params["dimension_numbers"]
        images, kernel, out = (tuple(s) for s in numbers)
        image = (images[0], *images[2:], images[1])
        weight = (*kernel[2:], kernel[1], kernel[0])
        found = [
            self._ordered(op, declared, v, order, None)[0]
            for declared, v, order in zip(op.operands, operands, (image, weight), strict=True)
        ]
        result = op.results[0]
        order = (out[0], *out[2:], out[1])
        if _keeps_order(result.shape, order):
            self._emit(replace(op, operands=tuple(found)))
            return
        made = _like(result, tuple(result.shape[i] for i in order))
        self._emit(replace(op, operands=tuple(found), results=(made,)))
        self._emit(replace(op, name="transpose", operands=(made,)))

    def _loop_operands(self, op: Op, nest: Nest, operands: Sequence[Value]) -> tuple[Value, ...]:
        """Return a loop's operands with the buffers that it writes: its carries and its stacks."""
        found = list(operands)
        for inner in nest.carries:
            at = nest.operands[inner]
            found[at] = self._own(op, operands[at])
        for i in sorted(nest.stacked):
            if op.results[i].memory == "device":
                found.append(self._own(op, self._zeros(op, op.results[i])))
        return tuple(found)

    def _own(self, op: Op, value: Value) -> Value:
        """Copy a value for `op` to write over, and return the copy.

        `_owned` drops the copies that are not needed.
        """
        made = _like(value, value.shape)
        near = replace(op, name="copy", bodies=(), nest=None)
        self._emit(kernel(replace(near, results=(made,)), (value,)))
        self._writable.setdefault(value, []).append(made)
        return made

    def _zeros(self, op: Op, like: Value) -> Value:
        key = ("0.0", like.dtype, like.shape)
        if key not in self._wide:
            self._wide[key] = self._add(op, "broadcast_in_dim", (), _like(like, like.shape))
        return self._wide[key]


def _long(shape: Sequence[int]) -> list[int]:
    return [d for d in shape if d != 1]


def _like(value: Value, shape: Sequence[int]) -> Value:
    return Value(tuple(shape), value.dtype, value.itemsize, value.memory)


def _batch(op: Op) -> int:
    return len(op.params["dimension_numbers"][1][0])


def _keeps_size(op: Op) -> bool:
    return op.operands[0].literal is None and op.operands[0].size == op.results[0].size


def _keeps_order(shape: Sequence[int], permutation: Sequence[int]) -> bool:
    """Return whether axes longer than 1 stay in order, so that nothing moves."""
    long = [i for i in permutation if shape[i] != 1]
    return long == sorted(long)


def _swaps(shape: Sequence[int], permutation: Sequence[int], batch: int | None) -> bool:
    """Return whether a permutation transposes matrices behind `batch` axes that stay.

    It never does if `batch` is None.
    """
    if batch is None:
        return False
    ahead = [i for i in permutation[:batch] if shape[i] != 1]
    matrix = [i for i in permutation[batch:] if shape[i] != 1]
    return len(matrix) == 2 and [*ahead, *reversed(matrix)] == sorted([*ahead, *matrix])
