"""Trace what a program differentiates, its losses, to jaxprs of their own.

What a program hands to `jax.grad` and the like is traced when JAX calls it, and JAX differentiates
that jaxpr in its place, as it is or changed.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import calls_user_code
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.jax_compat.jaxpr_types import ClosedJaxpr, Eqn, Jaxpr

# The scope that a loss is evaluated in, with its number.
_SCOPE = "jaxresid_loss_"
_NUMBERS = re.compile(_SCOPE + r"(\d+)")

# A loss's number and its jaxpr -> what to differentiate in its place.
Change = Callable[[int, ClosedJaxpr], ClosedJaxpr]
# A loss and its number -> the function of its leaves to differentiate in its place.
Replacement = Callable[[int, "Loss"], Callable[..., Sequence[Any]]]


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """A function that a step differentiates.

    Attributes:
      closed: its jaxpr, with what it closes over as constants.
      callers: the code of the user's frames that its derivative was taken in.
      values: how many of its outputs are differentiated; those after them are auxiliary.
    """

    closed: ClosedJaxpr
    callers: frozenset[CodeType]
    values: int

    @property
    def jaxpr(self) -> Jaxpr:
        return jax_compat.open_jaxpr(self.closed)

    @property
    def lifted(self) -> ClosedJaxpr:
        """The same with what it closes over as its first inputs."""
        return jax_compat.with_constants_as_inputs(self.closed)

    def with_jaxpr(self, jaxpr: Jaxpr) -> Loss:
        """Return the loss with another open jaxpr in place of the lifted one."""
        return replace(self, closed=jax_compat.with_inputs_as_constants(jaxpr, self.closed))


def trips_of(jaxpr: Jaxpr) -> dict[int, tuple[int, tuple[Eqn, ...]]]:
    """Return how often each loss runs in a program whose losses were traced, and in which loops.

    By its number. One that is linearized and never transposed has no backward pass, and is not
    among them.
    """
    runs_of: dict[int, tuple[int, tuple[Eqn, ...]]] = {}
    transposed: set[int] = set()

    @functools.cache
    def inside(jaxpr: Jaxpr) -> frozenset[int]:
        marks: set[int] = set()
        for eqn in jaxpr.eqns:
            own = _marks(eqn)
            marks |= own
            if own and "transpose(" in jax_compat.name_stack(eqn).partition(_SCOPE)[0]:
                transposed.update(own)
            for nest in nests(eqn):
                marks |= inside(nest.jaxpr)
        return frozenset(marks)

    def enter(jaxpr: Jaxpr, trips: int, loops: tuple[Eqn, ...]) -> None:
        for eqn in jaxpr.eqns:
            for number in _marks(eqn):
                if number not in runs_of or runs_of[number][0] < trips:
                    runs_of[number] = trips, loops
            for nest in nests(eqn):
                if not inside(nest.jaxpr) <= runs_of.keys():
                    around = (*loops, eqn) if nest.kind in ("scan", "while") else loops
                    enter(nest.jaxpr, trips * (nest.length or 1), around)

    inside(jaxpr)
    enter(jaxpr, 1, ())
    return {number: runs for number, runs in runs_of.items() if number in transposed}


def _marks(eqn: Eqn) -> set[int]:
    return set(map(int, _NUMBERS.findall(jax_compat.name_stack(eqn))))


@contextlib.contextmanager
def tracing_losses(
    frames: Frames,
    change: Change | None = None,
    *,
    replacement: Replacement | None = None,
    marked: bool = False,
) -> Iterator[list[Loss]]:
    """Trace what is differentiated in the context to jaxprs, and yield the list of them.

    What a loss itself differentiates is a part of it.

    Args:
      change: what is differentiated in place of a loss; None: the loss.
      replacement: makes what is differentiated in place of a changed loss; None: it is.
      marked: whether the losses are to be found again by `trips_of`.
    """
    losses: list[Loss] = []
    is_busy = False

    def new(fun: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
        @functools.wraps(fun)
        @calls_user_code
        def traced(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_busy
            if is_busy:
                return fun(*args, **kwargs)
            is_busy = True
            try:
                closed, values, leaves, restored = traced_apart(fun, args, kwargs, has_aux)
                number = len(losses)
                loss = Loss(closed, callers_of(frames), values)
                losses.append(loss)
                changed = closed if change is None else change(number, closed)
                run = jax_compat.as_function(changed)
                if replacement is not None:
                    run = replacement(number, replace(loss, closed=changed))
                scope = jax_compat.import_jax().named_scope(f"{_SCOPE}{number}")
                with scope if marked else contextlib.nullcontext():
                    return restored(run(*leaves))
            finally:
                is_busy = False

        return traced

    with jax_compat.replacing_differentiated(new):
        yield losses


def traced_apart(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], has_aux: bool
) -> tuple[ClosedJaxpr, int, list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the jaxpr of a call, how many results are differentiated, and its operands.

    The last is a function from its results to what it returns. What is returned that is no array
    is returned as it is.
    """
    jax = jax_compat.import_jax()
    leaves, tree = jax.tree.flatten((args, kwargs))
    returned: list[Any] = []

    @calls_user_code
    def flat(*values: Any) -> list[Any]:
        again, named = jax.tree.unflatten(tree, values)
        result = fun(*again, **named)
        out, out_tree = jax.tree.flatten(result)
        is_array = [_is_array(leaf) for leaf in out]
        others = [None if a else leaf for leaf, a in zip(out, is_array, strict=True)]
        values = jax.tree.leaves(result[0]) if has_aux else out
        returned[:] = [out_tree, is_array, others, sum(map(_is_array, values))]
        return [leaf for leaf, a in zip(out, is_array, strict=True) if a]

    with jax_compat.keeping_callers():
        closed: ClosedJaxpr = jax.make_jaxpr(flat)(*leaves)

    def restored(results: Sequence[Any]) -> Any:
        out_tree, is_array, others, _ = returned
        arrays = iter(results)
        leaves = [next(arrays) if a else o for a, o in zip(is_array, others, strict=True)]
        return jax.tree.unflatten(out_tree, leaves)

    return closed, returned[-1], leaves, restored


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float | complex)


def callers_of(frames: Frames) -> frozenset[CodeType]:
    """Return the code of the user's frames that are running."""
    codes: set[CodeType] = set()
    for code, _ in jax_compat.running_code():
        kind = frames.kind(code.co_filename, code.co_qualname)
        if kind == "root":
            break
        if kind == "user":
            codes.add(code)
    return frozenset(codes)
