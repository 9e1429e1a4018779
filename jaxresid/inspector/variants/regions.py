"""Find the calls of the user's functions in a primal jaxpr that a checkpoint could be put around.

An unrolled layer leaves no eqn of its own: its eqns are in its caller's jaxpr, and only their
frames tell the call that they came through. Eqns are recorded in the order in which the code ran,
so one call is a stretch of eqns, and calls that a Python loop makes one after another are one
longer stretch. Within a call a function's code runs forwards, except for its own loops: a stretch
is split into calls where the position goes back without one.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.calls import CallMark, call_starts, iterations
from jaxresid.inspector.jaxpr.frames import Frame
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
from jaxresid.inspector.jaxpr.phases import UPDATE, phase_of
from jaxresid.inspector.program.avals import aval_of
from jaxresid.inspector.variants.call_paths import CallPath, is_module
from jaxresid.inspector.variants.containers import is_container, is_graph
from jaxresid.inspector.variants.nesting import FEWEST
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import Location

# Shares of the bytes that eqns make. A call that alone makes MOST of what its caller makes is
# looked into, and what is found counts if it makes ENOUGH of what the call makes outside loops. One
# that makes NEARLY_ALL of what the program makes is the program itself. What is LOOPED to this
# share is a loop, whose body is a place of its own. Below LEAST nothing is gained, and of a Python
# loop below GROUPED little.
MOST = 0.6
ENOUGH = 0.5
NEARLY_ALL = 0.95
LOOPED = 0.9
LEAST = 0.01
GROUPED = 0.1
MOST_REGIONS = 16

# What is linear keeps nothing but what goes in, which is there with and without a checkpoint.
_LINEAR = frozenset(
    {
        *("dot_general", "conv_general_dilated", "add", "add_any", "sub", "neg", "reduce_sum"),
        *("reshape", "broadcast_in_dim", "transpose", "squeeze", "convert_element_type", "copy"),
        *("jit", "slice", "concatenate", "pad", "rev", "expand_dims"),
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class EqnRun:
    """One call: the eqns [start, stop) of an open jaxpr."""

    jaxpr: Jaxpr
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """The calls of one function from one line, in program order.

    Attributes:
      defined: where a library's module is defined; None for a function of the user's.
      kind: `call`, or `block` for the iterations of a Python loop, those of all its runs; `groups`
        for those of one run, which may be grouped.
      layers: of each call the name of the layer that is called; None where it has none.
      by_framework: whether a framework calls it, from no line of the user's.
    """

    function: str
    location: Location | None
    runs: tuple[EqnRun, ...]
    defined: Location | None = None
    kind: str = "call"
    layers: tuple[str | None, ...] = ()
    by_framework: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a jaxpr shows of the user's code.

    Attributes:
      loops: the Python loops whose iterations could be grouped, for each time that one runs.
    """

    calls: tuple[Region, ...]
    loops: tuple[Region, ...]


def regions(jaxpr: Jaxpr, levels: Levels) -> Found:
    """Return the calls of the user's functions that checkpoints could be put around, and the loops.

    Calls of a library's modules, such as `equinox.nn.MLP`, from the user's code are among them, and
    where no such code runs those of the layers that a framework calls itself, see `containers`.
    They are in program order; no two share an eqn. The target itself is looked into, and so is
    what is called once and makes most of its caller's bytes; other calls are taken whole. Left out
    are calls that hold a checkpoint, that are a loop and little else, that are a single operation
    or all of the program, of modules of a library that are linear, those whose results nobody
    reads, and those of a framework's own that hand out state of theirs as well.
    The loops are those in whatever was looked into.
    """
    search = _CallSearch(levels, jaxpr)
    groups: dict[Hashable, list[_Call]] = defaultdict(list)
    for call in search.within(_Span(Level(jaxpr), 0, len(jaxpr.eqns), -1)):
        groups[search.line(call)].append(call)
    sizes = {key: search.weight_of(calls).nbytes for key, calls in groups.items()}
    biggest = sorted(sizes, key=lambda key: -sizes[key])[:MOST_REGIONS]
    kept = (
        search.region(calls)
        for key, calls in groups.items()
        if key in biggest and sizes[key] >= LEAST * search.total
    )
    return Found(tuple(kept), tuple(search.region(calls, "groups") for calls in search.loops))


