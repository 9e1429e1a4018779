"""What jaxresid reads of a jaxpr, as protocols: JAX 0.7.0 to 0.12 has no public class for each.

What is in `params` differs between primitives and JAX versions, so its values are anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Aval(Protocol):
    """The type of a value: tokens and Refs of some versions have no shape of their own."""

    shape: tuple[int, ...]
    dtype: Any


class Var(Protocol):
    """A variable, or a `Literal` where an operand or an output is written in the jaxpr."""

    aval: Aval


class Literal(Var, Protocol):
    """An operand or an output that is a constant."""

    val: Any


class Primitive(Protocol):
    """What an eqn applies."""

    name: str


class Eqn(Protocol):
    """One operation of a jaxpr."""

    primitive: Primitive
    params: Mapping[str, Any]
    invars: Sequence[Var]
    outvars: Sequence[Var]
    effects: Any
    source_info: Any
    ctx: Any

    def replace(self, **changes: Any) -> Eqn:
        """Return the eqn with some of its attributes changed."""


class ClosedJaxpr(Protocol):
    """A jaxpr with its constants; `jax_compat.open_jaxpr` returns the open one on every version."""

    consts: Sequence[Any]

    def replace(self, **changes: Any) -> ClosedJaxpr:
        """Return the closed jaxpr with some of its attributes changed."""


class Jaxpr(ClosedJaxpr, Protocol):
    """An open jaxpr; only since 0.11 it carries its constants."""

    eqns: Sequence[Eqn]
    constvars: Sequence[Var]
    invars: Sequence[Var]
    outvars: Sequence[Var]
    effects: Any
    debug_info: Any

    def replace(self, **changes: Any) -> Jaxpr:
        """Return the jaxpr with some of its attributes changed."""
