"""Turn a program that is split over a mesh into the program that one device runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from jaxresid.inspector.call.splits import Split, fitting, parts, shard, text
from jaxresid.inspector.program.collectives import (
    Exchanged,
    exchanges,
    split_anew,
)
from jaxresid.inspector.program.ops import (
    CUT,
    EXCHANGE,
    GATHER,
    SCATTER,
    Block,
    Collective,
    Op,
    Value,
)
from jaxresid.inspector.program.propagation import PartialSplit, propagated

# The op of a program whose operand its result is, split otherwise, also as JAX writes it in types.
SPLIT_ANEW = "sharding_constraint"
_SPLIT_ANEW = frozenset({SPLIT_ANEW, "reshard"})


def per_device(
    block: Block,
    pins: Mapping[Value, Split],
    shapes: Mapping[Value, tuple[int, ...]],
    sizes: Mapping[str, int],
    local: frozenset[Op],
    partly: Mapping[Value, PartialSplit] = MappingProxyType({}),
) -> tuple[Block, Callable[[Value], Value]]:
    """Return the block as one device of a mesh runs it, and a function that maps values into it.

    What is gathered before an op reads it, and sums that are scattered, are ops; sums that all
    devices need are made in place, and the ops of which they are say so.

    Args:
      pins: how values are split, where something says so; for others it is found out (see
        `propagation`), and what cannot be found out is whole.
      shapes: those that a device holds of some values, as the compiler reports them; except for the
        block's inputs they take precedence over pins.
      local: ops whose types are one device's already, except for their inputs and outputs.
      partly: values of which something says how they are split, except for some dims.
    """
    splits = propagated(block, pins, sizes, local, partly)
    if shapes:
        # A constraint may leave dims to the compiler; only what arrays come in as is settled.
        settled = {v: pins[v] for v in block.inputs if v in pins}
        # What is pinned spreads first, so only what was found otherwise is.
        other = _fitted(shapes, settled, splits, sizes)
        if other:
            pins = {**pins, **other}
            splits = propagated(block, pins, sizes, local, partly)
    local_program = _Local({**splits, **pins}, sizes, local)
    return local_program.block(block), local_program.value


def _fitted(
    shapes: Mapping[Value, tuple[int, ...]],
    pins: Mapping[Value, Split],
    likely_splits: Mapping[Value, Split],
    sizes: Mapping[str, int],
) -> dict[Value, Split]:
    """Return the splits of values that are split otherwise than was found."""
    splits: dict[Value, Split] = {}
    for value, piece in shapes.items():
        if value not in pins and value.literal is None:
            likely = likely_splits.get(value, ((),) * len(value.shape))
            split = fitting(value.shape, piece, sizes, likely)
            if split is not None and split != likely:
                splits[value] = split
    return splits


class _Local:
    def __init__(
        self, splits: Mapping[Value, Split], sizes: Mapping[str, int], local: frozenset[Op]
    ) -> None:
        self._splits = splits
        self._sizes = sizes
        self._local = local
        self._made: dict[Value, Value] = {}

    def value(self, value: Value) -> Value:
        local = self._made.get(value)
        if local is not None:
            return local
        split = self._split(value)
        if not any(split):
            return value
        local = self._made[value] = self._at(value, split)
        return local

    def _split(self, value: Value) -> Split:
        return self._splits.get(value, ((),) * len(value.shape))

    def _at(self, value: Value, split: Split) -> Value:
        shape = shard(value.shape, split, self._sizes)
        return replace(
            value, shape=shape, whole=value.shape if any(split) else None, spec=text(split)
        )

    def block(self, block: Block) -> Block:
        inputs = tuple(map(self.value, block.inputs))
        ops: list[Op] = []
        # What was gathered or exchanged before in the block, and how.
        gathered: dict[tuple[Value, Split], Value] = {}
        for op in block.ops:
            if op.name in _SPLIT_ANEW:
                self._split_anew(op, ops, gathered)
            else:
                self._add(op, ops, gathered)
        return Block(inputs, tuple(ops), tuple(map(self.value, block.outputs)))

    def _split_anew(
        self, op: Op, ops: list[Op], gathered: dict[tuple[Value, Split], Value]
    ) -> None:
        """Add what it takes to split a value anew: none, or a gather, an exchange and a cut."""
        (before,), (after,) = op.operands, op.results
        source, split, wanted = self.value(before), self._split(before), self._split(after)
        for exchanged in split_anew(before, split, wanted, self._sizes):
            source, split = self._exchanged(op, exchanged, source, ops, gathered), exchanged.split
        if split == wanted:
            self._made[after] = source
        else:
            ops.append(_beside(op, CUT, source, self.value(after)))

    def _exchanged(
        self,
        op: Op,
        exchanged: Exchanged,
        source: Value,
        ops: list[Op],
        gathered: dict[tuple[Value, Split], Value],
    ) -> Value:
        """Return an operand of an op as split anew, and add the op that does it, if none did.

        Args:
          source: the operand as far as it was gathered before.
          gathered: what was gathered or exchanged before in the block, and how.
        """
        key = exchanged.value, exchanged.split
        if key not in gathered:
            name = GATHER if exchanged.collective.kind == "all-gather" else EXCHANGE
            gathered_value = gathered[key] = self._at(exchanged.value, exchanged.split)
            ops.append(_beside(op, name, source, gathered_value, exchanged.collective))
        return gathered[key]

    def _add(self, op: Op, ops: list[Op], gathered: dict[tuple[Value, Split], Value]) -> None:
        """Add an op, behind what gathers its operands and before what scatters its results."""
        arrays = [v for v in (*op.operands, *op.results) if v in self._splits]
        axes = {axis for v in arrays for dim in self._splits[v] for axis in dim}
        is_local = op in self._local
        operands: dict[Value, Value] = {}
        results: dict[Value, Value] = {}
        # Those that are written stay.
        written, after = list(op.collectives), []
        if not is_local and not op.bodies:
            for exchanged in exchanges(op, self._splits, self._sizes):
                value, split, collective = exchanged
                if collective.kind in {"all-gather", "all-to-all"}:
                    source = operands.get(value) or self.value(value)
                    operands[value] = self._exchanged(op, exchanged, source, ops, gathered)
                elif collective.kind == "reduce-scatter":
                    results[value] = partial = self._at(value, split)
                    after.append(_beside(op, SCATTER, partial, self.value(value), collective))
                else:
                    written.append(collective)
        ops.append(
            replace(
                op,
                operands=tuple([operands.get(v) or self.value(v) for v in op.operands]),
                results=tuple([results.get(v) or self.value(v) for v in op.results]),
                bodies=tuple(map(self.block, op.bodies)),
                devices=1 if is_local else parts(axes, self._sizes),
                collectives=tuple(written),
            )
        )
        ops += after


def _beside(op: Op, name: str, before: Value, after: Value, *exchanged: Collective) -> Op:
    return Op(name, (before,), (after,), op.eqn, op.context, op.phase, collectives=exchanged)