@dataclass(frozen=True, slots=True, eq=False)
class _Span:
    """Eqns of a level that all came through one call of a function.

    The frame of the call is number `depth` of their user frames; -1: no frame.
    """

    level: Level
    start: int
    stop: int
    depth: int

    @property
    def eqns(self) -> Sequence[Eqn]:
        return self.level.jaxpr.eqns[self.start : self.stop]


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """One call of a function.

    Attributes:
      chain: the frames that it was called from: its caller's and those of comprehensions and
        generators in between. Empty for the target.
      body: the same eqns, or those in the jit eqn that it left.
      loop: where the loop begins that this is an iteration of, in the function; None for a call.
      layer: the name of the layer whose call it is; None where it has none.
    """

    code: CodeType
    chain: tuple[Frame, ...]
    run: EqnRun
    body: _Span
    loop: Frame | None = None
    layer: str | None = None

    @property
    def eqns(self) -> Sequence[Eqn]:
        return self.run.jaxpr.eqns[self.run.start : self.run.stop]

    @property
    def is_by_graph(self) -> bool:
        return bool(self.chain) and is_graph(self.chain[-1].code)

    @property
    def is_by_container(self) -> bool:
        return bool(self.chain) and is_container(self.chain[-1].code)


@dataclass(frozen=True, slots=True)
class _Weight:
    """The bytes and the number of eqns, with inner jaxprs in place of the eqns that hold them.

    Attributes:
      nbytes: the bytes of all results, each trip's.
      looped: the part of these bytes that loops make.
    """

    nbytes: int = 0
    looped: int = 0
    operations: int = 0
    remat: bool = False

    def __add__(self, other: _Weight) -> _Weight:
        return _Weight(
            self.nbytes + other.nbytes,
            self.looped + other.looped,
            self.operations + other.operations,
            self.remat or other.remat,
        )


