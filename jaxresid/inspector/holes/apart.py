"""Trace what a program differentiates, its losses, to jaxprs of their own.

What a program hands to `jax.grad` and the like is traced when JAX calls it, and JAX differentiates
that jaxpr in its place, as it is or changed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import calls_user_code
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.jax_compat.jaxpr_types import ClosedJaxpr, Eqn, Jaxpr

# The scope that a loss is evaluated in, with its number.
_SCOPE = "jaxresid_loss_"

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
        """The open jaxpr."""
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
    found: dict[int, tuple[int, tuple[Eqn, ...]]] = {}
    transposed: set[int] = set()
    known: dict[int, frozenset[int]] = {}

    def inside(jaxpr: Jaxpr) -> frozenset[int]:
        made = known.get(id(jaxpr))
        if made is None:
            marks: set[int] = set()
            for eqn in jaxpr.eqns:
                own = _marks(eqn)
                marks |= own
                if own and _is_transposed(eqn):
                    transposed.update(own)
                for nest in nests(eqn):
                    marks |= inside(nest.jaxpr)
            made = known[id(jaxpr)] = frozenset(marks)
        return made

    def enter(jaxpr: Jaxpr, trips: int, loops: tuple[Eqn, ...]) -> None:
        for eqn in jaxpr.eqns:
            for number in _marks(eqn):
                if number not in found or found[number][0] < trips:
                    found[number] = trips, loops
            for nest in nests(eqn):
                if not inside(nest.jaxpr) <= found.keys():
                    around = (*loops, eqn) if nest.kind in ("scan", "while") else loops
                    enter(nest.jaxpr, trips * (nest.length or 1), around)

    inside(jaxpr)
    enter(jaxpr, 1, ())
    return {number: runs for number, runs in found.items() if number in transposed}


def _marks(eqn: Eqn) -> set[int]:
    _, *after = jax_compat.name_stack(eqn).split(_SCOPE)
    return {int("".join(_digits(text))) for text in after}


def _is_transposed(eqn: Eqn) -> bool:
    """Return whether a marked eqn is part of a backward pass."""
    return "transpose(" in jax_compat.name_stack(eqn).partition(_SCOPE)[0]


def _digits(text: str) -> Iterator[str]:
    for character in text:
        if not character.isdigit():
            return
        yield character


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
      frames: tells the user's frames.
      change: what is differentiated in place of a loss; None: the loss.
      replacement: makes what is differentiated in place of a changed loss; None: it is.
      marked: whether the losses are to be found again by `trips_of`.
    """
    found: list[Loss] = []
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
                number = len(found)
                loss = Loss(closed, callers_of(frames), values)
                found.append(loss)
                made = closed if change is None else change(number, closed)
                run = jax_compat.as_function(made)
                if replacement is not None:
                    run = replacement(number, replace(loss, closed=made))
                scope = jax_compat.import_jax().named_scope(f"{_SCOPE}{number}")
                with scope if marked else contextlib.nullcontext():
                    return restored(run(*leaves))
            finally:
                is_busy = False

        return traced

    with jax_compat.replacing_differentiated(new):
        yield found


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
        made = [next(arrays) if a else o for a, o in zip(is_array, others, strict=True)]
        return jax.tree.unflatten(out_tree, made)

    return closed, returned[-1], leaves, restored


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float | complex)


def callers_of(frames: Frames) -> frozenset[CodeType]:
    """Return the code of the user's frames that are running."""
    found: set[CodeType] = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        kind = frames.kind(frame.f_code.co_filename, frame.f_code.co_qualname)
        if kind == "root":
            break
        if kind == "user":
            found.add(frame.f_code)
        frame = frame.f_back
    return frozenset(found)
