"""Measure the shapes, elements and bytes of jaxpr variables."""

from __future__ import annotations

import math
from collections.abc import Iterable

from jaxresid.jax_compat.jaxpr_types import Var


def shape(var: Var) -> tuple[int, ...]:
    """Return the shape of a variable; () for a token."""
    found: tuple[int, ...] = getattr(var.aval, "shape", ())
    return found


def size(var: Var) -> int:
    """Return the number of elements of a variable."""
    return math.prod(shape(var))


def nbytes(var: Var) -> int:
    """Return the bytes of a variable; 0 for a token."""
    aval = var.aval
    dtype = getattr(aval, "dtype", None)
    return 0 if dtype is None else math.prod(aval.shape) * int(dtype.itemsize)


def extent(var: Var, axes: Iterable[int]) -> int:
    """Return the number of elements along some axes of a variable."""
    dims = shape(var)
    return math.prod(dims[axis] for axis in axes)


def matrices(var: Var) -> tuple[int, int, int]:
    """Return how many matrices an operand holds, and their rows and columns.

    The last two axes are the rows and columns; all the others count matrices.
    """
    *batch, m, n = shape(var)
    return math.prod(batch), m, n
