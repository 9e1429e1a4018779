"""Values of a program: residuals, their shapes and types, their origins and their source lines."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Literal as OneOf

from jaxresid.base.text.short_repr import Shown, printable

_LOSS = "<--loss "


@dataclass(frozen=True, slots=True, repr=False)
class Location(Shown):
    """A place in source.

    Attributes:
      file: the path, relative to the working directory where it is below it; `<--loss mean>` for
        what a loss computes that is ours, see `of_loss`.
      line: the row, from 1.
      column: the column in code points, from 0; None where it is not known.
      function: the function that the line is in.
      code: the source of the line; '' where it is not known.
    """

    file: str
    line: int
    column: int | None
    function: str
    code: str = ""

    @classmethod
    def of_loss(cls, name: str, line: int, code: str) -> Location:
        """Return the location of what a loss computes that `--loss` names, in code of ours."""
        return cls(f"{_LOSS}{name}>", line, None, "", code)

    @property
    def is_of_loss(self) -> bool:
        """Whether it is in a loss that `--loss` names, where there is no line of the user's."""
        return self.file.startswith(_LOSS)

    @property
    def place(self) -> str:
        """The file and the line, or `the loss (--loss cross-entropy)`."""
        return f"the loss ({self.file[1:-1]})" if self.is_of_loss else f"{self.file}:{self.line}"

    def __repr__(self) -> str:
        file, function = printable(self.file, -40), printable(self.function, 40)
        return f"<Location {file}:{self.line} in {function}>"


@dataclass(frozen=True, slots=True, repr=False)
class Source(Shown):
    """The origin of something in a program, in code of the user's and in code of others.

    Attributes:
      location: the innermost line of the user's own code; None where JAX recorded none.
      library: the innermost line of the library that the user's line called, where that is
        another.
      caller: the innermost line of another library that called that one: a model's, where
        `library` is a layer's.
      scope: the module path: the name-stack scope, `trunk/attention`, else the classes of the
        modules whose methods ran, `Transformer/Block`.
    """

    location: Location | None = None
    library: Location | None = None
    caller: Location | None = None
    scope: str = ""

    def __repr__(self) -> str:
        place = self.location or self.library
        where = "unknown" if place is None else repr(place).removeprefix("<Location ")[:-1]
        module = f", module {printable(self.scope, 40)}" if self.scope else ""
        return f"<Source {where}{module}>"


NOWHERE = Source()


@dataclass(frozen=True, slots=True, repr=False)
class Aval(Shown):
    """Shape, dtype and memory space of a value.

    Attributes:
      dtype: the name of the dtype.
      shape: the shape of the whole array.
      itemsize: bytes of one element.
      memory: `device` or `host`.
      shard: the shape that one device of the mesh holds; None: all of it.
      spec: how it is split over the mesh, `data,model`; '' where it is not, or not known.
    """

    dtype: str
    shape: tuple[int, ...]
    itemsize: int
    memory: OneOf["device", "host"] = "device"
    shard: tuple[int, ...] | None = None
    spec: str = ""

    def __repr__(self) -> str:
        shape = printable(",".join(map(str, self.shape)), 40)
        split = f"@{printable(self.spec, 20)}" if self.spec else ""
        memory = " in host memory" if self.memory == "host" else ""
        array = f"{printable(self.dtype, 20)}[{shape}{split}]"
        return f"<Aval {array}{memory}>"

    @property
    def nbytes(self) -> int:
        """Bytes of one dense array of this aval, on a mesh of the part of it that one device holds.

        Padding and tiling, which the compiler adds, are not counted.
        """
        return math.prod(self.shape if self.shard is None else self.shard) * self.itemsize

    @property
    def global_nbytes(self) -> int:
        """Bytes of the whole array, on however many devices."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True, slots=True, repr=False)
class Argument(Shown):
    """A residual that is an input: already in memory, so it costs nothing extra.

    Attributes:
      path: its path in the arguments: `params['w']`.
      kind: `argument`.
    """

    path: str
    kind: OneOf["argument"] = "argument"


@dataclass(frozen=True, slots=True, repr=False)
class Constant(Shown):
    """A residual that is an array the function closed over.

    Attributes:
      kind: `constant`.
    """

    kind: OneOf["constant"] = "constant"


@dataclass(frozen=True, slots=True, repr=False)
class Literal(Shown):
    """A residual that is a number written into the jaxpr: no storage.

    Attributes:
      value: the number, as text.
      kind: `literal`.
    """

    value: str
    kind: OneOf["literal"] = "literal"


@dataclass(frozen=True, slots=True, repr=False)
class Computed(Shown):
    """A residual that the forward pass computes and keeps.

    Attributes:
      primitive: the primitive that computes it, seen through reshapes, casts, transposes,
        broadcasts and names.
      source: where it is computed.
      stack: the user's and the libraries' frames, outermost first, without JAX's own.
      name: its `checkpoint_name`, if any.
      named_at: where it was named.
      within: enclosing loops, calls and transforms, outermost first: `scan ×48`, `jit f`.
      through: what was looked through to find `primitive`, outermost (the kept value) first.
      path: the argument it is a view, a cast or a slice of, if it is one.
      kind: `computed`.
    """

    primitive: str
    source: Source = NOWHERE
    stack: tuple[Location, ...] = ()
    name: str | None = None
    named_at: Location | None = None
    within: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    path: str | None = None
    kind: OneOf["computed"] = "computed"

    @property
    def location(self) -> Location | None:
        """The user's line; None where JAX recorded none."""
        return self.source.location

    @property
    def library(self) -> Location | None:
        """The library's line that the user's line called, see `Source`."""
        return self.source.library

    @property
    def scope(self) -> str:
        """The module path, see `Source`."""
        return self.source.scope


