"""Group the checkpoints of a primal jaxpr by where they are written.

A checkpoint is a remat eqn; those that one source line makes of one function with one policy are
one site, however often a Python loop runs over it. The function is the module or function that a
user means: libraries wrap it in functions of their own before they checkpoint it.
"""

from __future__ import annotations

import itertools
import linecache
import os
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.text.layer_paths import folded_scopes
from jaxresid.inspector.checkpoints.policies import description
from jaxresid.inspector.holes.holes import Holes
from jaxresid.inspector.jaxpr.frames import (
    Frame,
    Frames,
    below,
    calls_wrapped,
    definition,
    is_wrapper,
    name_of,
    name_of_qualified,
    passes_on,
    qualified_name,
)
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels, scope_of, source_of
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
from jaxresid.inspector.jaxpr.primitives import CALLS, of_kind
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import Location, Source

# What JAX differentiates by differentiating the jaxpr that it holds, and nothing else.
_TRANSPARENT = of_kind("call", "checkpoint", "control", "map")
_UNKNOWN = "a function"
# The file of JAX that makes checkpoints.
_CHECKPOINT = f"{os.sep}ad_checkpoint.py"
# What the name stack of a derivative holds.
_DERIVED = re.compile(r"\b(jvp|transpose)\(|\brematted_computation\b")


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One remat eqn, and what is around it.

    Attributes:
      eqn: the remat eqn.
      jaxpr: its body.
      trips: how often the loops around it run it.
      around: the remat eqns around it, outermost first.
      loops: the loop eqns around it, outermost first.
      makers: for each variable of the jaxpr that holds the eqn, the eqn that makes it.
      enclosing: all eqns around it, outermost first.
    """

    eqn: Eqn
    jaxpr: Jaxpr
    trips: int
    around: tuple[Eqn, ...]
    loops: tuple[Eqn, ...]
    makers: Mapping[Var, Eqn]
    enclosing: tuple[Eqn, ...] = ()

    @property
    def is_as_written(self) -> bool:
        """Return whether JAX differentiates the checkpoint from this eqn alone.

        That is, it is not a derivative already, and nothing around it has a derivative rule that
        holds the checkpoint for itself.
        """
        if any(map(is_derived, (*self.enclosing, self.eqn))):
            return False
        return not any(map(has_rule, self.enclosing))


@dataclass(frozen=True, slots=True)
class Body:
    """The function or module method that a checkpoint wraps, and where it is defined."""

    name: str
    defined: Location | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointSite:
    """One checkpoint as a user wrote it.

    Attributes:
      body: the function that it wraps.
      source: the line that calls it, and the module.
      policy: the policy; None without one.
      prevent_cse: whether it prevents common subexpression elimination.
      calls: its remat eqns.
      bodies: the eqns in it as written, open jaxprs.
      is_hidden: whether no jaxpr shows it, so that it has no calls.
    """

    body: Body
    source: Source
    policy: Any
    prevent_cse: bool
    calls: tuple[Call, ...]
    bodies: tuple[Jaxpr, ...] = ()
    is_hidden: bool = False

    @property
    def held(self) -> Iterator[Eqn]:
        """The eqns of its bodies, at any depth."""
        return itertools.chain.from_iterable(eqns_in(body) for body in self.bodies)

    @property
    def is_as_written(self) -> bool:
        """Return whether JAX differentiates each call from its eqn alone.

        See `Call.is_as_written`.
        """
        return not self.is_hidden and all(call.is_as_written for call in self.calls)

    @property
    def function(self) -> str:
        """The name of the function that it wraps."""
        return self.body.name

    @property
    def location(self) -> Location | None:
        """The line that calls it, None where none is known."""
        return self.source.location

    @property
    def trips(self) -> int:
        """How often its calls run, all together."""
        return sum(call.trips for call in self.calls)

    @property
    def eqns(self) -> frozenset[int]:
        """The ids of its remat eqns."""
        return frozenset(id(call.eqn) for call in self.calls)

    @property
    def is_nested(self) -> bool:
        """Return whether each of its calls is inside another checkpoint."""
        return not self.is_hidden and all(call.around for call in self.calls)

    @property
    def in_loops(self) -> bool:
        """Return whether each of its calls is inside a loop."""
        return not self.is_hidden and all(call.loops for call in self.calls)

    def __str__(self) -> str:
        if self.location is None:
            return self.function
        return f"{self.location.file}:{self.location.line} ({self.function})"


def sites(levels: Levels, top: Level, *, backward: bool = False) -> tuple[CheckpointSite, ...]:
    """Return the checkpoints of a jaxpr, in program order.

    Args:
      levels: descends into the eqns.
      top: the outermost level.
      backward: whether to take those of a training step, whose backward pass holds them.
    """
    return sites_of(levels, calls(levels, top), backward=backward)


def sites_in(holes: Holes[Any]) -> tuple[CheckpointSite, ...]:
    """Return the checkpoints of what a program differentiates, in program order."""
    found = (calls(holes.levels, h.level, h.trips, h.loops) for h in holes.holes)
    return sites_of(holes.levels, itertools.chain.from_iterable(found))


def sites_of(
    levels: Levels, found: Iterable[tuple[Level, Call]], *, backward: bool = False
) -> tuple[CheckpointSite, ...]:
    """Return the checkpoints that some remat eqns are of; see `sites`."""
    groups: dict[Hashable, list[tuple[Call, Source]]] = {}
    heads: dict[Hashable, tuple[Body, Any, bool]] = {}
    for level, call in found:
        params = jax_compat.params(call.eqn)
        if backward and not _recomputes(call.eqn):
            continue  # one that still stands in the forward pass
        policy = params.get("policy")
        is_prevented = prevents_cse(params)
        place = levels.place(level, call.eqn)
        is_stamped = _is_stamped(call.eqn, levels.frames)
        made = body(call.jaxpr, levels.frames, place.frames, is_stamped=is_stamped)
        inner = _common_scope(call.jaxpr)
        scope = "/".join(part for part in (place.scope, inner) if part)
        # Of what libraries do on the way from the user's line the calls that say something.
        called = tuple(f for f in place.frames if f.kind != "library" or not is_wrapper(f.code))
        module = place.module if scope else levels.modules.inside(level, call.eqn)
        placed = replace(place, frames=called, scope=scope, module=module)
        source = source_of(levels.frames, placed)
        if source.location is None or is_stamped:  # nobody but us calls it, or who is not known
            source = replace(source, location=made.defined)
        line = source.location and (source.location.file, source.location.line)
        key = (made, line, description(policy), is_prevented)
        heads.setdefault(key, (made, policy, is_prevented))
        groups.setdefault(key, []).append((call, source))
    return tuple(
        CheckpointSite(
            made,
            replace(each[0][1], scope=folded_scopes(source.scope for _, source in each)),
            policy,
            is_prevented,
            tuple(call for call, _ in each),
            tuple({id(call.jaxpr): call.jaxpr for call, _ in each}.values()),
        )
        for key, each in groups.items()
        for made, policy, is_prevented in [heads[key]]
    )


def is_derived(eqn: Eqn) -> bool:
    """Return whether an eqn is a derivative, or part of one, already."""
    return _DERIVED.search(jax_compat.whole_name_stack(eqn)) is not None


def has_rule(eqn: Eqn) -> bool:
    """Return whether JAX differentiates an eqn by more than the jaxprs inside it."""
    return jax_compat.primitive_name(eqn) not in _TRANSPARENT


def prevents_cse(params: Mapping[str, Any]) -> bool:
    """Return whether the params of a remat eqn prevent CSE."""
    prevent = params.get("prevent_cse", True)
    return any(prevent) if isinstance(prevent, tuple | list) else bool(prevent)


def calls(
    levels: Levels, top: Level, trips: int = 1, loops: tuple[Eqn, ...] = ()
) -> Iterator[tuple[Level, Call]]:
    """Yield the remat eqns of a jaxpr, each with its level, in program order.

    Args:
      levels: descends into the eqns.
      top: the level of the jaxpr.
      trips: how often it runs.
      loops: the loop eqns around it, outermost first.
    """
    known: dict[int, tuple[Jaxpr, bool]] = {}

    def walk(
        level: Level,
        trips: int,
        around: tuple[Eqn, ...],
        loops: tuple[Eqn, ...],
        enclosing: tuple[Eqn, ...],
    ) -> Iterator[tuple[Level, Call]]:
        makers = {v: eqn for eqn in level.jaxpr.eqns for v in eqn.outvars}
        for eqn in level.jaxpr.eqns:
            found = levels.nests(eqn)
            if not found:
                continue
            inside = around
            if jax_compat.primitive_name(eqn) == "remat":
                jaxpr = found[0].jaxpr
                yield level, Call(eqn, jaxpr, trips, around, loops, makers, enclosing)
                inside = (*around, eqn)
            for which, nest in enumerate(found):
                if not _holds(nest.jaxpr, known):
                    continue
                is_loop = nest.kind in ("scan", "while")
                more = trips * (nest.length or 1) if is_loop else trips
                yield from walk(
                    levels.enter(level, eqn, which),
                    more,
                    inside,
                    (*loops, eqn) if is_loop else loops,
                    (*enclosing, eqn),
                )

    yield from walk(top, trips, (), loops, ())


def _recomputes(eqn: Eqn) -> bool:
    """Return whether a remat eqn belongs to a backward pass."""
    differentiated = jax_compat.params(eqn).get("differentiated")
    if differentiated is None:  # jax_remat3
        return "rematted_computation" in jax_compat.name_stack(eqn)
    return bool(differentiated)


def _holds(jaxpr: Jaxpr, known: dict[int, tuple[Jaxpr, bool]]) -> bool:
    """Return whether the jaxpr holds a remat eqn at any depth."""
    found = known.get(id(jaxpr))
    if found is None:
        holds = any(
            jax_compat.primitive_name(eqn) == "remat"
            or any(_holds(n.jaxpr, known) for n in nests(eqn))
            for eqn in jaxpr.eqns
        )
        found = known[id(jaxpr)] = jaxpr, holds
    return found[1]


def _is_stamped(eqn: Eqn, frames: Frames) -> bool:
    """Return whether a remat eqn has the traceback of something else.

    While JAX differentiates a jaxpr it calls derivative rules; what these do gets the traceback of
    an eqn of the jaxpr.
    """
    traceback = jax_compat.traceback(eqn)
    codes = () if traceback is None else traceback.raw_frames()[0]
    for code in codes:
        if code.co_filename.endswith(_CHECKPOINT):
            return False
        if frames.kind(code.co_filename, code.co_qualname) in ("user", "library"):
            break
    return bool(codes)


def body(
    jaxpr: Jaxpr, frames: Frames, above: tuple[Frame, ...] = (), *, is_stamped: bool = False
) -> Body:
    """Return the function that a checkpoint wraps.

    It is found by the functions that all eqns of the body came through: the outermost of the
    user's, else of a library's, that is more than a wrapper around another.

    Args:
      jaxpr: the body, open.
      frames: reads the eqns' tracebacks.
      above: the frames of the call of the body.
      is_stamped: whether its eqns may have the traceback of something else.
    """
    chain = [] if is_stamped else _shared(jaxpr, frames, above)
    own = [each for each in chain if each.frame.kind == "user"]
    others = [each.frame.code for each in chain if each.frame.kind != "user"]
    found = next((each.frame.code for each in own if not each.passes_on), None)
    found = found or (own[-1].frame.code if own else None)
    found = found or next((code for code in others if not is_wrapper(code)), None)
    if found is not None:
        return Body(name_of(found), definition(found, frames))
    if len(jaxpr.eqns) == 1 and jax_compat.primitive_name(jaxpr.eqns[0]) in CALLS:
        (nest,) = nests(jaxpr.eqns[0])  # what it wraps is jitted
        inner = body(nest.jaxpr, frames)
        if inner.name != _UNKNOWN:
            return inner
    name, _, where = (jax_compat.traced_function(jaxpr) or "").partition(" at ")
    file, _, line = where.rpartition(":")
    if file and line.isdecimal() and frames.kind(file, name) not in ("machinery", "jax"):
        qualname = qualified_name(file, int(line), name)
        shown, code = file.removeprefix(frames.cwd), linecache.getline(file, int(line)).strip()
        defined = Location(shown, int(line), None, qualname.replace(".<locals>", ""), code)
        return Body(name_of_qualified(qualname), defined)
    if others:
        return Body(name_of(others[0]), definition(others[0], frames))
    return Body(_UNKNOWN)


@dataclass(frozen=True, slots=True)
class _Passed:
    """A function that all eqns of a body came through.

    Attributes:
      frame: its frame.
      computes: whether it computes anything itself, casts aside.
    """

    frame: Frame
    computes: bool = False

    @property
    def passes_on(self) -> bool:
        """Whether it may do no more than call another."""
        return passes_on(self.frame.code) or (not self.computes and calls_wrapped(self.frame))


def _shared(jaxpr: Jaxpr, frames: Frames, above: tuple[Frame, ...]) -> list[_Passed]:
    """Return the functions, outermost first, that all eqns of a body came through.

    Those that a wrapper makes itself are no part of what it wraps.
    """
    stacks = [below(frames.of(eqn), above, jaxpr) for eqn in jaxpr.eqns]
    casts = [jax_compat.primitive_name(eqn) == "convert_element_type" for eqn in jaxpr.eqns]
    stacks = [_without_jax(s) if c else s for s, c in zip(stacks, casts, strict=True)]
    of_casts = {stack for stack, is_cast in zip(stacks, casts, strict=True) if is_cast}
    chain: list[_Passed] = []
    while True:
        depth = len(chain)
        stacks = [stack for stack in stacks if len(stack) > depth]
        if not stacks or len({stack[depth].code for stack in stacks}) > 1:
            return chain
        deeper = [stack for stack in stacks if len(stack) > depth + 1]
        if deeper and is_wrapper(deeper[0][depth].code):
            computes = any(len(s) == depth + 1 and s not in of_casts for s in stacks)
            chain.append(_Passed(deeper[0][depth], computes))
            stacks = deeper
        else:
            chain.append(_Passed(stacks[0][depth]))
        if len(deeper) < len(stacks) or len({stack[depth] for stack in stacks}) > 1:
            return chain


def _without_jax(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return a stack up to the last frame that is not in JAX."""
    while stack and stack[-1].kind == "jax":
        stack = stack[:-1]
    return stack


def _common_scope(jaxpr: Jaxpr) -> str:
    """Return the scope that a body begins with: the scope of the module that it is."""
    scopes = {scope_of(jax_compat.name_stack(eqn)) for eqn in jaxpr.eqns} - {""}
    return "/".join(
        parts[0]
        for parts in itertools.takewhile(
            lambda parts: len(set(parts)) == 1,
            zip(*(scope.split("/") for scope in scopes), strict=False),
        )
    )
