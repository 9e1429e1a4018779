"""The values of `jaxresid split`: readable jaxprs."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.base.text.short_repr import Shown, printable
from jaxresid.results.headline import count_text
from jaxresid.results.target import JaxInfo, Target
from jaxresid.results.values import Aval, Location, Residual


@dataclass(frozen=True, slots=True, repr=False)
class Variable(Shown):
    """A variable of a `Listing`; `residual` is its number in the report, if it is kept."""

    name: str
    aval: Aval | None
    residual: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Equation(Shown):
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


@dataclass(frozen=True, slots=True, repr=False)
class Listing(Shown):
    """A readable jaxpr; `hidden` eqns were left out after the last one shown."""

    inputs: tuple[Variable, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Variable, ...]
    hidden: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Split(Shown):
    """The forward and the backward jaxpr, with the same residual numbers in both."""

    target: Target
    jax: JaxInfo
    forward: Listing
    backward: Listing
    residuals: tuple[Residual, ...]

    def __repr__(self) -> str:
        forward, backward = len(self.forward.equations), len(self.backward.equations)
        kept = count_text(len(self.residuals), "residual")
        equations = f"{forward} and {backward} equations forward and backward"
        return f"<Split of {printable(self.target.name)}: {equations}, {kept}>"
