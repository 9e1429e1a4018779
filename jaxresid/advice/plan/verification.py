"""Compare what a plan promises with what its code gives: the edited code is traced and measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jaxresid.advice.plan.live_patch import UnpatchableError, patched
from jaxresid.base.errors import JaxresidError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.holes.splicing import Gradients, leaving_out
from jaxresid.inspector.jaxpr.bindings import intercept_bind
from jaxresid.inspector.report import subject
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.variants.choices import Variant, Variants, everywhere

if TYPE_CHECKING:
    from jaxresid.advice.plan.source.file_edits import FileEdit

# Edits and what is promised of them -> the target under them.
Check = Callable[["Sequence[FileEdit]", "PlanFigures"], "WrittenCode"]


# As a share of what was promised.
_TRIFLE = 5e-3


class UnverifiedError(Exception):
    """The reason why the code of a plan cannot be traced."""


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """The figures that a plan promises, in bytes and FLOPs.

    Attributes:
      peak_nbytes: The estimated peak.
      kept_nbytes: The computed residuals in device memory.
      host_nbytes: The computed residuals in host memory.
      recompute_flops: What runs on top of the code without any checkpoint.
      plain_flops: What that runs.
    """

    peak_nbytes: int
    kept_nbytes: int
    host_nbytes: int
    recompute_flops: int
    plain_flops: int


def keeps_to(found: PlanFigures, promised: PlanFigures) -> bool:
    """Return whether code gives what was promised of it.

    It may hold a little less: what a loop makes of keys to go through them is made once where the
    code makes a list of it first, and in each group without; and a weight that Flax converts in a
    saved layer is converted again where the code names the layer's result.
    """
    pairs = (
        (found.peak_nbytes, promised.peak_nbytes),
        (found.kept_nbytes, promised.kept_nbytes),
    )
    return (
        (found.recompute_flops, found.plain_flops, found.host_nbytes)
        == (promised.recompute_flops, promised.plain_flops, promised.host_nbytes)
    ) and all(0 <= most - nbytes <= _TRIFLE * most for nbytes, most in pairs)


@dataclass(frozen=True, slots=True, eq=False)
class WrittenCode:
    """What edited code gives.

    Attributes:
      figures: The figures.
      variant: The code as it was traced; None where another process traced it.
    """

    figures: PlanFigures
    variant: Variant | None = None


def figures(variant: Variant, plain: Variant) -> PlanFigures:
    """Return the figures of a variant; `plain` is the same program without any checkpoint."""
    return _figures(variant, plain.cost.flops)


def _figures(variant: Variant, plain_flops: int) -> PlanFigures:
    return PlanFigures(
        variant.peak_nbytes,
        variant.kept_nbytes,
        variant.host_nbytes,
        max(variant.cost.flops - plain_flops, 0),
        plain_flops,
    )


def figures_of(subject: Subject, plain_flops: int) -> PlanFigures:
    """Return the figures of edited code.

    Args:
      subject: The edited code, traced.
      plain_flops: The FLOPs of the original without any checkpoint. Segments of a loop leave some
        that they bring when their checkpoints are taken away.
    """
    return _figures(subject.variants().variant({}), plain_flops)


def without_checkpoints(variants: Variants) -> Variant:
    """Return the variant of the program without any checkpoint."""
    sites = [place for place in variants.places() if place.kind == "checkpoint"]
    return variants.variant({place: everywhere(place, None) for place in sites})


def in_process_check(
    original: Subject, question: Question, made_of: Callable[[Subject], Subject] | None = None
) -> Check:
    """Return a check that traces edited code in this process, see `live_patch`.

    Args:
      original: The traced function that the question led to.
      question: The question about the target.
      made_of: Makes what is planned for of the traced target; None: it is the target.
    """

    def check(edits: Sequence[FileEdit], promised: PlanFigures) -> WrittenCode:
        try:
            with patched(edits, question.fun) as fun, intercept_bind({}):
                edited = subject(replace(question, fun=fun, mode=original.target.mode))
                if made_of is not None:
                    edited = made_of(edited)
                variant = edited.variants().variant({})
                # What a compiler is asked about is traced when it is needed, which is to be now.
                _ = edited.trace.written
                return WrittenCode(_figures(variant, promised.plain_flops), variant)
        except UnpatchableError as e:
            raise UnverifiedError(str(e)) from e
        except JaxresidError as e:
            raise UnverifiedError(str(e).partition("\n")[0]) from e
        except Exception as e:
            first = str(e).partition("\n")[0]
            raise UnverifiedError(f"{type(e).__name__}: {first}") from e

    return check


def retrace(subject: Subject) -> None:
    """Run the user's code once more while JAX traces it, so that its calls can be watched.

    A step's gradients are left out where they can be: for these JAX calls more functions than the
    user's code does, each of which is watched. What it raises is ignored.
    """
    for gradients in (leaving_out(Gradients(subject.frames)), contextlib.nullcontext()):
        # Strings among the auxiliary outputs cannot be returned.
        with contextlib.suppress(Exception), intercept_bind({}), gradients:
            subject.trace.run_again(subject.fun)
            return
