"""The values and ops that programs are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.nesting import Nest


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """An array.

    Attributes:
      shape: on a mesh, of the part that one device holds.
      literal: the number that a literal is, written out; it needs no storage.
      whole: on a mesh, of an array that is split, the shape of all of it.
      spec: how it is split, `data,model`.
    """

    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    memory: str = "device"
    literal: str | None = None
    whole: tuple[int, ...] | None = None
    spec: str = ""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return 0 if self.literal is not None else self.size * self.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """The eqns that an op was inlined from, innermost last; `which` of their inner jaxprs.

    Attributes:
      tags: the name stacks of all of them.
      remats: the checkpoints' eqns among them.
    """

    parent: Context | None = None
    eqn: Any = None
    which: int = 0
    tags: str = ""
    remats: tuple[Any, ...] = ()
    top: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Ops in order, between what they are given and what they give."""

    inputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One primitive applied.

    Attributes:
      bodies: of a loop its body (and of a while its condition after it), of a cond its branches.
      nest: how a loop's body lines up with the op.
      phase: `forward`, `recompute`, `backward` or `update`.
      devices: how many share the work that the eqn is on a mesh.
    """

    name: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    eqn: Any
    context: Context
    phase: str
    bodies: tuple[Block, ...] = ()
    nest: Nest | None = None
    devices: int = 1

    @property
    def params(self) -> Mapping[str, Any]:
        return {} if self.name == "barrier" else jax_compat.params(self.eqn)

    @property
    def is_loop(self) -> bool:
        return self.nest is not None
