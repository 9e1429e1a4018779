"""Work out how many bytes an array takes in a TPU's memory.

Arrays are tiled by 8 rows of 128 lanes over the two minor axes, which are padded to whole tiles; of
two or four rows a tile is as high as they are. The compiler chooses the axes among the last. For an
image they are the batch and the features. An array that is reshaped across tiles keeps its own
order, unless that takes more than double, or a batched dot reads it, which takes any order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

from jaxresid.inspector.program.ops import Block, Op, Value, all_ops

_ROWS, _LANES = 8, 128
_LOW = (2, 4)
# Smaller arrays stay on the chip.
_LARGE = 1 << 18


def layouts(block: Block) -> dict[tuple[int, ...], tuple[int, int]]:
    """Return the shapes in a program whose layout is not free, with the axes that are tiled."""
    tiled: dict[tuple[int, ...], tuple[int, int]] = {}
    ops = list(all_ops(block.ops))
    multiplied = {v.shape for op in ops if _is_batched(op) for v in op.operands[:2]}
    for op in ops:
        if op.name == "conv_general_dilated":
            numbers = op.params["dimension_numbers"]
            tiled.setdefault(op.operands[0].shape, tuple(numbers.lhs_spec[:2]))
            tiled.setdefault(op.results[0].shape, tuple(numbers.out_spec[:2]))
        elif _is_batched(op):
            rank = len(op.results[0].shape)
            tiled.setdefault(op.results[0].shape, (rank - 2, rank - 1))
        elif op.name == "reshape" and cuts_tiles(op) and op.results[0].shape not in multiplied:
            shape = op.results[0].shape
            rank = len(shape)
            if rank > 1 and _padded(shape[-2:], [0, 1]) <= 2 * shape[-1] * shape[-2]:
                tiled.setdefault(shape, (rank - 2, rank - 1))
    return tiled


def _is_batched(op: Op) -> bool:
    return op.name == "dot_general" and bool(op.params["dimension_numbers"][1][0])


def stored_nbytes(
    value: Value,
    itemsize: int,
    fixed: Mapping[tuple[int, ...], tuple[int, int]],
    *,
    is_stack: bool = False,
) -> int:
    """Return the bytes of an array, padding included.

    Args:
      is_stack: whether it is a loop's stack, which is laid out as what it stacks.
    """
    if value.literal is not None:
        return 0
    shape = value.shape[1:] if is_stack else value.shape
    if len(shape) < 2 or value.size == 0:
        return value.size * itemsize
    axes = [axis for axis, extent in enumerate(shape) if extent > 1]
    free = axes[-3:] if len(axes) > 3 else axes[-2:]
    padded = _padded(shape, fixed.get(shape, free))
    return padded * (value.shape[0] if is_stack else 1) * itemsize


def _padded(shape: tuple[int, ...], axes: Iterable[int]) -> int:
    """Return the number of elements, padding included, in the layout that has the least."""
    size = math.prod(shape)
    extents = [shape[a] for a in axes if shape[a] > 1]
    if len(extents) < 2:
        return size
    return min(
        size // (rows * lanes) * _up(rows, rows if rows in _LOW else _ROWS) * _up(lanes, _LANES)
        for rows, lanes in itertools.permutations(extents, 2)
    )


def cuts_tiles(op: Op) -> bool:
    """Return whether a reshape is a copy, because another axis is the minor one."""
    before, after = op.operands[0], op.results[0]
    if before.literal is not None or before.size < _LARGE:
        return False
    return bool(before.shape and after.shape and before.shape[-1] != after.shape[-1] != 1)


def _up(extent: int, unit: int) -> int:
    return -(-extent // unit) * unit
