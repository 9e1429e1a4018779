"""The value of `jaxresid report`."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.model.checkpoint import Checkpoint, Finding
from jaxresid.model.compiled import Compiled
from jaxresid.model.cost import Phases
from jaxresid.model.display import show, to_html, to_json
from jaxresid.model.offloading import Offloading
from jaxresid.model.peak import Peak
from jaxresid.model.target import JaxInfo, Mesh, Target
from jaxresid.model.values import Residual, Totals, totals_of
from jaxresid.words import GroupBy


@dataclass(frozen=True, slots=True)
class Report:
    """The residuals that a function's backward pass keeps, their cost, and verdicts on checkpoints.

    `offloading` is None where nothing is or could be in host memory.
    """

    target: Target
    jax: JaxInfo
    residuals: tuple[Residual, ...]
    cost: Phases
    peak: Peak
    checkpoints: tuple[Checkpoint, ...] = ()
    warnings: tuple[str, ...] = ()
    mesh: Mesh | None = None
    offloading: Offloading | None = None  # None where nothing is or could be in host memory
    findings: tuple[Finding, ...] = ()
    compiled: tuple[Compiled, ...] = ()

    @property
    def totals(self) -> Totals:
        """The bytes of the residuals by kind."""
        return totals_of(self.residuals)

    def print(self, *, group_by: GroupBy | None = None, top: int = 20, all: bool = False) -> None:
        """Print the text report to stdout; the options are those of `jaxresid report`."""
        show(self, group_by=group_by, top=None if all else top, all=all)

    def to_json(self) -> str:
        """Return the report as JSON text; its schema is `jaxresid/schema/report.schema.json`."""
        return to_json(self)

    def _repr_html_(self) -> str:
        return to_html(self)