class _CallSearch:
    """A search for calls, which reads the paths of each level once."""

    def __init__(self, levels: Levels, jaxpr: Jaxpr) -> None:
        self._levels = levels
        self._path = functools.cache(self._find_path)
        self._inner = functools.cache(self._sum_of)
        self._last_reads = functools.cache(_last_reads)
        self.total = self._inner(jaxpr).nbytes
        # The iterations of each loop that was looked into and may be grouped.
        self.loops: list[Sequence[_Call]] = []
        # How many eqns hold each jaxpr: calls of a jitted function share one.
        self._held = Counter(id(nest.jaxpr) for eqn in eqns_in(jaxpr) for nest in levels.nests(eqn))

    def region(self, calls: Sequence[_Call], kind: str = "block") -> Region:
        first = calls[0]
        if first.loop is not None:
            where = self._levels.frames.location(first.loop)
            name = f"loop in {_name(first.code)}"
            return Region(name, where, tuple(call.run for call in calls), kind=kind)
        location = self._levels.frames.location(first.chain[-1]) if first.chain else None
        function = _name(first.code)
        defined = None
        if is_module(first.code) or first.is_by_container:
            file, line = first.code.co_filename, first.code.co_firstlineno
            defined = Location(file, line, None, function)
        runs, layers = tuple(call.run for call in calls), tuple(call.layer for call in calls)
        return Region(function, location, runs, defined, "call", layers, first.is_by_graph)

    def line(self, call: _Call) -> Hashable:
        if call.loop is not None:
            return call.code, call.loop.lasti
        if not call.chain:
            return call.code
        if call.is_by_container:  # whose first layer may be called from a line of its own
            return call.code, *(frame.code for frame in call.chain)
        location = self._levels.frames.location(call.chain[-1])
        return call.code, location.file, location.line

    def within(self, span: _Span) -> Iterator[_Call]:
        """Yield the calls that checkpoints could be put around, in one call of a function.

        Iterations of its Python loops, alike, take the place of the calls in them that make little
        of what these make.
        """
        calls = list(self._within(span))
        for block in self._blocks(span):
            inside = [call for call in calls if _is_inside(call, block)]
            if self.weight_of(inside).nbytes < ENOUGH * self.weight_of(block).nbytes:
                first = block[0].run
                at = (
                    calls.index(inside[0])
                    if inside
                    else sum(c.run.stop <= first.start for c in calls if c.run.jaxpr is first.jaxpr)
                )
                calls[at:at] = block
                calls = [call for call in calls if call not in inside]
        yield from calls

    def _blocks(self, span: _Span) -> Iterator[list[_Call]]:
        """Yield the iterations of the Python loops of a span, where there are some alike in a row.

        Loops that hold others are left out, those of a framework's over its layers, and iterations
        that are no places. What may be grouped is added to `loops`.
        """
        if span.depth < 0 or span.start == span.stop:
            return
        level, jaxpr = span.level, span.level.jaxpr
        paths = self._path(level)[span.start : span.stop]
        if any(span.depth >= len(path.users) for path in paths):
            return
        marks = [
            CallMark(path.frames[path.users[span.depth] :], jax_compat.primitive_name(eqn))
            for path, eqn in zip(paths, span.eqns, strict=True)
        ]
        first = marks[0].frames[0]
        if is_container(first.code) or any(mark.frames[0].code is not first.code for mark in marks):
            return
        if any(phase_of(jax_compat.name_stack(eqn)) != UPDATE for eqn in span.eqns):
            return
        for rounds in iterations(marks):
            runs = [
                EqnRun(jaxpr, span.start + a, span.start + b)
                for a, b in itertools.pairwise(rounds.cuts)
            ]
            loop = Frame(first.code, rounds.start, first.kind)
            calls = [
                _Call(first.code, (), run, _Span(level, run.start, run.stop, span.depth), loop)
                for run in runs
            ]
            if self._may_be_grouped(calls):
                self.loops.append(calls)
            if (
                not rounds.is_one_call
                and _alike_in_a_row(calls)
                and all(self._is_place(call) for call in calls)
            ):
                yield calls

    def _may_be_grouped(self, iterations: Sequence[_Call]) -> bool:
        if len(iterations) < FEWEST or any(eqn.effects for c in iterations for eqn in c.eqns):
            return False
        return self.weight_of(iterations).nbytes >= GROUPED * self.total

    def _within(self, span: _Span) -> Iterator[_Call]:
        calls = self._calls(span)
        times = Counter(self.line(call) for call in calls)
        total = self._sum(span.eqns).nbytes
        for call in calls:
            weight = self.weight_of([call])
            is_shared = self._held[id(call.body.level.jaxpr)] > 1
            is_entered = not call.chain or self._is_recursive(call)
            is_most = times[self.line(call)] == 1 and weight.nbytes >= MOST * total
            looks_inside = (is_entered or is_most) and not is_shared
            inside = list(self.within(call.body)) if looks_inside else []
            is_enough = self.weight_of(inside).nbytes >= ENOUGH * (weight.nbytes - weight.looped)
            if is_entered or (inside and is_enough) or not self._is_place(call):
                yield from inside
            else:
                yield call

    def weight_of(self, calls: Sequence[_Call]) -> _Weight:
        return self._sum(eqn for call in calls for eqn in call.eqns)

    def _sum(self, eqns: Iterable[Eqn]) -> _Weight:
        return sum((self._weight(eqn) for eqn in eqns), _Weight())

    def _weight(self, eqn: Eqn) -> _Weight:
        nests = self._levels.nests(eqn)
        if not nests:
            results = (v for v in eqn.outvars if not jax_compat.is_dropped(v))
            return _Weight(sum(aval_of(v).nbytes for v in results), 0, 1)
        inner = max((self._inner(nest.jaxpr) for nest in nests), key=lambda w: w.nbytes)
        trips = max(nest.length or 1 for nest in nests)
        nbytes = inner.nbytes * trips
        is_loop = any(nest.kind in ("scan", "while") for nest in nests)
        holds = any(self._inner(nest.jaxpr).remat for nest in nests)
        return _Weight(
            nbytes,
            nbytes if is_loop else inner.looped,
            inner.operations,
            holds or jax_compat.primitive_name(eqn) == "remat",
        )

    def _sum_of(self, jaxpr: Jaxpr) -> _Weight:
        return self._sum(jaxpr.eqns)

    def _is_place(self, call: _Call) -> bool:
        weight = self.weight_of([call])
        if weight.remat or weight.operations < 2:
            return False
        if weight.nbytes >= NEARLY_ALL * self.total or weight.looped >= LOOPED * weight.nbytes:
            return False
        is_library = is_module(call.code) or call.is_by_graph
        if is_library and all(_is_linear(eqn) for eqn in call.eqns):
            return False
        reads, end = self._last_reads(call.run.jaxpr), len(call.run.jaxpr.eqns)
        last = [
            at
            for eqn in call.eqns
            for v in eqn.outvars
            if (at := reads.get(v, -1)) >= call.run.stop
        ]
        if call.is_by_graph and end in last and min(last) < end:
            # New state, such as running means: a framework cannot take it out of a checkpoint.
            return False
        return bool(last)

    def _is_recursive(self, call: _Call) -> bool:
        path = self._path(call.body.level)[call.body.start]
        return call.code in (path.frames[at].code for at in path.users[: call.body.depth])

    def _calls(self, span: _Span) -> list[_Call]:
        level, jaxpr = span.level, span.level.jaxpr
        calls: list[_Call] = []
        stretch: list[int] = []
        previous: tuple[Any, ...] | None = None

        def close() -> None:
            if stretch and previous is not None:
                chain, code, depth, layer = previous
                for start, stop in self._runs(level, stretch, depth):
                    run, body = EqnRun(jaxpr, start, stop), _Span(level, start, stop, depth)
                    calls.append(self._through_lambda(_Call(code, chain, run, body, layer=layer)))
                stretch.clear()

        for i in range(span.start, span.stop):
            entry = self._entry(level, i, span.depth)
            if entry != previous:
                close()
            previous = entry
            if entry is not None:
                stretch.append(i)
            elif (call := self._jitted(level, i, span.depth)) is not None:
                calls.append(call)
        close()
        return calls

    def _entry(
        self, level: Level, i: int, depth: int
    ) -> tuple[tuple[Frame, ...], CodeType, int, str | None] | None:
        """Return the chain, code, depth and layer of the call that an eqn came through.

        None for an eqn that the function itself made, or a derivative of it.
        """
        if phase_of(jax_compat.name_stack(level.jaxpr.eqns[i])) != UPDATE:
            return None
        path = self._path(level)[i]
        callee = path.callee(depth)
        if callee is None:
            return None
        chain, code = path.chain(depth, callee), path.frames[path.users[callee]].code
        return chain, code, callee, path.layer(callee)

    def _jitted(self, level: Level, i: int, depth: int) -> _Call | None:
        eqn = level.jaxpr.eqns[i]
        if (
            jax_compat.primitive_name(eqn) != "jit"
            or phase_of(jax_compat.name_stack(eqn)) != UPDATE
        ):
            return None
        jaxpr = self._levels.nests(eqn)[0].jaxpr
        path = self._path(level)[i]
        inner = self._levels.enter(level, eqn, 0)
        for below in self._path(inner):
            callee = below.callee(len(path.users) - 1)
            if callee is not None:
                chain = below.chain(depth, callee)
                code = below.frames[below.users[callee]].code
                body = _Span(inner, 0, len(jaxpr.eqns), callee)
                return _Call(code, chain, EqnRun(level.jaxpr, i, i + 1), body)
        return None

    def _through_lambda(self, call: _Call) -> _Call:
        """Return the call of a lambda, or of the function that the lambda does nothing but call."""
        while call.code.co_name == "<lambda>" and call.body.level.jaxpr is call.run.jaxpr:
            inner = self._calls(call.body)
            if len(inner) != 1 or (inner[0].run.start, inner[0].run.stop) != (
                call.run.start,
                call.run.stop,
            ):
                return call
            call = inner[0]
        return call

    def _runs(self, level: Level, stretch: Sequence[int], depth: int) -> list[tuple[int, int]]:
        """Return the calls that a stretch of eqns consists of, as starts and stops."""
        paths = self._path(level)
        marks = [
            CallMark(
                paths[i].frames[paths[i].users[depth] :],
                jax_compat.primitive_name(level.jaxpr.eqns[i]),
            )
            for i in stretch
        ]
        cuts = [stretch[0] + at for at in call_starts(marks)]
        return list(zip(cuts, [*cuts[1:], stretch[-1] + 1], strict=True))

    def _find_path(self, level: Level) -> list[CallPath]:
        places = (self._levels.place(level, eqn) for eqn in level.jaxpr.eqns)
        return [CallPath.of(place.frames, place.scope) for place in places]


