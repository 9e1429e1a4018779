"""Trace what a training step differentiates, its losses, and put checkpoints into them.

A step has no primal jaxpr. What it hands to `jax.grad` and the like has one: it is traced when JAX
calls it, and JAX differentiates that jaxpr in its place, as it is or with checkpoints around calls
of functions, or around everything.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any

from jaxresid import jax_compat
from jaxresid.errors import TraceError, calls_user_code
from jaxresid.inspector.checkpoints.sites import is_derived
from jaxresid.inspector.jaxpr.frames import Frame, Frames
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
from jaxresid.inspector.jaxpr.rewrite import Regroup, rewritten
from jaxresid.inspector.variants.choices import CheckpointPlace, Choice
from jaxresid.inspector.variants.cutting import cut
from jaxresid.inspector.variants.function import (
    Checkpointing,
    bounds_of,
    groups_places,
    regroup,
)
from jaxresid.inspector.variants.groups import Stretched, carried_nbytes, groups_of
from jaxresid.inspector.variants.regions import Found, Region, regions_and_loops
from jaxresid.jaxpr_types import ClosedJaxpr, Eqn, Jaxpr
from jaxresid.model import Location

# The scope that a loss is evaluated in, with its number.
_SCOPE = "jaxresid_loss_"

# A loss's number and its jaxpr -> what to differentiate in its place.
Change = Callable[[int, ClosedJaxpr], ClosedJaxpr]
# A loss and its number -> the function of its leaves to differentiate in its place.
Replacement = Callable[[int, "Loss"], Callable[..., Sequence[Any]]]


class OtherEqnsError(TraceError):
    """A loss has other eqns than those by which the places in it are told apart."""


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


@dataclass(frozen=True, slots=True)
class Stretch:
    """The eqns [start, stop) of a jaxpr in a loss.

    Attributes:
      path: the way to the jaxpr: of each level the number of the eqn that holds the next.
      start: the number of the first eqn.
      stop: the number after the last.
      primitives: the names of their primitives.
    """

    path: tuple[int, ...]
    start: int
    stop: int
    primitives: tuple[str, ...]

    def in_(self, loss: Jaxpr, name: str) -> Jaxpr:
        """Return the open jaxpr that holds these eqns.

        Raises:
          OtherEqnsError: the loss has others at that place.
        """
        jaxpr = loss
        for number in self.path:
            inner = nests(jaxpr.eqns[number]) if number < len(jaxpr.eqns) else ()
            if len(inner) != 1:
                raise _changed(name)
            jaxpr = inner[0].jaxpr
        if _primitives(jaxpr.eqns[self.start : self.stop]) != self.primitives:
            raise _changed(name)
        return jaxpr


@dataclass(frozen=True, slots=True, eq=False)
class LossCalls:
    """Calls of a function in one loss, which a checkpoint could be put around.

    Attributes:
      number: the number of the loss.
      stretches: the eqns of each call; none for the whole loss.
    """

    number: int
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LossLoops:
    """Python loops of one line in one loss, whose iterations may be grouped.

    Attributes:
      number: the number of the loss.
      loops: the eqns of each iteration, for each time that the loop runs.
    """

    number: int
    loops: tuple[tuple[Stretch, ...], ...]


class Losses:
    """The losses of a step, as they were traced, and the places in them.

    Attributes:
      found: the losses.

    Args:
      found: the losses, in the order in which they were differentiated.
      frames: reads the tracebacks of their eqns.
      is_written: whether an eqn is a checkpoint of the user's.
      name: the name of the step.
    """

    def __init__(
        self, found: Sequence[Loss], frames: Frames, is_written: Callable[[Eqn], bool], name: str
    ) -> None:
        self.found, self._frames, self._name = tuple(found), frames, name
        self._levels = Levels(frames)
        self._is_written = is_written
        self._regions = functools.cache(self._found_in)

    def places(self, trips: Mapping[int, int]) -> tuple[CheckpointPlace, ...]:
        """Return the calls in losses that a checkpoint could be put around, and the losses.

        Args:
          trips: how often each loss runs in a step; one that is not there is not differentiated
            in it.
        """
        calls, wholes = [], []
        for number in sorted(trips):
            loss = self.found[number]
            for region in self._regions(number).calls:
                found = _calls(number, loss.jaxpr, region)
                if found is not None:
                    calls.append(_call_place(region, found, trips[number]))
            whole = self._whole(number, trips[number])
            if whole is not None:
                wholes.append(whole)
        return (*calls, *wholes)

    def loops(self, trips: Mapping[int, int]) -> Iterator[tuple[CheckpointPlace, int]]:
        """Yield the Python loops whose iterations may be grouped, each with its carry in bytes.

        Args:
          trips: as for `places`.
        """
        for number in sorted(trips):
            loss = self.found[number].jaxpr
            for place in groups_places(self._regions(number).loops):
                each = [_calls(number, loss, loop) for loop in place.handle]
                calls = [found.stretches for found in each if found is not None]
                if len(calls) == len(each):
                    carry = sum(
                        carried_nbytes(loop.runs[0].jaxpr, bounds_of(loop)) for loop in place.handle
                    )
                    handle = LossLoops(number, tuple(calls))
                    yield replace(place, handle=handle), carry

    def _found_in(self, number: int) -> Found:
        jaxpr = self.found[number].jaxpr
        return regions_and_loops(jaxpr, self._levels, Level(jaxpr), self._is_written)

    def _whole(self, number: int, trips: int) -> CheckpointPlace | None:
        """Return the place of a whole loss; None where it is no function of the user's."""
        loss = self.found[number]
        top = Level(loss.jaxpr)
        outermost: dict[CodeType | None, Frame | None] = {}
        for eqn in loss.jaxpr.eqns:
            users = (
                frame
                for frame in self._levels.position(top, eqn).frames
                if frame.kind == "user" and frame.code not in loss.callers
            )
            first = next(users, None)
            outermost.setdefault(first.code if first else None, first)
        (frame, *others) = outermost.values() or [None]
        if frame is None or others or loss.jaxpr.effects:
            return None
        code = frame.code
        function = code.co_qualname.rpartition("<locals>.")[2]
        file = self._frames.location(frame).file
        return CheckpointPlace(
            "whole",
            function,
            None,
            1,
            trips,
            handle=LossCalls(number, ()),
            defined=Location(file, code.co_firstlineno, None, function),
        )

    def body(self, place: CheckpointPlace) -> Jaxpr:
        """Return the open jaxpr that the first call of a place runs."""
        number: int = place.handle.number
        loss = self.found[number].jaxpr
        stretches = _stretches(place)
        if not stretches:
            return loss
        first = stretches[0]
        jaxpr = first.in_(loss, self._name)
        return cut(jaxpr, first.start, first.stop, jaxpr.eqns[first.start : first.stop])

    def eqns(self, place: CheckpointPlace) -> Iterator[Eqn]:
        """Yield the eqns inside a place, at any depth."""
        loss = self.found[place.handle.number].jaxpr
        stretches = _stretches(place)
        if not stretches:
            yield from eqns_in(loss)
        for each in stretches:
            jaxpr = each.in_(loss, self._name)
            for eqn in jaxpr.eqns[each.start : each.stop]:
                yield eqn
                for nest in nests(eqn):
                    yield from eqns_in(nest.jaxpr)

    def overlap(self, outer: CheckpointPlace, inner: CheckpointPlace) -> bool:
        """Return whether one place is inside another: calls share nothing, and are in a loss."""
        a: LossCalls = outer.handle
        b: LossCalls = inner.handle
        return a.number == b.number and not a.stretches and bool(b.stretches)

    def is_in(self, call: CheckpointPlace, loop: CheckpointPlace) -> bool:
        """Return whether all calls of a place are in iterations of a loop."""
        if call.handle.number != loop.handle.number or not call.handle.stretches:
            return False
        return all(
            any(
                each.path == other.path and other.start <= each.start and each.stop <= other.stop
                for other in _stretches(loop)
            )
            for each in call.handle.stretches
        )

    def changing(
        self,
        chosen: Mapping[CheckpointPlace, Sequence[Choice | None]],
        remake: Checkpointing,
        *,
        found_again: bool = False,
    ) -> Change:
        """Return the change of the losses that makes choices.

        Args:
          chosen: the choices.
          remake: makes the checkpoints.
          found_again: whether the places are looked for anew in a loss that has other eqns, as with
            arguments of other types: they are those on the same lines.
        """

        def change(number: int, closed: ClosedJaxpr) -> ClosedJaxpr:
            own = {p: made for p, made in chosen.items() if p.handle.number == number}
            try:
                return self._changed(closed, own, remake)
            except OtherEqnsError:
                if not found_again:
                    raise
            other = self._with_loss(number, closed)
            places = [*other.places({number: 1}), *(p for p, _ in other.loops({number: 1}))]
            same = {_line_of(p): p for p in places}
            if len(same) < len(places) or not {_line_of(p) for p in own} <= same.keys():
                raise _changed(self._name)
            return other._changed(
                closed, {same[_line_of(p)]: made for p, made in own.items()}, remake
            )

        return change

    def _with_loss(self, number: int, closed: ClosedJaxpr) -> Losses:
        """Return the losses with another jaxpr of one."""
        found = list(self.found)
        found[number] = replace(found[number], closed=closed)
        return Losses(found, self._frames, self._is_written, self._name)

    def _changed(
        self,
        closed: ClosedJaxpr,
        chosen: Mapping[CheckpointPlace, Sequence[Choice | None]],
        remake: Checkpointing,
    ) -> ClosedJaxpr:
        """Return a loss with choices made in it.

        Raises:
          OtherEqnsError: it has other eqns than the one whose places they are.
        """
        loss = jax_compat.open_jaxpr(closed)
        jaxprs: dict[int, Jaxpr] = {}
        cuts: dict[int, list[Stretched]] = {}
        whole: Choice | None = None
        for place, made in chosen.items():
            if isinstance(place.handle, LossLoops):
                for loop, choice in zip(place.handle.loops, made, strict=True):
                    if choice is not None:
                        (jaxpr,) = {id(j): j for j in self._holding(loop, loss)}.values()
                        jaxprs[id(jaxpr)] = jaxpr
                        bounds = [(each.start, each.stop) for each in loop]
                        cuts.setdefault(id(jaxpr), []).extend(groups_of(bounds, choice))
                continue
            calls: LossCalls = place.handle
            if not calls.stretches:
                whole = made[0]
            for each, choice in zip(calls.stretches, made, strict=bool(calls.stretches)):
                if choice is not None:
                    jaxpr = each.in_(loss, self._name)
                    jaxprs[id(jaxpr)] = jaxpr
                    cuts.setdefault(id(jaxpr), []).append((each.start, each.stop, choice))
        groups: dict[int, Regroup] = {
            key: regroup(jaxpr, cuts[key], remake) for key, jaxpr in jaxprs.items()
        }
        made_jaxpr = rewritten(loss, {}, groups)
        if whole is not None:
            made_jaxpr = remake.wrapped(made_jaxpr, whole, prevent_cse=True)
        return closed if made_jaxpr is loss else jax_compat.with_jaxpr(closed, made_jaxpr)

    def _holding(self, loop: Sequence[Stretch], loss: Jaxpr) -> list[Jaxpr]:
        return [each.in_(loss, self._name) for each in loop]


