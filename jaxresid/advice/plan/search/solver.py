"""Find the values that a checkpoint should save: an integer program, solved exactly by HiGHS.

For each saveable value of a body there is a variable that says whether it is saved (and one whether
it is offloaded), for each step one that says whether the backward pass runs it again. A step runs
again if the backward pass needs its result, or a step that runs again does, and no saved value
spares it. One more variable is the time of transfers that the body's own work does not hide. Given
which are saved, the rest is a closure problem whose relaxation is integral, so only the first kind
needs to be integer.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid.base.interrupts import deferring_interrupts
from jaxresid.inspector.variants.recompute import Graph

# Of two choices that cost the same the one that keeps less: a byte counts that much beside cost,
# both as shares of their totals.
_TIE = 1e-6
# HiGHS satisfies constraints to 1e-6, here of the bytes of everything saveable.
_SLACK = 2e-6


@dataclass(frozen=True, slots=True)
class ValueChoice:
    """A choice of what to do with the values of a body.

    Attributes:
      saved: The numbers in `Graph.saveables` of the values that are saved.
      offloaded: The numbers in `Graph.saveables` of the values that are offloaded.
      nbytes: The bytes that are saved on the device, once through the body.
      host_nbytes: The bytes that are offloaded.
      cost: The cost of running again what has to be, and of the transfers that are not hidden.
    """

    saved: frozenset[int]
    offloaded: frozenset[int]
    nbytes: int
    host_nbytes: int
    cost: float


class ValueProgram:
    """The integer program of one body.

    Args:
      graph: The graph of the body.
      transfer: The cost of moving so many bytes to the host and back; None means that nothing is
        offloaded.
      window: How much of that is hidden: what the link moves while the body computes.
    """

    def __init__(
        self,
        graph: Graph,
        transfer: Callable[[int], float] | None = None,
        window: float = 0.0,
    ) -> None:
        with deferring_interrupts():
            import numpy as np
            from scipy.optimize import Bounds, LinearConstraint
            from scipy.sparse import coo_array

        self._graph = graph
        self._transfer, self._window = transfer, window
        values, steps = len(graph.saveables), len(graph.steps)
        self._values = values
        self._first = 2 * values  # saved, offloaded, then run again
        self._bytes = np.array([s.nbytes for s in graph.saveables], float)
        self._total = max(float(self._bytes.sum()), 1.0)
        rows = _Rows()
        needed = set(graph.needed)
        exposed = self._first + steps
        low = np.zeros(exposed + 1)
        high = np.ones(exposed + 1)
        high[exposed] = np.inf
        if transfer is None:
            high[values : self._first] = 0
        for i, step in enumerate(graph.steps):
            mine = self._first + i
            if i in needed:
                if step.saveable is None:
                    low[mine] = 1
                else:
                    rows.add([(mine, 1), *self._stored(step.saveable)], 1)
            for operand in step.operands:
                saveable = graph.steps[operand].saveable
                stored = [] if saveable is None else self._stored(saveable)
                rows.add([(self._first + operand, 1), (mine, -1), *stored], 0)
        for c in range(values):
            rows.add([(c, -1), (values + c, -1)], -1)
        cost = np.array(
            [s.cost if f else 0.0 for s, f in zip(graph.steps, graph.forward, strict=True)]
        )
        scale = max(float(cost.sum()), 1e-30)
        if transfer is not None and values:
            moved = [-transfer(s.nbytes) / scale for s in graph.saveables]
            each = [(values + c, moved[c]) for c in range(values)]
            rows.add([(exposed, 1), *each], -window / scale)
        matrix = coo_array(
            (rows.entries, (rows.rows, rows.columns)), shape=(len(rows.lower), len(low))
        ).tocsr()
        # scipy takes no matrix without rows: nothing is needed, nothing can be saved.
        self._constraints = (
            [LinearConstraint(matrix, lb=np.array(rows.lower))] if rows.lower else []
        )
        self._bounds = Bounds(low, high) if exposed else None  # nor bounds of nothing
        self._integral = np.array([1] * self._first + [0] * (steps + 1))
        tie = _TIE * self._bytes / self._total
        self._objective = np.concatenate([tie, tie, cost / scale, [1.0]])

    def _stored(self, saveable: int) -> list[tuple[int, int]]:
        """Return the terms of a value that is saved or offloaded."""
        return [(saveable, 1), (self._values + saveable, 1)]

    def cheapest(self, budget_nbytes: float) -> ValueChoice | None:
        """Return the cheapest choice that saves at most so many bytes; None if HiGHS finds none."""
        import numpy as np
        from scipy.optimize import LinearConstraint

        if self._bounds is None:  # a body without eqns
            return self.choosing(frozenset(), frozenset())
        limit = budget_nbytes / self._total
        size = np.zeros(len(self._objective))
        size[: self._values] = self._bytes / self._total
        found = _solved(
            self._objective,
            constraints=[*self._constraints, LinearConstraint(size[None, :], ub=limit)],
            bounds=self._bounds,
            integrality=self._integral,
        )
        if found.x is None:
            return None
        chosen = found.x > 0.5
        saved = frozenset(int(c) for c in np.flatnonzero(chosen[: self._values]))
        moved = frozenset(int(c) for c in np.flatnonzero(chosen[self._values : self._first]))
        return self.choosing(saved, moved)

    def choosing(self, saved: frozenset[int], offloaded: frozenset[int]) -> ValueChoice:
        """Return a choice with what it keeps and costs."""
        graph, both = self._graph, saved | offloaded
        kept = [i for i, s in enumerate(graph.steps) if s.saveable in both]
        cost = graph.cost(kept)
        if self._transfer is not None:
            moved = sum(self._transfer(graph.saveables[c].nbytes) for c in offloaded)
            cost += max(moved - self._window, 0.0)
        return ValueChoice(
            saved,
            offloaded,
            sum(graph.saveables[c].nbytes for c in saved),
            sum(graph.saveables[c].nbytes for c in offloaded),
            cost,
        )

    def front(self, most: int, step: float = 0.0) -> tuple[tuple[ValueChoice, ...], bool]:
        """Return the choices that no other beats in both bytes and cost, and whether these are all.

        They come in order, from the most bytes to none.

        Args:
          most: How many at most.
          step: How much less each keeps than the one before, at least, as a share of everything
            saveable.
        """
        found: list[ValueChoice] = []
        budget = self._total
        while len(found) < most:
            choice = self.cheapest(budget)
            if choice is None:
                break
            found.append(choice)
            if not choice.nbytes:
                return tuple(found), not step
            budget = choice.nbytes - max(1.0, max(_SLACK, step) * self._total)
            if budget < 0:
                break
        if not found or found[-1].nbytes:
            nothing = self.cheapest(0)
            if nothing is not None:
                found.append(nothing)
        return tuple(found), False


class _Rows:
    """A sparse matrix and the lower bounds of its rows, while it is being written."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.entries: list[float] = []
        self.lower: list[float] = []

    def add(self, entries: Sequence[tuple[int, float]], lower: float) -> None:
        for column, entry in entries:
            self.rows.append(len(self.lower))
            self.columns.append(column)
            self.entries.append(entry)
        self.lower.append(lower)


