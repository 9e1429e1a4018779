"""Trace programs with other numbers of checkpoints in their checkpointed while loops.

The loops are equinox', which diffrax, optimistix and lineax run theirs with. How many carries they
keep is a number that only Python knows, so the function is run again with another one.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import JaxresidError, calls_user_code
from jaxresid.inspector.jaxpr.bindings import intercept_bind
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
from jaxresid.inspector.jaxpr.while_loops.checkpointed_loops import backward_of
from jaxresid.inspector.jaxpr.while_loops.online_checkpoints import MOST_STEPS, iterations
from jaxresid.inspector.trace.traced import Traced

_MODULE, _FUNCTION = "equinox.internal._loop.loop", "checkpointed_while_loop"
# What diffrax calls the loop over the steps of a solver.
_OF_DIFFRAX = "outer-loop"


@dataclass(frozen=True, slots=True)
class CheckpointedLoop:
    """A checkpointed while loop of a program.

    Attributes:
      checkpoints: how many carries it keeps.
      nbytes: the bytes of all of them.
      steps: the steps that are counted; None: not known.
      is_of_diffrax: whether diffrax runs it over the steps of a solver.
    """

    checkpoints: int
    nbytes: int
    steps: int | None
    is_of_diffrax: bool

    def written(self, checkpoints: int) -> str:
        """Return what to write for another number of checkpoints."""
        if self.is_of_diffrax:
            return f"adjoint=diffrax.RecursiveCheckpointAdjoint(checkpoints={checkpoints})"
        return f"equinox.internal.while_loop(..., checkpoints={checkpoints})"

    def runs(self, checkpoints: int) -> int | None:
        """Return how often its backward pass runs the body; None where that is not known."""
        if self.steps is None or self.steps > MOST_STEPS:
            return None
        return iterations(self.steps, checkpoints)


def biggest_loop(traced: Traced) -> CheckpointedLoop | None:
    """Return the checkpointed loop that keeps most; None without one."""
    found = []
    for eqn in itertools.chain.from_iterable(eqns_in(top.jaxpr) for top in traced.tops):
        loop = None
        if jax_compat.primitive_name(eqn) == "while":
            loop = backward_of(eqn, nests(eqn)[0])
        if loop is None or loop.branches is None:
            continue
        trips = traced.trips.of(eqn)
        steps = None if trips is None else trips.branches[loop.branches][1]
        is_of_diffrax = _OF_DIFFRAX in jax_compat.name_stack(eqn)
        found.append(CheckpointedLoop(loop.checkpoints, loop.nbytes, steps, is_of_diffrax))
    return max(found, key=lambda loop: loop.nbytes, default=None)


def has_loops() -> bool:
    """Return whether equinox is loaded, and has loops whose checkpoints can be changed."""
    return hasattr(sys.modules.get(_MODULE), _FUNCTION)


@contextlib.contextmanager
def keeping(now: int, wanted: int) -> Iterator[None]:
    """Trace loops that keep so many carries as if another number of them was asked for.

    Args:
      now: how many the loops keep.
      wanted: how many they are to keep.

    Raises:
      JaxresidError: this equinox has no such loops.
    """
    with _checkpoints_by(lambda kept: wanted if kept == now else None):
        yield


@contextlib.contextmanager
def watching(kept: int, seen: Callable[[], None]) -> Iterator[None]:
    """Call a function, where they are called, for each loop that keeps so many carries.

    Raises:
      JaxresidError: this equinox has no such loops.
    """

    def watched(now: int | None) -> None:
        if now == kept:
            seen()

    with _checkpoints_by(watched):
        yield


@contextlib.contextmanager
def _checkpoints_by(chosen: Callable[[int | None], int | None]) -> Iterator[None]:
    """Trace loops with the numbers of checkpoints that a function of theirs returns, if it does."""
    module = sys.modules.get(_MODULE)
    plain = getattr(module, _FUNCTION, None)
    if module is None or plain is None:
        raise JaxresidError("this version of equinox has other loops")

    @calls_user_code  # Equinox's loop, and with it the body
    def changed(
        *args: Any, checkpoints: int | None = None, max_steps: int | None = None, **options: Any
    ) -> Any:
        other = chosen(_kept(checkpoints, max_steps))
        if other is not None:
            checkpoints = other
        return plain(*args, checkpoints=checkpoints, max_steps=max_steps, **options)

    # In a context of its own, or what is jitted would not be traced again.
    with intercept_bind({}):
        setattr(module, _FUNCTION, changed)
        try:
            yield
        finally:
            setattr(module, _FUNCTION, plain)


def _kept(checkpoints: int | None, max_steps: int | None) -> int | None:
    """Return how many carries a loop keeps.

    By default equinox keeps the fewest with which its algorithm is optimal for `max_steps`.
    """
    if checkpoints is None and max_steps is not None:
        enough = (c for c in itertools.count() if (c + 1) * (c + 2) > 2 * max_steps)
        checkpoints = next(enough)
    if checkpoints is None or max_steps is None:
        return checkpoints
    return min(checkpoints, max_steps)