def _line_of(place: CheckpointPlace) -> Hashable:
    """Return what a place has in common with that of the same loss with other eqns."""
    return place.kind, place.function, place.location, place.calls


def _stretches(place: CheckpointPlace) -> tuple[Stretch, ...]:
    """Return the eqns of a place in a loss; none for the whole loss."""
    match place.handle:
        case LossLoops(loops=loops):
            return tuple(itertools.chain.from_iterable(loops))
        case _:
            found: tuple[Stretch, ...] = place.handle.stretches
            return found


def trips_of(jaxpr: Jaxpr) -> dict[int, int]:
    """Return how often each loss runs in a step whose losses were traced, by its number.

    One that is linearized and never transposed has no backward pass, and is not among them.
    """
    found: dict[int, int] = {}
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

    def enter(jaxpr: Jaxpr, trips: int) -> None:
        for eqn in jaxpr.eqns:
            for number in _marks(eqn):
                found[number] = max(found.get(number, 0), trips)
            for nest in nests(eqn):
                if not inside(nest.jaxpr) <= found.keys():
                    enter(nest.jaxpr, trips * (nest.length or 1))

    inside(jaxpr)
    enter(jaxpr, 1)
    return {number: trips for number, trips in found.items() if number in transposed}


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
                loss = Loss(closed, _callers(frames), values)
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


