"""In what order the elements of an array lie that a dot reads through views."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from jaxresid.inspector.program.ops import Op

Strides = tuple[int, ...]
# The order of an array that a dot reads where it lies.
AS_IT_IS: Strides = ()


def row_major(shape: Sequence[int]) -> Strides:
    """Return the strides of an array in elements, the last axis being the minor one."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def viewed(op: Op, strides: Strides) -> Strides | None:
    """Return the strides of a view's result; None if it cannot be one, and is a copy.

    Args:
      op: a view, such as a reshape or a transpose.
      strides: those of its operand.
    """
    before, after = op.operands[0].shape, op.results[0].shape
    if op.name == "transpose":
        return tuple(strides[i] for i in op.params["permutation"])
    if before == after or math.prod(before) == 0:
        return strides
    old = [(n, s) for n, s in zip(before, strides, strict=True) if n > 1]
    found: list[int] = []
    at = 0
    for extent in after:
        if extent == 1:
            found.append(1)
            continue
        # Merge axes of the operand until this one fits in, then split what is left.
        while at < len(old) and old[at][0] % extent:
            if at + 1 == len(old) or old[at][1] != old[at + 1][0] * old[at + 1][1]:
                return None
            old[at : at + 2] = [(old[at][0] * old[at + 1][0], old[at + 1][1])]
        if at == len(old):
            return None
        size, stride = old[at]
        found.append(stride * (size // extent))
        if size == extent:
            at += 1
        else:
            old[at] = (size // extent, stride)
    return tuple(found)


def read_order(op: Op, which: int, strides: Strides | None) -> Strides:
    """Return the order in which a dot reads an array as its first or second factor.

    Args:
      op: the dot.
      which: 0 or 1.
      strides: those of the factor; None if it is no view of the array.

    Returns:
      `AS_IT_IS`, or what tells an order from others that the array could be copied to.
    """
    shape = op.operands[which].shape
    if strides is None:
        return row_major(shape)
    contracted, batch = (axes[which] for axes in op.params["dimension_numbers"])
    if _is_multipliable(shape, strides, batch, contracted):
        return AS_IT_IS
    return tuple(strides[i] for i in batch if shape[i] > 1) or strides


def _is_multipliable(
    shape: Sequence[int], strides: Strides, batch: Sequence[int], contracted: Sequence[int]
) -> bool:
    """Return whether a dot can read a factor where it lies.

    That is where its batch axes are the major ones, and those that are contracted and the others
    are one axis each.
    """
    axes = sorted((i for i, n in enumerate(shape) if n > 1), key=lambda i: -strides[i])
    groups = [0 if i in batch else 1 if i in contracted else 2 for i in axes]
    runs = [group for group, _ in itertools.groupby(groups)]
    if len(set(runs)) != len(runs) or 0 in runs[1:]:
        return False
    neighbours = itertools.pairwise(zip(axes, groups, strict=True))
    return all(a != b or strides[i] == strides[j] * shape[j] for (i, a), (j, b) in neighbours)
