"""Make the number of checkpoints of a solver's loop one of the choices of a plan."""

from __future__ import annotations

from jaxresid.inspector.jaxpr.bindings import strip_trace_context
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.variants.choices import Variants
from jaxresid.inspector.variants.solver_variants import Solver, SolverVariants, with_solver


def variants_of(subject: Subject) -> Variants:
    """Return the variants of a function, with the checkpoints of its solver's loop among them.

    Of microbatches they are as written.
    """
    variants = subject.variants()
    if subject.passes > 1:
        return variants

    def again() -> Variants:
        traced = subject.traced_with(subject.trace.arguments.leaves)
        for jaxpr in (traced.trace.written, *(top.jaxpr for top in traced.trace.tops)):
            strip_trace_context(jaxpr)
        return traced.variants()

    return with_solver(variants, subject.trace, subject.fun, again)


def solver_of(variants: Variants) -> Solver | None:
    """Return the solver's loop among the choices of variants; None where there is none."""
    return variants.solver if isinstance(variants, SolverVariants) else None
