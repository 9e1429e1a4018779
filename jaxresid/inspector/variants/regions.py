"""Find the calls of the user's functions in a primal jaxpr that a checkpoint could be put around.

An unrolled layer leaves no eqn of its own: its eqns are in its caller's jaxpr, and only their
frames tell the call that they came through. Eqns are recorded in the order in which the code ran,
so one call is a stretch of eqns, and calls that a Python loop makes one after another are one
longer stretch. Within a call a function's code runs forwards, except for its own loops: a stretch
is split into calls where the position goes back without one.
"""

from __future__ import annotations

import inspect
import itertools
import os
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
from jaxresid.inspector.variants.containers import is_container, is_graph, is_layer, layer_name
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

# The folders that libraries have their modules in: layers, which users call like functions.
_MODULE_FOLDERS = tuple(
    os.path.join(os.sep, *path.split("/"), "")
    for path in ("equinox/nn", "flax/linen", "flax/nnx", "haiku")
)
# What is linear keeps nothing but what goes in, which is there with and without a checkpoint.
_LINEAR = frozenset(
    {
        *("dot_general", "conv_general_dilated", "add", "add_any", "sub", "neg", "reduce_sum"),
        *("reshape", "broadcast_in_dim", "transpose", "squeeze", "convert_element_type", "copy"),
        *("jit", "slice", "concatenate", "pad", "rev", "expand_dims"),
    }
)

