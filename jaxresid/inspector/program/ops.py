"""Define the values and ops that programs are made of.

Plans make them by the hundred thousand. Their attributes are final where other classes are frozen:
mypy checks either, and to make a frozen object takes seven times as long.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args
from typing import Literal as OneOf

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.nesting import Nest
from jaxresid.jax_compat.jaxpr_types import Eqn
from jaxresid.results import Pass


@dataclass(slots=True, eq=False)
class Value:
    """An array.

    Attributes:
      shape: its shape; on a mesh, that of the part that one device holds.
      dtype: the name of its dtype.
      itemsize: bytes of one element.
      memory: `device` or `host`.
      literal: the number that a literal is, written out; it needs no storage.
      whole: on a mesh, for an array that is split, the shape of all of it.
      spec: how it is split, `data,model`.
    """

    shape: Final[tuple[int, ...]]
    dtype: Final[str]
    itemsize: Final[int]
    memory: Final[str] = "device"
    literal: Final[str | None] = None
    whole: Final[tuple[int, ...] | None] = None
    spec: Final[str] = ""

    def copy(self) -> Value:
        """Return another array like it; `dataclasses.replace` takes twice as long."""
        return Value(
            self.shape,
            self.dtype,
            self.itemsize,
            self.memory,
            self.literal,
            self.whole,
            self.spec,
        )

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes that it takes; none for a literal."""
        return 0 if self.literal is not None else self.size * self.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class InlineContext:
    """The eqns that an op was inlined from, as a chain that begins with the innermost.

    Attributes:
      parent: the context around `eqn`; None at the top.
      eqn: the innermost eqn; None at the top.
      which: the number of the inner jaxpr of `eqn` that the op is in.
      tags: the name stacks of all of them.
      remats: the checkpoints' eqns among them.
      top: the jaxpr at the top.
    """

    parent: InlineContext | None = None
    eqn: Any = None
    which: int = 0
    tags: str = ""
    remats: tuple[Eqn, ...] = ()
    top: Any = None

    @property
    def is_of_pass(self) -> bool:
        """Whether what is at the top is a pass of a derivative."""
        return bool(self.tags) and not self.tags.startswith("/")

    @property
    def eqns(self) -> tuple[Eqn, ...]:
        """Return the eqns, outermost first."""
        outer = () if self.parent is None else self.parent.eqns
        return outer if self.eqn is None else (*outer, self.eqn)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Ops in order, between the block's inputs and its outputs."""

    inputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]


Exchange = OneOf[
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
]
_WHOLE = frozenset({"collective-permute", "collective-broadcast"})
EXCHANGES = frozenset(get_args(Exchange))


@dataclass(frozen=True, slots=True)
class Collective:
    """One exchange between devices.

    Attributes:
      kind: What is exchanged.
      nbytes: The bytes of the array on one device: of the gathered one, of the one that is reduced,
        exchanged in parts or handed on.
      devices: How many devices take part in one exchange.
      axes: The mesh axes along which they are: the size of each, and how many devices apart its
        neighbours are; none where all are next to each other.
    """

    kind: Exchange
    nbytes: int
    devices: int
    axes: tuple[tuple[int, int], ...] = ()

    @property
    def moved_nbytes(self) -> float:
        """The bytes that one device sends, in a ring."""
        if self.kind in _WHOLE:
            return float(self.nbytes)
        once = self.nbytes * (self.devices - 1) / self.devices
        return 2 * once if self.kind == "all-reduce" else once

    def on_host(self, size: int) -> int:
        """Return how many of the devices are on one host, of hosts with `size` devices each."""
        axes = self.axes or ((self.devices, 1),)
        places = itertools.product(*([i * apart for i in range(n)] for n, apart in axes))
        return min(self.devices, sum(sum(place) < size for place in places))

    def leaving_nbytes(self, near: int) -> float:
        """Return the bytes that one device sends to other hosts.

        A ring leaves a host once, and there are as many rings as devices of it take part, each over
        the network adapter of another.

        Args:
          near: how many of the devices are on one host; fewer than all of them.
        """
        if self.kind in _WHOLE:
            return float(self.nbytes)
        if self.kind == "all-to-all":
            return self.nbytes * (self.devices - near) / self.devices
        return self.moved_nbytes / near


# Ops that no eqn writes: what a checkpoint holds back; and on a mesh, what devices put together,
# what they exchange, what each takes of an array that all have, and of their sum.
BARRIER: Final = "barrier"
GATHER: Final = "all-gather"
EXCHANGE: Final = "all-to-all"
CUT: Final = "cut"
SCATTER: Final = "reduce-scatter"
UNWRITTEN = frozenset({BARRIER, GATHER, EXCHANGE, CUT, SCATTER})


@dataclass(slots=True, eq=False)
class Op:
    """One application of a primitive.

    Attributes:
      name: the primitive, or one of `UNWRITTEN`.
      operands: what it reads.
      results: what it makes.
      eqn: the eqn that it comes from.
      context: the eqns around that one.
      phase: `forward`, `recompute`, `backward` or `update`.
      bodies: for a loop its body (for a while its condition after it), for a cond its branches.
      nest: how a loop's body lines up with the op; None if it is no loop.
      devices: on a mesh, how many devices share the work of the eqn.
      collectives: what it exchanges with other devices: on a mesh, as the splits imply; in the body
        of a `shard_map`, as it is written.
    """

    name: Final[str]
    operands: Final[tuple[Value, ...]]
    results: Final[tuple[Value, ...]]
    eqn: Final[Eqn]
    context: Final[InlineContext]
    phase: Final[Pass]
    bodies: Final[tuple[Block, ...]] = ()
    nest: Final[Nest | None] = None
    devices: Final[int] = 1
    collectives: Final[tuple[Collective, ...]] = ()

    @property
    def params(self) -> Mapping[str, Any]:
        """The params of its eqn; none where that does not write it."""
        return {} if self.name in UNWRITTEN else jax_compat.params(self.eqn)

    @property
    def is_loop(self) -> bool:
        """Whether it is a scan or a while loop."""
        return self.nest is not None
