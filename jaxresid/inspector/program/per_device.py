"""Turn a program that is split over a mesh into the program that one device runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from jaxresid.inspector.call.splits import Split, fitting, parts, shard, text
from jaxresid.inspector.program.collectives import collectives
from jaxresid.inspector.program.ops import Block, Op, Value
from jaxresid.inspector.program.propagation import propagated


def per_device(
    block: Block,
    pins: Mapping[Value, Split],
    known: Mapping[Value, tuple[int, ...]],
    sizes: Mapping[str, int],
    local: frozenset[Op],
) -> tuple[Block, Callable[[Value], Value]]:
    """Return the block as one device of a mesh runs it, and a function that maps values into it.

    Collectives between ops are not among its ops, nor are the copies that they need; its ops say
    what they have to exchange.

    Args:
      block: the block of the whole program.
      pins: how values are split, where something says so; for others it is found out (see
        `propagation`), and what cannot be found out is whole.
      known: the shapes that a device holds of some values, as the compiler reports them; except for
        the block's inputs they take precedence over pins.
      sizes: the sizes of the mesh's axes by name.
      local: ops whose types are one device's already, except for their inputs and outputs.
    """
    found = propagated(block, pins, sizes, local)
    if known:
        # A constraint may leave dims to the compiler; only what arrays come in as is settled.
        settled = {v: pins[v] for v in block.inputs if v in pins}
        pins = {**pins, **_fitted(known, settled, found, sizes)}
        found = propagated(block, pins, sizes, local)
    made = _Local({**found, **pins}, sizes, local)
    return made.block(block), made.value


def _fitted(
    known: Mapping[Value, tuple[int, ...]],
    pins: Mapping[Value, Split],
    found: Mapping[Value, Split],
    sizes: Mapping[str, int],
) -> dict[Value, Split]:
    splits: dict[Value, Split] = {}
    for value, piece in known.items():
        if value not in pins and value.literal is None:
            likely = found.get(value, ((),) * len(value.shape))
            split = fitting(value.shape, piece, sizes, likely)
            if split is not None:
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
        split = self._splits.get(value)
        if split is None or not any(split):
            return value
        made = self._made.get(value)
        if made is None:
            made = replace(
                value,
                shape=shard(value.shape, split, self._sizes),
                whole=value.shape,
                spec=text(split),
            )
            self._made[value] = made
        return made

    def block(self, block: Block) -> Block:
        gathered: set[tuple[Value, frozenset[str]]] = set()
        return Block(
            tuple(map(self.value, block.inputs)),
            tuple(self._op(op, gathered) for op in block.ops),
            tuple(map(self.value, block.outputs)),
        )

    def _op(self, op: Op, gathered: set[tuple[Value, frozenset[str]]]) -> Op:
        arrays = [v for v in (*op.operands, *op.results) if v in self._splits]
        axes = {axis for v in arrays for dim in self._splits[v] for axis in dim}
        is_local = op in self._local
        return replace(
            op,
            operands=tuple(map(self.value, op.operands)),
            results=tuple(map(self.value, op.results)),
            bodies=tuple(map(self.block, op.bodies)),
            devices=1 if is_local else parts(axes, self._sizes),
            # Those that are written stay.
            collectives=op.collectives
            if is_local or op.bodies
            else (*op.collectives, *collectives(op, self._splits, self._sizes, gathered)),
        )
