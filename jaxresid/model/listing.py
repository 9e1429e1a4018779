"""`jaxresid split`: jaxprs made readable."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.model.target import JaxInfo, Target
from jaxresid.model.values import Aval, Location, Residual


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
