"""Describe how the variables of a trace are split over a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxresid.inspector.call.splits import Split
from jaxresid.jax_compat.jaxpr_types import Var


@dataclass(frozen=True, slots=True, eq=False)
class Sharding:
    """The split of the variables of a trace over a mesh.

    Attributes:
      sizes: the mesh's axes and their sizes.
      inputs: the splits of variables that are arguments.
      known: the shapes that a device holds of other variables, as the compiler says.
    """

    sizes: Mapping[str, int]
    inputs: Mapping[Var, Split]
    known: Mapping[Var, tuple[int, ...]] = field(default_factory=dict)