# Functions of their own until Python 3.12.
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})


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
      function: the qualified name of the function.
      location: the line; None for the target.
      runs: the calls.
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
      calls: the calls that checkpoints could be put around.
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

    Args:
      jaxpr: the primal jaxpr, open.
      levels: descends into the eqns.
    """
    search = _CallSearch(levels, jaxpr)
    groups: dict[Hashable, list[_Call]] = defaultdict(list)
    for call in search.within(_Span(Level(jaxpr), 0, len(jaxpr.eqns), -1)):
        groups[search.line(call)].append(call)
    sizes = {key: search.made(calls).nbytes for key, calls in groups.items()}
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
      code: the code of the function.
      chain: the frames that it was called from: its caller's and those of comprehensions and
        generators in between. Empty for the target.
      run: the eqns that it left in the jaxpr of its caller.
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
      operations: the number of eqns, each loop's body once.
      remat: whether a checkpoint is among them.
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
        # By level and by jaxpr, which are kept or their ids could be reused.
        self._paths: dict[Level, list[_Path]] = {}
        self._weights: dict[int, tuple[Jaxpr, _Weight]] = {}
        self._reads: dict[int, tuple[Jaxpr, dict[Var, int]]] = {}
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
        if _is_module(first.code) or first.is_by_container:
            file, line = first.code.co_filename, first.code.co_firstlineno
            defined = Location(file, line, None, function)
        runs, layers = tuple(call.run for call in calls), tuple(call.layer for call in calls)
        return Region(function, location, runs, defined, "call", layers, first.is_by_graph)

    def line(self, call: _Call) -> Hashable:
        """Return the key that calls of one function from one line share."""
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
        found = list(self._within(span))
        for block in self._blocks(span):
            inside = [call for call in found if _is_inside(call, block)]
            if self.made(inside).nbytes < ENOUGH * self.made(block).nbytes:
                at = found.index(inside[0]) if inside else sum(_is_before(c, block) for c in found)
                found[at:at] = block
                found = [call for call in found if call not in inside]
        yield from found

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
        for each in iterations(marks):
            runs = [
                EqnRun(jaxpr, span.start + a, span.start + b)
                for a, b in itertools.pairwise(each.cuts)
            ]
            loop = Frame(first.code, each.start, first.kind)
            calls = [
                _Call(first.code, (), run, _Span(level, run.start, run.stop, span.depth), loop)
                for run in runs
            ]
            if self._may_be_grouped(calls):
                self.loops.append(calls)
            if (
                not each.is_one_call
                and _alike_in_a_row(calls)
                and all(self._is_place(call) for call in calls)
            ):
                yield calls

    def _may_be_grouped(self, iterations: Sequence[_Call]) -> bool:
        """Return whether groups of a loop's iterations may be worth a checkpoint each."""
        if len(iterations) < FEWEST or any(eqn.effects for c in iterations for eqn in c.eqns):
            return False
        return self.made(iterations).nbytes >= GROUPED * self.total

    def _within(self, span: _Span) -> Iterator[_Call]:
        calls = self._calls(span)
        times = Counter(self.line(call) for call in calls)
        total = self._sum(span.eqns).nbytes
        for call in calls:
            made = self.made([call])
            is_shared = self._held[id(call.body.level.jaxpr)] > 1
            is_entered = not call.chain or self._is_recursive(call)
            is_most = times[self.line(call)] == 1 and made.nbytes >= MOST * total
            looks_inside = (is_entered or is_most) and not is_shared
            inside = list(self.within(call.body)) if looks_inside else []
            is_enough = self.made(inside).nbytes >= ENOUGH * (made.nbytes - made.looped)
            if is_entered or (inside and is_enough) or not self._is_place(call):
                yield from inside
            else:
                yield call

    def made(self, calls: Sequence[_Call]) -> _Weight:
        return self._sum(eqn for call in calls for eqn in call.eqns)

    def _sum(self, eqns: Iterable[Eqn]) -> _Weight:
        return sum((self._weight(eqn) for eqn in eqns), _Weight())

    def _weight(self, eqn: Eqn) -> _Weight:
        found = self._levels.nests(eqn)
        if not found:
            made = (v for v in eqn.outvars if not jax_compat.is_dropped(v))
            return _Weight(sum(aval_of(v).nbytes for v in made), 0, 1)
        inner = max((self._inner(nest.jaxpr) for nest in found), key=lambda w: w.nbytes)
        trips = max(nest.length or 1 for nest in found)
        nbytes = inner.nbytes * trips
        is_loop = any(nest.kind in ("scan", "while") for nest in found)
        holds = any(self._inner(nest.jaxpr).remat for nest in found)
        return _Weight(
            nbytes,
            nbytes if is_loop else inner.looped,
            inner.operations,
            holds or jax_compat.primitive_name(eqn) == "remat",
        )

    def _inner(self, jaxpr: Jaxpr) -> _Weight:
        known = self._weights.get(id(jaxpr))
        if known is None:
            known = self._weights[id(jaxpr)] = jaxpr, self._sum(jaxpr.eqns)
        return known[1]

    def _is_place(self, call: _Call) -> bool:
        made = self.made([call])
        if made.remat or made.operations < 2:
            return False
        if made.nbytes >= NEARLY_ALL * self.total or made.looped >= LOOPED * made.nbytes:
            return False
        is_module = _is_module(call.code) or call.is_by_graph
        if is_module and all(_is_linear(eqn) for eqn in call.eqns):
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

    def _last_reads(self, jaxpr: Jaxpr) -> dict[Var, int]:
        """Return for each variable the index of the last eqn that reads it.

        For outputs it is the index after the last eqn.
        """
        known = self._reads.get(id(jaxpr))
        if known is None:
            readers = [*(eqn.invars for eqn in jaxpr.eqns), jaxpr.outvars]
            reads = {
                v: i for i, vs in enumerate(readers) for v in vs if not jax_compat.is_literal(v)
            }
            known = self._reads[id(jaxpr)] = jaxpr, reads
        return known[1]

    def _is_recursive(self, call: _Call) -> bool:
        """Return whether the function is on the stack already."""
        path = self._path(call.body.level)[call.body.start]
        return call.code in (path.frames[at].code for at in path.users[: call.body.depth])

    def _calls(self, span: _Span) -> list[_Call]:
        """Return the calls that the function of a span makes, in program order."""
        level, jaxpr = span.level, span.level.jaxpr
        made: list[_Call] = []
        stretch: list[int] = []
        previous: tuple[Any, ...] | None = None

        def close() -> None:
            if stretch and previous is not None:
                chain, code, depth, layer = previous
                for start, stop in self._runs(level, stretch, depth):
                    run, body = EqnRun(jaxpr, start, stop), _Span(level, start, stop, depth)
                    made.append(self._through_lambda(_Call(code, chain, run, body, layer=layer)))
                stretch.clear()

        for i in range(span.start, span.stop):
            entry = self._entry(level, i, span.depth)
            if entry != previous:
                close()
            previous = entry
            if entry is not None:
                stretch.append(i)
            elif (call := self._jitted(level, i, span.depth)) is not None:
                made.append(call)
        close()
        return made

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
        """Return the call of a jitted function that an eqn is."""
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

    def _path(self, level: Level) -> list[_Path]:
        found = self._paths.get(level)
        if found is None:
            found = self._paths[level] = [
                _Path.of(place.frames, place.scope)
                for place in (self._levels.place(level, eqn) for eqn in level.jaxpr.eqns)
            ]
        return found


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
    """Return the names of the values that an eqn names, at any depth."""
    inner = itertools.chain.from_iterable(eqns_in(nest.jaxpr) for nest in nests(eqn))
    named = (each for each in (eqn, *inner) if jax_compat.primitive_name(each) == "name")
    return frozenset(str(jax_compat.params(each)["name"]) for each in named)