def _callers(frames: Frames) -> frozenset[CodeType]:
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


def _calls(number: int, loss: Jaxpr, region: Region) -> LossCalls | None:
    """Return the calls of a region of a loss; None where one takes a derivative, or prints."""
    paths = _paths(loss)
    stretches = []
    for run in region.runs:
        eqns = run.jaxpr.eqns[run.start : run.stop]
        path = paths.get(id(run.jaxpr))
        if path is None or any(is_derived(eqn) or eqn.effects for eqn in eqns):
            return None
        stretches.append(Stretch(path, run.start, run.stop, _primitives(eqns)))
    return LossCalls(number, tuple(stretches))


def _call_place(region: Region, calls: LossCalls, trips: int) -> CheckpointPlace:
    return CheckpointPlace(
        region.kind,
        region.function,
        region.location,
        len(calls.stretches),
        len(calls.stretches) * trips,
        can_split=True,
        handle=calls,
        defined=region.defined,
        layers=region.layers,
        by_framework=region.by_framework,
    )


def _paths(jaxpr: Jaxpr) -> dict[int, tuple[int, ...]]:
    """Return the paths to the jaxprs that calls hold, by the ids of the jaxprs."""
    found: dict[int, tuple[int, ...]] = {}

    def enter(jaxpr: Jaxpr, path: tuple[int, ...]) -> None:
        if id(jaxpr) in found:
            return
        found[id(jaxpr)] = path
        for number, eqn in enumerate(jaxpr.eqns):
            for nest in nests(eqn):
                if nest.kind == "call":
                    enter(nest.jaxpr, (*path, number))

    enter(jaxpr, ())
    return found


def _primitives(eqns: Sequence[Eqn]) -> tuple[str, ...]:
    """Return the names of primitives; a removed checkpoint, and a cut scan, leave a call."""
    names = (jax_compat.primitive_name(eqn) for eqn in eqns)
    return tuple("jit" if name in ("remat", "scan") else name for name in names)


def _changed(name: str) -> OtherEqnsError:
    return OtherEqnsError(
        f"{name} changes each time it is traced, so the calls in it cannot be told apart"
    )
