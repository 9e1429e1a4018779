"""Ask the compiler of a place about variants of a program, within a limit of time and number."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from jaxresid.advice.compile.ahead_of_time import (
    CompileSettings,
    PolicyProgram,
    rows_by_number,
)
from jaxresid.base.progress import Progress
from jaxresid.results import Compiled
from jaxresid.xla.job import Job
from jaxresid.xla.places import Place
from jaxresid.xla.processes.cache import key

# What the compiles that confirm one answer may take, all together.
COMPILE_SECONDS = 120.0


class LimitedCompiles:
    """The compiles of one answer.

    Equal programs are compiled, and count, once. What is answered from the cache counts as well,
    so that an answer does not depend on what the cache holds, but takes no time.

    Args:
      place: the place to compile for.
      settings: how to compile.
      limit_s: seconds that all calls of `compiled`, and what is spent besides, may take together.
      most: how many different programs may be compiled; None means any number.
      progress: called with a text that says what is being done.

    Attributes:
      limit_s: as the argument.
    """

    def __init__(
        self,
        place: Place,
        settings: CompileSettings,
        *,
        limit_s: float = COMPILE_SECONDS,
        most: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.place = place
        self.settings = settings
        self.limit_s = self._left_s = limit_s
        self._most = math.inf if most is None else most
        self._progress = progress
        self._asked: set[str] = set()
        self._known: dict[str, Compiled] = {}
        self._unconfirmed: dict[str, None] = {}

    @property
    def count(self) -> int:
        """The number of different programs that the compiler was asked about."""
        return len(self._asked)

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return max(self._left_s, 0.0)

    @property
    def is_over(self) -> bool:
        """Whether there is no time left, or no compile."""
        return self._left_s <= 0 or self.count >= self._most

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """The names of the programs that have no figures, each once."""
        return tuple(self._unconfirmed)

    def spend(self, seconds: float) -> None:
        """Take time off what is left that went into finding out what to compile next."""
        self._left_s -= seconds

    def compiled(
        self, programs: Sequence[PolicyProgram], budget_nbytes: int | None = None
    ) -> tuple[Compiled | None, ...]:
        """Return what the compiler says of each program.

        It is None for those that it was not asked about, or did not finish, as the time or the
        number of compiles was used up.

        Args:
          programs: the programs.
          budget_nbytes: bytes that they have to fit into; None: what the place has.
        """
        start = time.monotonic()
        keys: dict[int, str] = {}
        found: dict[int, Compiled] = {}

        def admits(i: int, job: Job) -> bool:
            name = keys[i] = key(job)
            if name in self._known or (name not in self._asked and self.count >= self._most):
                return False
            self._asked.add(name)
            return True

        if self._left_s > 0:
            rows = rows_by_number(
                programs,
                [self.place],
                self.settings,
                self._progress,
                admits=admits,
                until=start + self._left_s,
                budget_nbytes=budget_nbytes,
            )
            for (i, _), row in rows:
                found[i] = row
                if i in keys:
                    self._known[keys[i]] = row
        self._left_s -= time.monotonic() - start
        for i, name in keys.items():
            if i not in found and name in self._known:
                found[i] = replace(self._known[name], policy=programs[i].policy)
        for i, program in enumerate(programs):
            known = found.get(i)
            limit = budget_nbytes
            if limit is None and known is not None:
                limit = known.capacity_nbytes
            if known is None or known.needed_for(limit) is None:
                self._unconfirmed[program.policy] = None
        return tuple(found.get(i) for i in range(len(programs)))

    def besides(self, program: PolicyProgram, budget_nbytes: int | None = None) -> Compiled | None:
        """Return what the compiler says of a program that is none of those that count.

        It takes of the time that is left; None where it was up.

        Args:
          program: the program.
          budget_nbytes: as for `compiled`.
        """
        alone = LimitedCompiles(
            self.place, self.settings, limit_s=self.left_s, most=1, progress=self._progress
        )
        (row,) = alone.compiled([program], budget_nbytes)
        self._left_s = alone.left_s
        return row


__all__ = ["COMPILE_SECONDS", "LimitedCompiles"]
