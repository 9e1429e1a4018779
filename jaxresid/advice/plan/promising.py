"""Compare what a plan promises with what its code gives: the edited code is traced and measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jaxresid.advice.plan.rehearsing import UnrehearsedError, rehearsed
from jaxresid.errors import JaxresidError
from jaxresid.inspector.jaxpr.bindings import heard
from jaxresid.inspector.report import subject
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.trace.question import Question
from jaxresid.inspector.variants.choices import Variant, Variants, everywhere

if TYPE_CHECKING:
    from jaxresid.advice.plan.source.file_edits import FileEdit

# Edits and what is promised of them -> the figures of the target under them.
Check = Callable[["Sequence[FileEdit]", "Figures"], "Figures"]


class UnverifiedError(Exception):
    """The reason why the code of a plan cannot be traced."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures that a plan promises, in bytes and FLOPs."""

    peak_nbytes: int
    kept_nbytes: int
    host_nbytes: int
    recompute_flops: int


def figures(variant: Variant, plain: Variant) -> Figures:
    """Return the figures of a variant; `plain` is the same program without any checkpoint."""
    return Figures(
        variant.peak_nbytes,
        variant.kept_nbytes,
        variant.host_nbytes,
        max((variant.cost - plain.cost).flops, 0),
    )


def figures_of(subject: Subject) -> Figures:
    """Return the figures of the code as it is written."""
    variants = subject.variants()
    return figures(variants.variant({}), without_checkpoints(variants))


def without_checkpoints(variants: Variants) -> Variant:
    """Return the variant of the program without any checkpoint."""
    sites = [place for place in variants.places() if place.kind == "checkpoint"]
    return variants.variant({place: everywhere(place, None) for place in sites})


def rehearsal(found: Subject, question: Question) -> Check:
    """Return a check that traces edited code in this process, see `rehearsing`.

    Args:
      found: The traced function that the question led to.
      question: The question about the target.
    """

    def check(edits: Sequence[FileEdit], promised: Figures) -> Figures:
        try:
            with rehearsed(edits, question.fun) as fun, heard({}):
                return figures_of(subject(replace(question, fun=fun, mode=found.target.mode)))
        except UnrehearsedError as e:
            raise UnverifiedError(str(e)) from e
        except JaxresidError as e:
            raise UnverifiedError(str(e).partition("\n")[0]) from e
        except Exception as e:
            first = str(e).partition("\n")[0]
            raise UnverifiedError(f"{type(e).__name__}: {first}") from e

    return check


def run_again(subject: Subject) -> None:
    """Run the user's code once more while JAX traces it, so that its calls can be watched.

    What it raises is ignored.
    """
    try:
        with heard({}):
            subject.trace.run_again(subject.fun)
    except Exception:  # strings among the auxiliary outputs cannot be returned
        return
