"""Find float32 arrays that hold bfloat16, because only dots of default precision read them.

A TPU multiplies float32 at default precision in one pass of bfloat16, and its compiler moves the
cast to where the operand is made: also through the stack of a scan, which then takes half as much.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.primitives import PARTS, REDUCTIONS, VIEWS
from jaxresid.inspector.memory.rules.fusion import Fusions
from jaxresid.inspector.memory.rules.op_kinds import LIBRARY, is_multiplied
from jaxresid.inspector.program.ops import EXCHANGE, GATHER, SCATTER, Block, Op, Value

# The bits of a float32 are not those of the bfloat16 that it holds.
_MOVES = (VIEWS - {"bitcast_convert_type"}) | {"broadcast_in_dim", "concatenate", "rev", "copy"}
# A piece at a place that is not known, and all pieces with an axis less, were not measured.
_PIECES = PARTS - {"dynamic_slice", "unstack"}
# What writes the type that it is asked for, or moves it between devices. What a constraint gathers
# is gathered in its type, what the partitioner gathers for a dot as that reads it (v5e, libtpu with
# jax 0.10.2: 2.7 and 1.5 GiB for the same layers).
_AS_GIVEN = LIBRARY | {"while", "device_put", EXCHANGE, SCATTER}
_CONSTRAINTS = frozenset({"sharding_constraint", "shard_map"})


def narrowed(block: Block, plan: Callable[[Block], Fusions]) -> frozenset[Value]:
    """Return the values of a whole program, bodies included, that are float32 but hold bfloat16.

    A reduction of what a dot writes is made along with the dot, and does not read its result.
    """
    narrow: set[Value] = set()
    _find(block, frozenset(), plan, narrow)
    return frozenset(narrow.difference(block.inputs))


def _find(
    block: Block,
    outputs: frozenset[int],
    plan: Callable[[Block], Fusions],
    narrow: set[Value],
) -> None:
    """Add to `narrow` the values of a block that hold bfloat16.

    `outputs` are the numbers of the block's outputs that only dots read after it.
    """
    wide: set[Value] = set()
    seen: set[Value] = set()
    planned = plan(block)
    written = planned.starts
    for i, v in enumerate(block.outputs):
        seen.add(v)
        if i not in outputs:
            wide.add(v)
    multiplied = _only_multiplied(planned.block)
    for op in reversed(planned.block.ops):
        for v in op.results:
            if v in seen and v not in wide and v.dtype == "float32" and not _is_as_given(op):
                narrow.add(v)
        seen.update(op.operands)
        if op.nest is not None:
            nest = op.nest
            stacked = frozenset(i for i in nest.stacked if op.results[i] in narrow)
            _find(op.bodies[0], stacked, plan, narrow)
            for body in op.bodies[1:]:
                _find(body, frozenset(), plan, narrow)
            carried = {nest.operands[i] for i in nest.carries}
            inputs = op.bodies[0].inputs
            for i, v in enumerate(op.operands):
                if i in carried or i >= len(inputs) or inputs[i] not in narrow:
                    wide.add(v)
        elif op.bodies:
            for body in op.bodies:
                _find(body, frozenset(), plan, narrow)
            wide.update(op.operands)
        elif op.name == "barrier":
            wide.update(a for a, b in zip(op.operands, op.results, strict=True) if b not in narrow)
        elif op.name in _MOVES:
            if not all(v in narrow for v in op.results):
                wide.update(op.operands)
        elif op.name in _PIECES and all(v in narrow for v in op.results):
            # A dot takes its piece out of the whole; one that is first split into heads, say, is
            # an array of its own, made of the whole in float32.
            if not all(v in multiplied for v in op.results):
                wide.update(op.operands)
        elif op.name in REDUCTIONS:
            wide.update(v for v in op.operands if v not in written)
        elif not (is_multiplied(op) and _is_one_pass(op)):
            wide.update(op.operands)
    for v in block.inputs:
        if v in seen and v not in wide and v.dtype == "float32":
            narrow.add(v)


def _is_as_given(op: Op) -> bool:
    if op.name == GATHER:
        return jax_compat.primitive_name(op.eqn) in _CONSTRAINTS
    return op.name in _AS_GIVEN


def _only_multiplied(block: Block) -> set[Value]:
    multiplied: set[Value] = set()
    other = set(block.outputs)
    for op in reversed(block.ops):
        turned = set(op.results) if op.name == "transpose" else set()
        is_turned = bool(turned) and turned <= multiplied and turned.isdisjoint(other)
        (multiplied if is_multiplied(op) or is_turned else other).update(op.operands)
    return multiplied - other


def _is_one_pass(op: Op) -> bool:
    precision = op.params.get("precision")
    precisions = precision if isinstance(precision, tuple) else (precision,)
    return all(p is None or getattr(p, "name", str(p)) == "DEFAULT" for p in precisions)
