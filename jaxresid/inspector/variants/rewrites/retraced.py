"""The program as JAX traces it again where calls of its code are replaced."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.ops import Op
from jaxresid.inspector.trace.traced import Traced
from jaxresid.inspector.variants.rewrites.effects import Figures
from jaxresid.results import Interval, LiveValue


@dataclass(frozen=True, slots=True, eq=False)
class Retraced:
    """A program that was traced again.

    Attributes:
      interval: the interval around its estimated peak; None where there is none.
      temporaries: each temporary that is live at its peak, with the op that makes it.
    """

    trace: Traced
    program: Program
    figures: Figures
    interval: Interval | None
    temporaries: tuple[tuple[LiveValue, Op], ...]