def combine_options(
    costs: Sequence[Sequence[float]],
    weights: Sequence[Sequence[float]],
    limit: float,
    conflicts: Sequence[tuple[int, int]],
) -> tuple[int, ...] | None:
    """Choose one option for each place, at the least total cost, within a limit on the weights.

    Args:
      costs: The costs by place and option; option 0 is to do without.
      weights: The weights by place and option, in the same order.
      limit: The most that the weights of the chosen options may add up to.
      conflicts: Pairs of places of which at most one may have another option than 0.

    Returns:
      The number of the option for each place; None where nothing fits.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint

    if not costs:
        return () if limit >= 0 else None
    starts = np.cumsum([0, *map(len, costs)])
    count = int(starts[-1])
    c = np.concatenate([np.asarray(x, float) for x in costs])
    w = np.concatenate([np.asarray(x, float) for x in weights])
    scale, size = max(float(np.abs(c).max()), 1e-30), max(float(np.abs(w).max()), 1.0)
    one = np.zeros((len(costs), count))
    for i in range(len(costs)):
        one[i, starts[i] : starts[i + 1]] = 1
    constraints: list[Any] = [
        LinearConstraint(one, lb=1, ub=1),
        LinearConstraint(w[None, :] / size, ub=limit / size),
    ]
    for a, b in conflicts:
        row = np.zeros(count)
        for place in (a, b):
            row[starts[place] + 1 : starts[place + 1]] = 1
        constraints.append(LinearConstraint(row[None, :], ub=1))
    found = _solved(
        c / scale,
        constraints=constraints,
        bounds=Bounds(0, 1),
        integrality=np.ones(count),
    )
    if found.x is None:
        return None
    return tuple(int(found.x[starts[i] : starts[i + 1]].argmax()) for i in range(len(costs)))


def _solved(objective: Any, **problem: Any) -> Any:
    """Return scipy's answer to an integer program, and discard what HiGHS prints.

    HiGHS 1.12 prints past Python, told to be quiet or not (ERGO-Code/HiGHS#2783).
    """
    from scipy.optimize import milp

    with _silent():
        return milp(objective, options={"mip_rel_gap": 0.0}, **problem)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard what is written to file descriptor 1; what Python holds for it stays."""
    import ctypes

    flush = getattr(ctypes.CDLL(None), "fflush", None) if os.name == "posix" else None
    if flush is None:
        yield
        return
    try:
        sys.stdout.flush()
        flush(None)
        kept = os.dup(1)
    except (OSError, ValueError):  # closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        yield
    finally:
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)
