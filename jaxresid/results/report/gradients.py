"""The gradients that a program takes."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.base.text.short_repr import Shown
from jaxresid.results.values import Location


@dataclass(frozen=True, slots=True, repr=False)
class Gradient(Shown):
    """A gradient that a program takes, or several that its code takes at one line and are alike.

    Attributes:
      function: the name of what is differentiated.
      location: the line that takes it; where that is none of the user's, the first line of what is
        differentiated. None where neither is known.
      trips: how often a run of the program takes it.
      kept_nbytes: the bytes in device memory that it computes and keeps for its backward pass, each
        time that it is taken; with `jax.vmap` around of all examples, with `jax.jvp` or
        `jax.jacfwd` around with their tangents.
      host_nbytes: the bytes of these in host memory.
      arguments_nbytes: the bytes of arguments of the program that its backward pass reads.
      gradients: those that what is differentiated takes itself.
    """

    function: str
    location: Location | None
    trips: int
    kept_nbytes: int
    host_nbytes: int = 0
    arguments_nbytes: int = 0
    gradients: tuple[Gradient, ...] = ()
