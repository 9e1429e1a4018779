"""A function that is differentiated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jaxresid.errors import JaxresidError
from jaxresid.inspector.findings.collect import Search, searches_of_function
from jaxresid.inspector.findings.proposals import Proposal
from jaxresid.inspector.findings.whole_activations import whole_activations
from jaxresid.inspector.holes.loss import LossHole
from jaxresid.inspector.residuals.listing import listed
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.trace import meshes
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.taken_gradients import lines_of_gradients
from jaxresid.inspector.variants.rewrites.effects import Rewrites
from jaxresid.model import Finding, Mesh, Report, Split, Target

if TYPE_CHECKING:
    from jaxresid.xla.processes.cache import CompileCache


@dataclass(frozen=True)
class FunctionSubject(Subject):
    """A function that is differentiated; see `Subject`.

    Attributes:
      split_again: returns a variant of its trace with the residuals split as a compiler says, or
        the reason why it does not; None where none is asked.
    """

    trace: Trace
    split_again: Callable[[Trace], tuple[Trace, str | None]] | None = None

    @property
    def mesh(self) -> Mesh | None:
        """The mesh that it is split over, and whether a compiler said how; None without one."""
        found = super().mesh
        if found is None or self.trace.pieces is None:
            return found
        return replace(found, source="compiler")

    def split_by_compiler(self, cache: CompileCache | None) -> FunctionSubject:
        """Return the function with its residuals split as a compiler says; see `Subject`."""
        mesh = self.mesh
        if mesh is None or mesh.mode != "auto" or mesh.size == 1:
            return self
        split = functools.partial(meshes.split_by_compiler, cache=cache)
        traced, reason = split(self.trace)
        more = () if reason is None else (reason,)
        warnings = (*self.warnings, *more)
        return replace(self, trace=traced, split_again=split, warnings=warnings)

    def proposing(self, report: Report) -> Iterator[Search[Proposal]]:
        """Yield the searches for findings that are worth a rewrite; see `Subject.proposing`."""
        yield from super().proposing(report)
        split = self.split_again
        if report.peak is not None and split is not None and self.trace.pieces:
            rewrites = Rewrites(self.holes, self.profile)
            yield (
                "activations-left-whole",
                lambda: whole_activations(
                    report, self.trace, self.program, self.profile, rewrites, split
                ),
            )

    @functools.cached_property
    def holes(self) -> LossHole:
        """The loss itself."""
        return LossHole(self.trace)

    @functools.cached_property
    def target(self) -> Target:
        """The name of the function, and what it is differentiated by."""
        call = self.trace.arguments
        own = lines_of_gradients(self.trace.taken_gradients)
        return Target(
            self.name,
            tuple(call.paths[i] for i in call.having("differentiated")),
            "loss",
            own,
            other_mode="program",
        )

    def traced_with(self, leaves: Sequence[Any]) -> FunctionSubject:
        """Return it traced again with other leaves; see `Subject.traced_with`."""
        if self.trace.again is None:
            raise JaxresidError("the function cannot be traced again")
        call = replace(self.trace.arguments, leaves=tuple(leaves))
        again = self.trace.again
        return replace(self, trace=replace(again(call), again=again))

    def about_code(self, report: Report) -> Iterator[Search[Finding]]:
        """Yield the searches for findings about its code; see `Subject.about_code`."""
        return searches_of_function(report, self.trace)

    def split(self, report: Report, *, max_eqns: int, depth: int) -> Split:
        """Return its forward and backward pass, listed; see `Subject.split`."""
        return listed(self.trace, report, max_eqns=max_eqns, depth=depth)
