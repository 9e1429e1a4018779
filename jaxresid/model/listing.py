"""The values of `jaxresid split`: readable jaxprs."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.model.target import JaxInfo, Target
from jaxresid.model.values import Aval, Location, Residual


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a `Listing`; `residual` is its number in the report, if it is kept."""

    name: str
    aval: Aval | None
    residual: int | None = None


@dataclass(frozen=True, slots=True)
class Equation:
    """One eqn of a `Listing`.

    Attributes:
      primitive: the name of its primitive.
      params: its params, as names and texts.
      inputs: the values that it reads.
      outputs: the values that it makes.
      location: the user's line; None where none is known.
      inner: its nested jaxprs.
      folded: how many eqns of nested jaxprs are hidden.
    """

    primitive: str
    params: tuple[tuple[str, str], ...]
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    location: Location | None
    inner: tuple[Listing, ...] = ()
    folded: int = 0


@dataclass(frozen=True, slots=True)
class Listing:
    """A readable jaxpr; `hidden` eqns were left out after the last one shown."""

    inputs: tuple[Variable, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Variable, ...]
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class Split:
    """The forward and the backward jaxpr, with the same residual numbers in both."""

    target: Target
    jax: JaxInfo
    forward: Listing
    backward: Listing
    residuals: tuple[Residual, ...]
