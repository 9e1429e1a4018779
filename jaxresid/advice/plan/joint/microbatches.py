"""A function or training step whose batch goes through in microbatches, to plan for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxresid.advice.plan.floor.accumulation import accumulated
from jaxresid.advice.plan.floor.reliefs import batch_of
from jaxresid.advice.plan.joint.accumulated_steps import AccumulatedStep
from jaxresid.base.errors import NOT_CAUGHT, InputsError, JaxresidError, summary
from jaxresid.inspector.call.arguments import Arguments
from jaxresid.inspector.call.leaves import like
from jaxresid.inspector.holes.holes import Holes
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.step import step_program
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.inspector.trace.traced import Traced
from jaxresid.inspector.variants.checkpoints import CheckpointVariants
from jaxresid.inspector.variants.choices import Choices, OtherVariants, Variant, Variants


@dataclass(frozen=True)
class Microbatched(Subject):
    """A loss or program of one microbatch, and the batch that goes through it; see `Subject`.

    Its trace and places are those of the microbatch; its program, and those of its variants, are of
    all microbatches: a loss with its gradients added up, a step that adds up the gradients that it
    takes and updates once.

    Attributes:
      base: the variants of one microbatch, which all subjects of equal microbatches share.
      count: how many microbatches there are.
      leaves: the numbers of the leaves that hold the batch.
      whole: traces a step with the whole batch.
    """

    base: CheckpointVariants | None = None
    count: int = 1
    leaves: tuple[int, ...] = ()
    whole: Callable[[], Subject] | None = None

    @property
    def passes(self) -> int:
        """How many microbatches there are."""
        return self.count

    @functools.cached_property
    def program(self) -> Program:
        """The program of all microbatches."""
        return self.variants().variant({}).program

    def traced_with(self, leaves: Sequence[Any]) -> Subject:
        """Return it traced again with other leaves of a microbatch; see `Subject.traced_with`."""
        one = _with_holes(self, self.holes.with_leaves(leaves))
        if not self.leaves:  # all of the batch at once
            return one
        every = of_all(one.trace.arguments, self.leaves, self.count).leaves

        def whole() -> Subject:
            assert self.whole is not None
            return self.whole().traced_with(every)

        return over_microbatches(one, self.count, leaves[self.leaves[0]].shape[0], whole=whole)

    def variants(self) -> Variants:  # type: ignore[override]
        """Return its variants, each of all microbatches."""
        base, loss = self.base, self.holes.alone
        assert base is not None
        if self.count == 1:
            return base
        if loss is None:
            return _StepVariants(base, self)
        call = of_all(loss.arguments, self.leaves, self.count)
        return _LossVariants(base, functools.partial(_accumulated, loss, call, self.leaves), self)


def _with_holes(subject: Subject, holes: Holes[Any]) -> Subject:
    """Return a subject at once, of some holes."""
    own = subject.fun, subject.name, holes, subject.place, subject.warnings, subject.assumes_gpu
    return Subject(*own)


def _accumulated(loss: Trace, call: Arguments, batch: Sequence[int], one: Traced) -> StepTrace:
    try:
        return accumulated(loss, one, call, batch)
    except (*NOT_CAUGHT, JaxresidError):
        raise
    except Exception as e:
        raise InputsError(f"no scan over microbatches can be traced: {summary(e)}") from e


class _LossVariants(OtherVariants):
    """The variants of a loss over its microbatches; residuals are those of one of them."""

    def __init__(
        self,
        base: CheckpointVariants,
        accumulated: Callable[[Traced], StepTrace],
        subject: Microbatched,
    ) -> None:
        super().__init__(base)
        self._base, self._accumulated, self._subject = base, accumulated, subject

    def program(self, traced: Any) -> Program:
        """Return the whole program of a trace over all microbatches."""
        return step_program(traced)

    def trace(self, choices: Choices) -> StepTrace:
        """Return the trace over all microbatches with choices made; see `choices.Variants`."""
        return self._accumulated(self._base.trace(choices))

    def variant(self, choices: Choices) -> Variant:
        """Apply choices, go through all microbatches, and measure; see `choices.Variants`."""
        holes, one = self._base.holes, self._base.details(self._base.trace(choices))
        every = self._accumulated(one.trace)
        lowered = lower(step_program(every), self._subject.profile)
        return Variant(
            functools.cache(lambda: holes.kept_nbytes(one.trace, one.program)),
            peak_nbytes(lowered),
            holes.cost(one.trace) * self._subject.count,
            lowered,
            lambda: replace(one, program=lowered.program, trace=every),
        )


class _StepVariants(OtherVariants):
    """The variants of a training step over its microbatches; see `choices.Variants`."""

    def __init__(self, base: CheckpointVariants, subject: Microbatched) -> None:
        super().__init__(base)
        self._base, self._subject = base, subject

    @functools.cached_property
    def _step(self) -> AccumulatedStep:
        """The step with its microbatches, as it is written."""
        subject = self._subject
        whole = None if subject.whole is None else subject.whole().step
        assert whole is not None
        losses = self._base.losses({})
        return AccumulatedStep(subject.fun, subject.name, whole, losses, subject.count)

    def trace(self, choices: Choices) -> StepTrace:
        """Return the trace over all microbatches with choices made; see `choices.Variants`."""
        return self._step.trace(self._base.losses(choices))

    def variant(self, choices: Choices) -> Variant:
        """Apply choices, go through all microbatches, and measure; see `choices.Variants`."""
        return self._base.measured(self.trace(choices))


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
                if one.step is not None
                else "those that are not differentiated (--argnums)"
            )
            raise InputsError(
                f"microbatches: it is not known which arguments of {one.name} hold the batch:"
                f" {which} and have it as their leading dimension"
            )
        leaves = batch.leaves
    assert base is None or isinstance(base, CheckpointVariants)
    own = one.fun, one.name, one.holes, one.place, one.warnings, one.assumes_gpu
    return Microbatched(*own, base=base or one.variants(), count=count, leaves=leaves, whole=whole)


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
