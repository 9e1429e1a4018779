"""Vary how many carries a solver's loop keeps, beside what is done at the other places."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from jaxresid.base.errors import NOT_CAUGHT, JaxresidError
from jaxresid.inspector.jaxpr.bindings import strip_trace_context, user_line
from jaxresid.inspector.trace.traced import Traced
from jaxresid.inspector.variants.choices import (
    CheckpointPlace,
    Choices,
    Details,
    OtherVariants,
    Variant,
    Variants,
    same_places,
)
from jaxresid.inspector.variants.solver_checkpoints import (
    CheckpointedLoop,
    biggest_loop,
    has_loops,
    keeping,
    watching,
)
from jaxresid.results import Location

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Solver:
    """A solver's loop whose number of checkpoints may be chosen.

    Attributes:
      place: where it is called; its choices have `checkpoints`.
      loop: the loop as it is written.
    """

    place: CheckpointPlace
    loop: CheckpointedLoop


class SolverVariants(OtherVariants):
    """The variants of a function with the checkpoints of its loop as one more choice.

    With another number of them the function is traced again, and other choices are made in that
    trace.

    Args:
      plain: The variants of the function as it is written.
      solver: The loop.
      again: Traces the function again, and returns its variants.
    """

    def __init__(self, plain: Variants, solver: Solver, again: Callable[[], Variants]) -> None:
        super().__init__(plain)
        self.plain, self.solver = plain, solver
        self._again = again
        self._with = functools.cache(self._traced_with)

    def variant(self, choices: Choices) -> Variant:
        """Apply choices, differentiate again, and measure; see `choices.Variants`."""
        count, others = self.divided(choices)
        if count is None:
            return self.plain.variant(others)
        with self.keeping(count):
            variants, same = self._with(count)
            made = variants.variant({same[place]: each for place, each in others.items()})
        # What is traced when it is asked for runs the function as well.
        return replace(
            made,
            kept_in=self._within(count, made.kept_in),
            details=self._within(count, lambda: _stripped_details(made)),
        )

    def trace(self, choices: Choices) -> Traced:
        """Return the trace with choices made; see `choices.Variants`."""
        count, others = self.divided(choices)
        if count is None:
            return self.plain.trace(others)
        with self.keeping(count):
            variants, same = self._with(count)
            return _stripped(variants.trace({same[place]: each for place, each in others.items()}))

    def divided(self, choices: Choices) -> tuple[int | None, Choices]:
        """Return how many carries the loop is to keep, None for as written, and other choices."""
        made = choices.get(self.solver.place, (None,))[0]
        others = {place: each for place, each in choices.items() if place is not self.solver.place}
        return None if made is None else made.checkpoints, others

    def keeping(self, count: int | None) -> contextlib.AbstractContextManager[None]:
        """Return the context in which the loop is traced to keep so many carries."""
        if count is None:
            return contextlib.nullcontext()
        return keeping(self.solver.loop.checkpoints, count)

    def _traced_with(self, count: int) -> tuple[Variants, dict[CheckpointPlace, CheckpointPlace]]:
        try:
            variants = self._again()
        except (JaxresidError, *NOT_CAUGHT):
            raise
        except Exception as e:  # the function may raise anything
            raise JaxresidError(f"with checkpoints={count} it cannot be traced: {e}") from e
        every = (*self.plain.places(), *(nest.place for nest in self.plain.nests()))
        return variants, same_places(every, self.plain, variants)

    def _within(self, count: int, ask: Callable[[], _Result]) -> Callable[[], _Result]:
        def asked() -> _Result:
            with self.keeping(count):
                return ask()

        return asked


def _stripped(traced: Traced) -> Traced:
    """Return a trace without what the context that it was made in left in it."""
    for top in traced.tops:
        strip_trace_context(top.jaxpr)
    return traced


def _stripped_details(variant: Variant) -> Details:
    details = variant.details()
    _stripped(details.trace)
    return details


def with_solver(
    variants: Variants, traced: Traced, fun: Callable[..., Any], again: Callable[[], Variants]
) -> Variants:
    """Return variants with the number of checkpoints of a loop as a choice, where there is one.

    It is that of the loop that keeps most, if its steps are counted and no loop on another line
    keeps as many carries.

    Args:
      variants: The variants of a function.
      traced: Its trace.
      fun: The function.
      again: Traces it again, and returns its variants.
    """
    if not has_loops():
        return variants
    loop = biggest_loop(traced)
    if loop is None or loop.checkpoints < 2 or loop.runs(loop.checkpoints) is None:
        return variants
    location = _only_line(loop, traced, fun)
    if location is None:
        return variants
    place = CheckpointPlace("solver", _NAMES[loop.is_of_diffrax], location, 1, 1)
    return SolverVariants(variants, Solver(place, loop), again)


_NAMES = {True: "diffeqsolve", False: "while_loop"}


def _only_line(loop: CheckpointedLoop, traced: Traced, fun: Callable[..., Any]) -> Location | None:
    """Return the user's line that runs the loops that keep as many carries; None if several do."""
    found: dict[Location | None, None] = {}

    def seen() -> None:
        found[user_line(traced.frames)] = None

    with contextlib.suppress(Exception), watching(loop.checkpoints, seen):
        traced.run_again(fun)
    return next(iter(found)) if len(found) == 1 else None
