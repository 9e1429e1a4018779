"""Count the bytes that one plain eqn reads and writes."""

from __future__ import annotations

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.extents import nbytes
from jaxresid.inspector.jaxpr.primitives import SCATTERS, VIEWS, of_kind
from jaxresid.jax_compat.jaxpr_types import Eqn

# Results that are their operand seen otherwise. A transposition is a copy; a mutable array takes
# over its first value, and gives up its last.
_VIEWS = (
    of_kind("mark", "sharding", "dependency", "key")
    | (VIEWS - {"transpose"})
    | {"freeze", "mutable_array", "new_ref", "pbroadcast"}
)

# Read and written is what is taken of an operand, or put into it, and not the whole of it.
TAKES = frozenset(("slice", "dynamic_slice", "gather", "get"))
PUTS = {  # which operand is put
    "dynamic_update_slice": 1,
    "scatter": 2,
    "swap": 1,
}
ADDS = {
    **dict.fromkeys(SCATTERS - {"scatter"}, 2),
    "addupdate": 1,
    "accum_grad_in_ref": 1,
}


def traffic(eqn: Eqn) -> int:
    """Return the bytes that the eqn by itself reads and writes.

    These are its operands and results; literals are free. A view moves nothing; a slice or a gather
    reads and writes only what it takes, an update only what it puts, and what adds to its operand
    reads that part too.
    """
    name = eqn.primitive.name
    if name in _VIEWS:
        return 0
    if name in TAKES:
        return 2 * nbytes(eqn.outvars[0])
    if name in PUTS:
        return 2 * nbytes(eqn.invars[PUTS[name]])
    if name in ADDS:
        return 3 * nbytes(eqn.invars[ADDS[name]])
    total = 0
    for var in eqn.invars:
        if not jax_compat.is_literal(var):
            total += nbytes(var)
    for var in eqn.outvars:
        total += nbytes(var)
    return total