def _is_inside(call: _Call, block: Sequence[_Call]) -> bool:
    return call.run.jaxpr is block[0].run.jaxpr and any(
        b.run.start <= call.run.start and call.run.stop <= b.run.stop for b in block
    )


def _is_before(call: _Call, block: Sequence[_Call]) -> bool:
    return call.run.jaxpr is block[0].run.jaxpr and call.run.stop <= block[0].run.start


def _name(code: CodeType) -> str:
    return code.co_qualname.rpartition("<locals>.")[2]


def _is_module(code: CodeType) -> bool:
    """Return whether code is what runs when a module of a library is called."""
    return (
        code.co_name == "__call__"
        and code.co_varnames[:1] == ("self",)
        and "site-packages" in code.co_filename
        and any(folder in code.co_filename for folder in _MODULE_FOLDERS)
    )


def _is_layer_of(caller: Frame | None, frame: Frame) -> bool:
    if caller is None or not is_container(caller.code):
        return False
    return is_layer(frame) if is_graph(caller.code) else _is_module(frame.code)


def _is_linear(eqn: Eqn) -> bool:
    inner = [each for nest in nests(eqn) for each in eqns_in(nest.jaxpr)]
    return all(jax_compat.primitive_name(each) in _LINEAR for each in (eqn, *inner))


@dataclass(frozen=True, slots=True)
class _Path:
    """The frames and name scopes of an eqn, outermost first, and which frames are the user's.

    Among these are the modules of libraries that the user's code calls; and where there is no such
    code, what calls the layers of a model, and the layers.
    """

    frames: tuple[Frame, ...]
    users: tuple[int, ...]
    scopes: tuple[str, ...] = ()

    @classmethod
    def of(cls, frames: tuple[Frame, ...], scope: str = "") -> _Path:
        users: list[int] = []
        for i, frame in enumerate(frames):
            caller = frames[users[-1]] if users else None
            by_user = caller is not None and caller.kind == "user"
            if (
                frame.kind == "user"
                or (by_user and _is_module(frame.code))
                or _is_layer_of(caller, frame)
                or (not by_user and is_container(frame.code))
            ):
                users.append(i)
        return cls(frames, tuple(users), tuple(filter(None, scope.split("/"))))

    def callee(self, depth: int) -> int | None:
        """Return the number of the user frame of the function that the one at `depth` called.

        Bodies of comprehensions and generators belong to their caller. None without such a frame.
        """
        for at in range(depth + 1, len(self.users)):
            code = self.frames[self.users[at]].code
            if code.co_name not in _COMPREHENSIONS and not code.co_flags & inspect.CO_GENERATOR:
                return at
        return None

    def layer(self, at: int) -> str | None:
        """Return the name of the layer whose method the user frame at `at` is of."""
        caller = self.users[at - 1] if at else -1
        return layer_name(self.frames, caller, self.users[at], self.scopes)

    def chain(self, depth: int, callee: int) -> tuple[Frame, ...]:
        return tuple(self.frames[at] for at in self.users[max(depth, 0) : callee])
