"""The configurations of one plan: which there are, and each as a subject, traced once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jaxresid.advice.plan.floor.reliefs import batch_of
from jaxresid.advice.plan.joint.microbatches import divided, in_microbatches, over_microbatches
from jaxresid.advice.plan.verification import Check, in_process_check
from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.variants.choices import Variants
from jaxresid.results import Configuration

# The question about a batch size, None for the inputs as they are, and a mesh.
Ask = Callable[[int | None, str | None], Question]


@dataclass(frozen=True, slots=True)
class Grid:
    """The configurations that a plan chooses among.

    Attributes:
      batches: the batch sizes; empty: the inputs as they are.
      microbatches: how many microbatches there may be; those that divide a batch are tried.
      meshes: the meshes; empty: that of the inputs.
      every: all sizes from which the largest that fits may be chosen, the smallest first, where
        `batches` leaves out some of them.
      name: what the batch size is of: `batch`, or another size such as `context`.
    """

    batches: tuple[int, ...] = ()
    microbatches: tuple[int, ...] = (1,)
    meshes: tuple[str, ...] = ()
    every: tuple[int, ...] = ()
    name: str = "batch"

    @property
    def sizes(self) -> tuple[int, ...]:
        """All sizes from which the largest that fits may be chosen, the smallest first."""
        return self.every or tuple(sorted(self.batches))

    @property
    def has_microbatches(self) -> bool:
        """Whether there may be more than one microbatch."""
        return max(self.microbatches) > 1

    @property
    def is_single(self) -> bool:
        """Whether there is but one configuration."""
        return max(len(self.batches), len(self.meshes), len(set(self.microbatches))) < 2


class Configurations:
    """The configurations of a grid, as subjects.

    Those with equal microbatches share the trace of one.

    Args:
      grid: which there are.
      ask: makes the question about a batch size and a mesh.
    """

    def __init__(self, grid: Grid, ask: Ask) -> None:
        self.grid = grid
        self._ask = ask
        self._questions: dict[tuple[int | None, str | None], Question] = {}
        self._traced: dict[tuple[int | None, str | None], Subject] = {}
        # By the items of a microbatch.
        self._ones: dict[tuple[int, str | None], tuple[Subject, Variants]] = {}

    def each(self) -> Iterator[Configuration]:
        """Yield the configurations of each mesh, those with the smallest microbatches first.

        Raises:
          InputsError: no batch can be divided by a number of microbatches that is asked for.
        """
        is_any = False
        for mesh in self.grid.meshes or (None,):
            found = []
            for batch in self.grid.batches or (None,):
                size = batch
                if size is None and self.grid.has_microbatches:
                    size = self._size(mesh)
                found += [
                    Configuration(batch, count, mesh, self.grid.name)
                    for count in sorted(set(self.grid.microbatches))
                    if size is None or size % count == 0
                ]
            is_any |= bool(found)
            yield from sorted(found, key=lambda c: (self.rows(c), c.microbatches))
        if not is_any:
            raise InputsError(
                "microbatches: none of the numbers given divides a batch size; give divisors of it"
            )

    def has_gradient(self) -> bool:
        """Return whether the program takes a gradient, by the smallest size that can be traced.

        Raises:
          JaxresidError: none can.
        """
        first: JaxresidError | None = None
        sizes: list[int | None] = [*sorted(self.grid.batches)]
        for batch in sizes or [None]:
            try:
                return self._whole(batch, next(iter(self.grid.meshes), None)).target.has_gradient
            except JaxresidError as e:
                first = first or e
        assert first is not None
        raise first

    def rows(self, configuration: Configuration) -> int:
        """Return the items of one microbatch; 0 where there is only one size, not known."""
        size = self.items(configuration)
        return 0 if size is None else size // configuration.microbatches

    def items(self, configuration: Configuration) -> int | None:
        """Return the items of the whole batch; None where that is not known."""
        if configuration.batch is not None:
            return configuration.batch
        found = self._traced.get((None, configuration.mesh))
        batch = None if found is None else batch_of(found)
        return None if batch is None else batch.size

    def subject(self, configuration: Configuration) -> Subject:
        """Return a configuration as a subject.

        Raises:
          JaxresidError: it cannot be traced.
        """
        batch, count, mesh = configuration.batch, configuration.microbatches, configuration.mesh
        if not self.grid.has_microbatches:
            return self._whole(batch, mesh)
        rows = self.rows(configuration)
        if (rows, mesh) not in self._ones:
            if batch is None:
                one = divided(self._whole(None, mesh), count)
            else:
                one = self._whole(rows, mesh)
            self._ones[rows, mesh] = one, one.variants()
        one, base = self._ones[rows, mesh]
        return over_microbatches(one, count, rows, base, lambda: self._whole(batch, mesh))

    def check(self, configuration: Configuration) -> Check:
        """Return what traces the edited code of a configuration."""
        batch, mesh = configuration.batch, configuration.mesh
        question = self._question(batch, mesh)
        count = configuration.microbatches
        original = self.subject(configuration)
        if count == 1:
            return in_process_check(original, question)
        return in_process_check(original, question, lambda traced: in_microbatches(traced, count))

    def _question(self, batch: int | None, mesh: str | None) -> Question:
        key = batch, mesh
        if key not in self._questions:
            self._questions[key] = self._ask(batch, mesh)
        return self._questions[key]

    def _whole(self, batch: int | None, mesh: str | None) -> Subject:
        """Return the function traced with a batch at once."""
        key = batch, mesh
        if key not in self._traced:
            self._traced[key] = subject(self._question(batch, mesh))
        return self._traced[key]

    def _size(self, mesh: str | None) -> int:
        found = self._whole(None, mesh)
        over_microbatches(found, 2)
        batch = batch_of(found)
        assert batch is not None
        return batch.size