def _last_reads(jaxpr: Jaxpr) -> dict[Var, int]:
    """For outputs it is the index after the last eqn."""
    readers = [*(eqn.invars for eqn in jaxpr.eqns), jaxpr.outvars]
    return {v: i for i, vs in enumerate(readers) for v in vs if not jax_compat.is_literal(v)}


def _alike_in_a_row(calls: Sequence[_Call]) -> bool:
    """Return whether two calls that follow each other leave eqns that differ in params alone.

    Iterations that take slices by the number of the round do. Values of other names do not, as a
    policy tells them apart.
    """
    shapes = [_shape(call) for call in calls]
    return any(a == b for a, b in itertools.pairwise(shapes))


def _shape(call: _Call) -> Hashable:
    return tuple(
        (
            eqn.primitive,
            jax_compat.traceback(eqn),
            tuple(v.aval for v in eqn.outvars),
            _names(eqn),
        )
        for eqn in call.eqns
    )


def _names(eqn: Eqn) -> frozenset[str]:
    inner = itertools.chain.from_iterable(eqns_in(nest.jaxpr) for nest in nests(eqn))
    named = (inside for inside in (eqn, *inner) if jax_compat.primitive_name(inside) == "name")
    return frozenset(str(jax_compat.params(inside)["name"]) for inside in named)


def _is_inside(call: _Call, block: Sequence[_Call]) -> bool:
    return call.run.jaxpr is block[0].run.jaxpr and any(
        b.run.start <= call.run.start and call.run.stop <= b.run.stop for b in block
    )


def _name(code: CodeType) -> str:
    return code.co_qualname.rpartition("<locals>.")[2]


def _is_linear(eqn: Eqn) -> bool:
    inner = [inside for nest in nests(eqn) for inside in eqns_in(nest.jaxpr)]
    return all(jax_compat.primitive_name(inside) in _LINEAR for inside in (eqn, *inner))
