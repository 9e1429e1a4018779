"""A function or training step whose batch goes through in microbatches, to plan for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxresid.advice.plan.floor.accumulation import AccumulatedTrace, accumulated
from jaxresid.advice.plan.floor.reliefs import batch_of
from jaxresid.advice.plan.joint.accumulated_steps import AccumulatedStep
from jaxresid.errors import NOT_CAUGHT, InputsError, JaxresidError, summary
from jaxresid.inspector.call.arguments import Arguments
from jaxresid.inspector.call.leaves import like
from jaxresid.inspector.cost.jaxpr_cost import passes_cost
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.program.build import Program, value_and_gradients
from jaxresid.inspector.program.step import step_program
from jaxresid.inspector.residuals.function import residuals
from jaxresid.inspector.residuals.offloading import kept_by, kept_nbytes
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.subject.function import FunctionSubject
from jaxresid.inspector.subject.step import StepSubject
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.inspector.trace.traced import Traced
from jaxresid.inspector.variants.checkpoints import CheckpointVariants
from jaxresid.inspector.variants.choices import (
    CheckpointPlace,
    Choices,
    Details,
    Nest,
    Variant,
    Variants,
)
from jaxresid.jaxpr_types import Jaxpr
from jaxresid.model import Cost


@dataclass(frozen=True)
class MicrobatchedSubject(FunctionSubject):
    """A function of one microbatch, and the batch that it goes through; see `Subject`.

    Its trace, residuals and places are those of the microbatch; its program, and those of its
    variants, are of all microbatches.

    Attributes:
      base: the variants of the function of one microbatch, which all subjects of equal microbatches
        share.
      count: how many microbatches there are.
      leaves: the numbers of the leaves that hold the batch.
    """

    base: CheckpointVariants | None = None
    count: int = 1
    leaves: tuple[int, ...] = ()

    @property
    def passes(self) -> int:
        """How many microbatches there are."""
        return self.count

    @functools.cached_property
    def program(self) -> Program:
        """The program of all microbatches."""
        return self.variants().variant({}).program

    def traced_with(self, leaves: Sequence[Any]) -> FunctionSubject:
        """Return it traced again with other leaves of a microbatch; see `Subject.traced_with`."""
        own = (self.fun, self.name, self.trace, self.place, self.warnings, self.assumes_gpu)
        one = FunctionSubject(*own).traced_with(leaves)
        if not self.leaves:  # all of the batch at once
            return one
        made = over_microbatches(one, self.count, leaves[self.leaves[0]].shape[0])
        assert isinstance(made, MicrobatchedSubject)
        return made

    def variants(self) -> Variants:  # type: ignore[override]
        """Return its variants, each of all microbatches."""
        assert self.base is not None
        call = of_all(self.trace.arguments, self.leaves, self.count)
        return _MicrobatchedVariants(self.base, self, call)


class _MicrobatchedVariants:
    """The variants of a function over its microbatches; see `choices.Variants`."""

    def __init__(
        self, base: CheckpointVariants, subject: MicrobatchedSubject, call: Arguments
    ) -> None:
        self._base, self._subject, self._call = base, subject, call

    def places(self) -> tuple[CheckpointPlace, ...]:
        """Return the places of one microbatch."""
        return self._base.places()

    def nests(self) -> tuple[Nest, ...]:
        """Return the loops that may be cut; that over the microbatches is none of them."""
        return self._base.nests()

    def unchangeable(self) -> tuple[str, ...]:
        """Return the checkpoints that are no places."""
        return self._base.unchangeable()

    def body(self, place: CheckpointPlace) -> Jaxpr:
        """Return the open jaxpr that a place's first call runs."""
        return self._base.body(place)

    def overlaps(self) -> tuple[tuple[CheckpointPlace, CheckpointPlace], ...]:
        """Return the pairs of places that overlap."""
        return self._base.overlaps()

    def variant(self, choices: Choices) -> Variant:
        """Apply choices, go through all microbatches, and measure; see `choices.Variants`."""
        if self._subject.count == 1:
            return self._base.variant(choices)
        return self._measured(self._of_one(choices))

    def trace(self, choices: Choices) -> Traced:
        """Return the trace over all microbatches with choices made; see `choices.Variants`."""
        one = self._of_one(choices)
        return one if self._subject.count == 1 else self._accumulated(one)

    def _of_one(self, choices: Choices) -> Trace:
        one = self._base.trace(choices)
        assert isinstance(one, Trace)
        return one

    def _accumulated(self, one: Trace) -> AccumulatedTrace:
        try:
            return accumulated(one, self._call, self._subject.leaves)
        except (*NOT_CAUGHT, JaxresidError):
            raise
        except Exception as e:
            raise InputsError(f"no scan over microbatches can be traced: {summary(e)}") from e

    def _measured(self, one: Trace) -> Variant:
        held = value_and_gradients(one)
        every = self._accumulated(one)
        lowered = lower(step_program(every), self._subject.profile)
        return Variant(
            functools.cache(lambda: kept_nbytes(kept_by(one, held))),
            peak_nbytes(lowered),
            sum(passes_cost(one), Cost()) * self._subject.count,
            lowered,
            lambda: Details(
                lowered.program,
                every,
                functools.partial(residuals, one, held),
                functools.partial(kept_by, one, held),
            ),
        )


