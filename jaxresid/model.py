"""The frozen values everyone speaks in: standard library only, no analysis, no formatting.

Bytes are integers in fields that end in `nbytes`. A loop's residual carries its stacked aval, so
its `nbytes` already counts every trip; `trips` only informs.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal as OneOf

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Location:
    """A place in source. `line` is 1-based, `column` 0-based in code points (None: unknown)."""

    file: str
    line: int
    column: int | None
    function: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Aval:
    """Shape, dtype and memory space of a value. `memory` is `device` or `host`."""

    dtype: str
    shape: tuple[int, ...]
    itemsize: int
    memory: OneOf["device", "host"] = "device"

    @property
    def nbytes(self) -> int:
        """Bytes of one dense array of this aval; padding and tiling are the compiler's."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True, slots=True)
class Argument:
    """A residual that is an input: alive anyway, so it costs no extra memory."""

    path: str
    kind: OneOf["argument"] = "argument"


@dataclass(frozen=True, slots=True)
class Constant:
    """A residual that is an array the function closed over."""

    kind: OneOf["constant"] = "constant"


@dataclass(frozen=True, slots=True)
class Literal:
    """A residual that is a number written into the jaxpr: no storage."""

    value: str
    kind: OneOf["literal"] = "literal"


@dataclass(frozen=True, slots=True)
class Computed:
    """A residual that the forward pass computes and keeps.

    Attributes:
      primitive: what computes it, seen through reshapes, casts, transposes, broadcasts and names.
      location: innermost line of the user's own code; None where JAX recorded none.
      library: the library call that made it, where that differs from `location`.
      stack: the user's and the libraries' frames, outermost first, without JAX's own.
      scope: name-stack scope, e.g. `trunk/attention`, or a Flax module path.
      name: its `checkpoint_name`, if any.
      named_at: where it was named.
      within: enclosing loops, calls and transforms, outermost first: `scan ×48`, `jit f`.
      through: what was looked through to find `primitive`, outermost (the kept value) first.
      path: the argument it is a view, a cast or a slice of, if it is one.
    """

    primitive: str
    location: Location | None
    library: Location | None = None
    stack: tuple[Location, ...] = ()
    scope: str = ""
    name: str | None = None
    named_at: Location | None = None
    within: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    path: str | None = None
    kind: OneOf["computed"] = "computed"


Origin = Argument | Constant | Literal | Computed


class Mark(enum.StrEnum):
    """What else is worth knowing about a residual."""

    PRIMAL_OUTPUT = "primal-output"  # also returned by the function: alive anyway
    DUPLICATE = "duplicate"  # the same value as an earlier residual
    FREE = "free-to-recompute"  # made of literals, iota and scalars: cheaper to make than to keep
    CARRY = "carry"  # a loop's carry, kept as it enters each trip
    INVARIANT = "loop-invariant"  # the same value, stacked once per trip
    UNREAD = "unread"  # no backward eqn reads it; a compiler drops it
    OFFLOADED = "offloaded"  # moved to host memory


@dataclass(frozen=True, slots=True)
class Consumer:
    """A backward eqn that reads a residual.

    `phase` is `recompute` when the eqn re-creates forward values inside a checkpoint, else
    `backward`.
    """

    primitive: str
    location: Location | None
    within: tuple[str, ...] = ()
    phase: OneOf["backward", "recompute"] = "backward"


@dataclass(frozen=True, slots=True)
class Residual:
    """One leaf of what `jax.vjp` keeps between the forward and the backward pass."""

    aval: Aval
    origin: Origin
    trips: int = 1
    consumers: tuple[Consumer, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def nbytes(self) -> int:
        return self.aval.nbytes


@dataclass(frozen=True, slots=True)
class Totals:
    """Bytes by kind; each residual counts in exactly one field, literals in none.

    `computed_nbytes` counts computed residuals in device memory, `host_nbytes` those in host
    memory; arguments are alive anyway and constants live with the function.
    """

    arguments_nbytes: int
    computed_nbytes: int
    host_nbytes: int
    constants_nbytes: int


@dataclass(frozen=True, slots=True)
class Target:
    """What was inspected. `differentiated` are the argument leaves, as paths."""

    name: str
    differentiated: tuple[str, ...]
    mode: OneOf["function"] = "function"


@dataclass(frozen=True, slots=True)
class JaxInfo:
    """The JAX that traced, and those of its flags that change the answer."""

    version: str
    flags: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Report:
    """What a function's backward pass keeps."""

    target: Target
    jax: JaxInfo
    residuals: tuple[Residual, ...]
    warnings: tuple[str, ...] = ()

    @property
    def totals(self) -> Totals:
        return Totals(
            arguments_nbytes=_sum(self.residuals, "argument"),
            computed_nbytes=_sum(self.residuals, "computed", "device"),
            host_nbytes=_sum(self.residuals, "computed", "host"),
            constants_nbytes=_sum(self.residuals, "constant"),
        )

    def print(self, *, group_by: str | None = None, top: int = 20, all: bool = False) -> None:
        """Prints the text report to stdout; the options are those of `jaxresid report`."""
        from jaxresid.render.text import print_report

        print_report(self, group_by=group_by, top=None if all else top, all=all)

    def to_json(self) -> str:
        """The report as JSON text; its schema is `jaxresid/schema/report.schema.json`."""
        from jaxresid.render.json import report_json

        return report_json(self)

    def _repr_html_(self) -> str:
        from jaxresid.render.html import report_html

        return report_html(self)


def _sum(residuals: tuple[Residual, ...], kind: str, memory: str | None = None) -> int:
    return sum(
        r.nbytes
        for r in residuals
        if r.origin.kind == kind and (memory is None or r.aval.memory == memory)
    )


@dataclass(frozen=True, slots=True)
class Value:
    """A variable of a `Listing`; `residual` is its number in the report, if it is kept."""

    name: str
    aval: Aval | None
    residual: int | None = None


@dataclass(frozen=True, slots=True)
class Equation:
    """One eqn of a `Listing`; `inner` are its nested jaxprs, `folded` their eqns if hidden."""

    primitive: str
    params: tuple[tuple[str, str], ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    location: Location | None
    inner: tuple[Listing, ...] = ()
    folded: int = 0


@dataclass(frozen=True, slots=True)
class Listing:
    """A jaxpr made readable. `hidden` eqns were left out after the last one shown."""

    inputs: tuple[Value, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Value, ...]
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class Split:
    """The forward and the backward jaxpr, residuals numbered alike in both."""

    target: Target
    jax: JaxInfo
    forward: Listing
    backward: Listing
    residuals: tuple[Residual, ...]
