"""Define one jaxpr in the nest of jaxprs, and the way to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxresid.inspector.jaxpr.frames import Frame
from jaxresid.inspector.jaxpr.nesting import Nest
from jaxresid.jax_compat.jaxpr_types import Jaxpr


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """A jaxpr and the way to it.

    Attributes:
      jaxpr: the open jaxpr.
      parent, eqn, nest: the level above, its eqn that holds this jaxpr, and how they line up.
      frames: the stack of `eqn`, outermost first.
      within: enclosing loops, calls and transforms, outermost first.
      scope: name-stack scopes, joined.
      primal: the same place in the primal jaxpr, which still has the checkpoints.
      inputs: for the top level, the path in the arguments of each invar, as far as they are known.
    """

    jaxpr: Jaxpr
    parent: Level | None = None
    eqn: Any = None
    nest: Nest | None = None
    frames: tuple[Frame, ...] = ()
    within: tuple[str, ...] = ()
    scope: str = ""
    primal: Jaxpr | None = None
    inputs: tuple[str | None, ...] = ()