@dataclass(frozen=True)
class MicrobatchedStep(StepSubject):
    """A training step of one microbatch, and the batch that its loss goes through; see `Subject`.

    Its trace and places are those of the microbatch; its program, and those of its variants, are of
    the step that adds up the gradients of all microbatches and updates once.

    Attributes:
      base: the variants of the step of one microbatch, which all subjects of equal microbatches
        share.
      count: how many microbatches there are.
      whole: traces the step with the whole batch.
    """

    base: CheckpointVariants | None = None
    count: int = 1
    whole: Callable[[], Subject] | None = None

    @property
    def passes(self) -> int:
        """How many microbatches there are."""
        return self.count

    @functools.cached_property
    def program(self) -> Program:
        """The program of the step with all microbatches."""
        return self.variants().variant({}).program

    def traced_with(self, leaves: Sequence[Any]) -> StepSubject:
        """Return it traced again with other leaves of a microbatch; see `Subject.traced_with`."""
        own = (self.fun, self.name, self.trace, self.place, self.warnings, self.assumes_gpu)
        one = StepSubject(*own).traced_with(leaves)
        batch, whole = batch_of(one), self.whole
        assert batch is not None
        assert whole is not None
        every = of_all(one.trace.arguments, batch.leaves, self.count).leaves
        made = over_microbatches(
            one, self.count, batch.size, whole=lambda: whole().traced_with(every)
        )
        assert isinstance(made, MicrobatchedStep)
        return made

    def variants(self) -> Variants:  # type: ignore[override]
        """Return its variants, each of all microbatches."""
        assert self.base is not None
        return self.base if self.count == 1 else _StepVariants(self.base, self)


class _StepVariants:
    """The variants of a training step over its microbatches; see `choices.Variants`."""

    def __init__(self, base: CheckpointVariants, subject: MicrobatchedStep) -> None:
        self._base, self._subject = base, subject
        self.places, self.nests, self.body = base.places, base.nests, base.body
        self.overlaps, self.unchangeable = base.overlaps, base.unchangeable

    @functools.cached_property
    def _step(self) -> AccumulatedStep:
        """The step with its microbatches, as it is written."""
        subject = self._subject
        assert subject.whole is not None
        whole = subject.whole()
        assert isinstance(whole.trace, StepTrace)
        losses = self._base.losses({})
        return AccumulatedStep(subject.fun, subject.name, whole.trace, losses, subject.count)

    def variant(self, choices: Choices) -> Variant:
        """Apply choices, go through all microbatches, and measure; see `choices.Variants`."""
        return self._base.measured(self.trace(choices))

    def trace(self, choices: Choices) -> StepTrace:
        """Return the trace over all microbatches with choices made; see `choices.Variants`."""
        return self._step.trace(self._base.losses(choices))


# A function or a training step as a subject of its microbatches.
Microbatched = MicrobatchedSubject | MicrobatchedStep


def over_microbatches(
    one: Subject,
    count: int,
    size: int | None = None,
    base: Variants | None = None,
    whole: Callable[[], Subject] | None = None,
) -> Microbatched:
    """Return a function, or step, traced with one microbatch, as a subject of that many of them.

    Args:
      one: the function or step.
      count: how many microbatches.
      size: the items of each, where that is known.
      base: the variants that another subject of these microbatches has.
      whole: traces a step with the whole batch.

    Raises:
      InputsError: it is not known which of its arguments hold the batch.
    """
    leaves: tuple[int, ...] = ()
    if count > 1:
        batch = batch_of(one, size)
        if batch is None:
            which = (
                "those that it reads and does not change"
                if isinstance(one.trace, StepTrace)
                else "those that are not differentiated (--argnums)"
            )
            raise InputsError(
                f"microbatches: it is not known which arguments of {one.name} hold the batch:"
                f" {which} and have it as their leading dimension"
            )
        leaves = batch.leaves
    own = (one.fun, one.name, one.trace, one.place, one.warnings, one.assumes_gpu)
    if isinstance(one, StepSubject):
        assert base is None or isinstance(base, CheckpointVariants)
        return MicrobatchedStep(*own, base or one.variants(), count, whole)  # type: ignore[arg-type]
    assert isinstance(one, FunctionSubject)
    assert base is None or isinstance(base, CheckpointVariants)
    return MicrobatchedSubject(
        one.fun,
        one.name,
        one.trace,
        one.place,
        one.warnings,
        one.assumes_gpu,
        base=base or one.variants(),
        count=count,
        leaves=leaves,
    )


def in_microbatches(whole: Subject, count: int) -> Microbatched:
    """Return a function, traced with its whole batch, as a subject of that many microbatches.

    Raises:
      InputsError: as `over_microbatches`, or the batch cannot be divided by that.
    """
    one, batch = divided(whole, count), batch_of(whole)
    rows = batch.size // count if batch is not None and count > 1 else None
    return over_microbatches(one, count, rows, whole=lambda: whole)


def divided(whole: Subject, count: int) -> Subject:
    """Return a function, traced with its whole batch, traced with one of so many microbatches.

    Raises:
      InputsError: as `in_microbatches`.
    """
    if count == 1:
        return whole
    over_microbatches(whole, count)  # what is wrong with it is found before it is traced
    batch = batch_of(whole)
    assert batch is not None
    if batch.size % count:
        raise InputsError(f"microbatches: a batch of {batch.size} cannot be divided by {count}")
    leaves = list(whole.trace.arguments.leaves)
    for i in batch.leaves:
        leaves[i] = like(leaves[i], (batch.size // count, *leaves[i].shape[1:]))
    try:
        return whole.traced_with(leaves)
    except (*NOT_CAUGHT, JaxresidError):
        raise
    except Exception as e:
        raise InputsError(
            f"{whole.name} cannot be traced with a batch of {batch.size // count}: {summary(e)}"
        ) from e


def of_all(one: Arguments, batch: Sequence[int], count: int) -> Arguments:
    """Return the arguments of one microbatch with the batch of all of them."""
    leaves: list[Any] = list(one.leaves)
    for i in batch:
        first, *others = leaves[i].shape
        leaves[i] = like(leaves[i], (first * count, *others))
    return replace(one, leaves=tuple(leaves))
