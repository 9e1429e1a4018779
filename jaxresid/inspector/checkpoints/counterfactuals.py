"""Measure the program without each checkpoint; of checkpoints that are alike, without a few.

What taking one of them away changes is made, in the kernels of the program as written, at the place
of the others. The first and the last are taken away as well; unless they show the same kernels,
residual bytes and cost, so are all the others.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxresid.base.errors import JaxresidError
from jaxresid.inspector.checkpoints.alike import PlacedCheckpoint
from jaxresid.inspector.checkpoints.sites import CheckpointSite
from jaxresid.inspector.checkpoints.verdicts import ProgramFigures
from jaxresid.inspector.memory.differences import are_alike, difference
from jaxresid.inspector.memory.lowered import Lowered, lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.memory.rules.kernels import Kernels
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.trace.traced import Traced
from jaxresid.results import Cost

# Fewer than this are not worth comparing.
_FEW = 4


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """The program without a checkpoint.

    Attributes:
      kept_nbytes: bytes of computed residuals in device memory.
      cost: what it costs.
      program: the program itself.
      trace: the trace that it was made from.
    """

    kept_nbytes: int
    cost: Cost
    program: Program
    trace: Traced


class Counterfactuals:
    """The programs without each checkpoint of a function or step.

    Attributes:
      without: returns the program without a checkpoint; raises JaxresidError where there is none.

    Args:
      make: makes the program without a checkpoint; raises JaxresidError where that fails.
      told: tells its figures where that is possible without making it; else None.
      written: the program with all of them.
      profile: the memory profile that peaks are estimated with.
      has_peaks: whether peaks are estimated.
      alike: groups of checkpoints that are alike, in program order.
    """

    def __init__(
        self,
        make: Callable[[CheckpointSite], Counterfactual],
        told: Callable[[CheckpointSite], ProgramFigures | None],
        written: Program,
        profile: Profile,
        alike: Sequence[Sequence[PlacedCheckpoint]],
        *,
        has_peaks: bool,
    ) -> None:
        self.without = functools.cache(make)
        self._told = told
        self._written, self._profile, self._has_peaks = written, profile, has_peaks
        self._figures: dict[CheckpointSite, ProgramFigures] = {}
        groups = [group for group in alike if len(group) >= _FEW]
        if groups:
            base = lower(written, profile).block
            first: dict[int, int] = {}
            for i, op in enumerate(base.ops):
                for eqn in op.context.remats:
                    first.setdefault(id(eqn), i)
            for group in groups:
                places = {each.site: first.get(id(each.backward)) for each in group}
                self._share(base, {s: at for s, at in places.items() if at is not None})

    def figures(self, site: CheckpointSite) -> ProgramFigures:
        """Return the figures of the program without a checkpoint.

        Raises:
          JaxresidError: there is no such program.
        """
        if site not in self._figures:
            self._figures[site] = self._found(site)
        return self._figures[site]

    def _found(self, site: CheckpointSite) -> ProgramFigures:
        told = self._told(site)
        if told is not None:
            return told if self._has_peaks else replace(told, peak_nbytes=None)
        program = self.without(site).program
        return self._measured(site, lower(program, self._profile) if self._has_peaks else None)

    def _measured(self, site: CheckpointSite, lowered: Lowered | None) -> ProgramFigures:
        found = self.without(site)
        nbytes = peak_nbytes(lowered) if lowered is not None and self._has_peaks else None
        return ProgramFigures(found.kept_nbytes, nbytes, found.cost)

    def _share(self, base: Kernels, places: Mapping[CheckpointSite, int]) -> None:
        """Find the figures of checkpoints by those of some of them, as far as these tell others'.

        Args:
          base: the kernels of the program with all of them.
          places: the checkpoints, with the number of the first kernel of each one's recomputation.
        """
        left = list(places)
        with contextlib.suppress(JaxresidError):
            while len(left) >= _FEW:
                middle = left[len(left) // 2]
                changed = self._lowered(middle)
                found = difference(base, changed)
                moved: dict[CheckpointSite, Kernels] = {}
                for site in left:
                    made = None
                    if found is not None and site is not middle:
                        made = found.moved(places[middle], places[site])
                    if made is not None:
                        moved[site] = made
                ends = list(moved)[:1] + list(moved)[1:][-1:]
                if all(self._is_as_moved(site, moved.pop(site), middle) for site in ends):
                    for site, block in moved.items():
                        self._figures[site] = self._moved(block, middle)
                    left = [site for site in left if site not in self._figures]
                else:
                    return

    def _lowered(self, site: CheckpointSite) -> Kernels:
        """Return the kernels of the program without a checkpoint, and keep its figures."""
        lowered = lower(self.without(site).program, self._profile)
        self._figures[site] = self._measured(site, lowered)
        return lowered.block

    def _moved(self, block: Kernels, other: CheckpointSite) -> ProgramFigures:
        """Return the figures without a checkpoint, from the kernels, and from those of another."""
        lowered = Lowered(self._written, self._profile, block)
        nbytes = peak_nbytes(lowered) if self._has_peaks else None
        return replace(self._figures[other], peak_nbytes=nbytes)

    def _is_as_moved(self, site: CheckpointSite, moved: Kernels, other: CheckpointSite) -> bool:
        """Return whether the program without a checkpoint is what another's kernels say it is."""
        block = self._lowered(site)
        return are_alike(block, moved) and self._figures[site] == self._moved(moved, other)