Origin = Argument | Constant | Literal | Computed


class Mark(enum.StrEnum):
    """A further property of a residual that matters to a reader."""

    PRIMAL_OUTPUT = "primal-output"  # also returned by the function, so in memory anyway
    DUPLICATE = "duplicate"  # the same value as an earlier residual
    FREE = "free-to-recompute"  # made of literals, iota and scalars: cheaper to make than to keep
    CARRY = "carry"  # a loop's carry, kept as it enters each trip
    INVARIANT = "loop-invariant"  # the same value, stacked once per trip
    UNREAD = "unread"  # no backward eqn reads it; a compiler drops it
    OFFLOADED = "offloaded"  # moved to host memory


@dataclass(frozen=True, slots=True, repr=False)
class Consumer(Shown):
    """A backward eqn that reads a residual.

    `phase` is `recompute` when the eqn re-creates forward values inside a checkpoint, else
    `backward`.

    Attributes:
      primitive: the primitive of the eqn.
      location: the user's line; None where JAX recorded none.
      within: the enclosing loops, calls and transforms, outermost first.
      phase: `recompute` where the eqn makes forward values again inside a checkpoint, else
        `backward`.
    """

    primitive: str
    location: Location | None
    within: tuple[str, ...] = ()
    phase: OneOf["backward", "recompute"] = "backward"


@dataclass(frozen=True, slots=True, repr=False)
class Residual(Shown):
    """One leaf of what `jax.vjp` keeps between the forward and the backward pass.

    Attributes:
      aval: its shape, dtype and memory, all trips of loops included.
      origin: where it comes from.
      trips: the trips of the loops that stack it; `nbytes` counts them already.
      consumers: the eqns of the backward pass that read it, in program order.
      marks: its further properties.
    """

    aval: Aval
    origin: Origin
    trips: int = 1
    consumers: tuple[Consumer, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def nbytes(self) -> int:
        """Its bytes, as in `Aval.nbytes`; a loop's residual counts every trip."""
        return self.aval.nbytes


@dataclass(frozen=True, slots=True, repr=False)
class Totals(Shown):
    """Bytes by kind; each residual counts in exactly one field, literals in none.

    Arguments are in memory already, and constants live with the function.

    Attributes:
      arguments_nbytes: bytes of arguments in device memory.
      computed_nbytes: bytes of computed residuals in device memory.
      host_nbytes: bytes of computed residuals in host memory.
      constants_nbytes: bytes of constants.
      host_arguments_nbytes: bytes of arguments in host memory.
    """

    arguments_nbytes: int
    computed_nbytes: int
    host_nbytes: int
    constants_nbytes: int
    host_arguments_nbytes: int = 0


def totals_of(residuals: tuple[Residual, ...]) -> Totals:
    """Return the bytes of residuals by kind."""
    return Totals(
        arguments_nbytes=_sum(residuals, "argument", "device"),
        computed_nbytes=_sum(residuals, "computed", "device"),
        host_nbytes=_sum(residuals, "computed", "host"),
        constants_nbytes=_sum(residuals, "constant"),
        host_arguments_nbytes=_sum(residuals, "argument", "host"),
    )


def _sum(residuals: tuple[Residual, ...], kind: str, memory: str | None = None) -> int:
    return sum(
        r.nbytes
        for r in residuals
        if r.origin.kind == kind and (memory is None or r.aval.memory == memory)
    )
