"""The checkpoints of a primal jaxpr, grouped by where they are written.

A checkpoint is a remat eqn; those that one source line makes of one function with one policy are
one site, however often a Python loop runs over it.
"""

from __future__ import annotations

import itertools
import linecache
import os
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxresid.inspector import _jax
from jaxresid.inspector.frames import Frames
from jaxresid.inspector.levels import Level, Levels
from jaxresid.inspector.nesting import eqns_in, nests
from jaxresid.inspector.policies import description
from jaxresid.model import Location

# What JAX differentiates by differentiating the jaxpr that it holds, and nothing else.
_TRANSPARENT = frozenset(
    {
        "jit",
        "closed_call",
        "core_call",
        "eval_jaxpr",
        "remat",
        "scan",
        "while",
        "cond",
        "shard_map",
        "xla_pmap",
    }
)
# What the name stack of a derivative holds.
_DERIVED = re.compile(r"\b(jvp|transpose)\(|\brematted_computation\b")


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One remat eqn where it stands.

    Attributes:
      jaxpr: its body.
      trips: how often the loops around it run it.
      around: the remat eqns around it, outermost first.
      loops: the loop eqns around it, outermost first.
      enclosing: all eqns around it, outermost first.
      makers: in the jaxpr that it stands in, each variable's eqn.
    """

    eqn: Any
    jaxpr: Any
    trips: int
    around: tuple[Any, ...]
    loops: tuple[Any, ...]
    makers: Mapping[Any, Any]
    enclosing: tuple[Any, ...] = ()

    @property
    def is_as_written(self) -> bool:
        """Whether JAX differentiates it from this eqn alone: it is not a derivative already, and
        nothing around it has a derivative rule that holds the checkpoint for itself."""
        if any(map(is_derived, (*self.enclosing, self.eqn))):
            return False
        return not any(map(has_rule, self.enclosing))


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """One checkpoint as a user wrote it.

    Attributes:
      bodies: what it holds as written, open jaxprs.
    """

    function: str
    location: Location | None
    policy: Any
    prevent_cse: bool
    calls: tuple[Call, ...]
    bodies: tuple[Any, ...] = ()

    @property
    def held(self) -> Iterator[Any]:
        """The eqns of its bodies, at any depth."""
        return itertools.chain.from_iterable(eqns_in(body) for body in self.bodies)

    @property
    def is_as_written(self) -> bool:
        """See `Call.is_as_written`."""
        return all(call.is_as_written for call in self.calls)

    @property
    def trips(self) -> int:
        return sum(call.trips for call in self.calls)

    @property
    def eqns(self) -> frozenset[int]:
        """The ids of its remat eqns."""
        return frozenset(id(call.eqn) for call in self.calls)

    @property
    def is_nested(self) -> bool:
        """Whether each of its calls stands inside another checkpoint."""
        return all(call.around for call in self.calls)

    @property
    def in_loops(self) -> bool:
        return all(call.loops for call in self.calls)

    def __str__(self) -> str:
        if self.location is None:
            return self.function
        return f"{self.location.file}:{self.location.line} ({self.function})"


def sites(
    levels: Levels, top: Level, *, backward: bool = False, also: Container[int] = ()
) -> tuple[Site, ...]:
    """The checkpoints of a jaxpr, in program order.

    Args:
      backward: of those in a training step, whose backward pass holds them.
      also: ids of eqns that count too.
    """
    groups: dict[Any, list[Call]] = {}
    heads: dict[Any, tuple[str, Location | None, Any, bool]] = {}
    for level, call in calls(levels, top):
        params = _jax.params(call.eqn)
        if backward and not recomputes(call.eqn) and id(call.eqn) not in also:
            continue  # one that still stands in the forward pass
        policy = params.get("policy")
        is_prevented = prevents_cse(params)
        function, defined = _function(call.jaxpr, levels.frames)
        location = levels.location(level, call.eqn) or defined
        line = (location.file, location.line) if location else None
        key = (function, line, description(policy), is_prevented)
        heads.setdefault(key, (function, location, policy, is_prevented))
        groups.setdefault(key, []).append(call)
    return tuple(
        Site(*heads[key], tuple(each), tuple({id(c.jaxpr): c.jaxpr for c in each}.values()))
        for key, each in groups.items()
    )


def is_derived(eqn: Any) -> bool:
    """Whether an eqn is (of) a derivative already."""
    return _DERIVED.search(_jax.name_stack(eqn)) is not None


def has_rule(eqn: Any) -> bool:
    """Whether JAX differentiates an eqn by more than the jaxprs inside it."""
    return _jax.primitive_name(eqn) not in _TRANSPARENT


def prevents_cse(params: Mapping[str, Any]) -> bool:
    """Whether the params of a remat eqn prevent CSE."""
    prevent = params.get("prevent_cse", True)
    return any(prevent) if isinstance(prevent, tuple | list) else bool(prevent)


def calls(levels: Levels, top: Level) -> Iterator[tuple[Level, Call]]:
    """The remat eqns of a jaxpr where they stand, in program order."""
    known: dict[int, tuple[Any, bool]] = {}

    def walk(
        level: Level,
        trips: int,
        around: tuple[Any, ...],
        loops: tuple[Any, ...],
        enclosing: tuple[Any, ...],
    ) -> Iterator[tuple[Level, Call]]:
        makers = {v: eqn for eqn in level.jaxpr.eqns for v in eqn.outvars}
        for eqn in level.jaxpr.eqns:
            found = levels.nests(eqn)
            if not found:
                continue
            inside = around
            if _jax.primitive_name(eqn) == "remat":
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

    yield from walk(top, 1, (), (), ())


def recomputes(eqn: Any) -> bool:
    """Whether a remat eqn is of a backward pass."""
    differentiated = _jax.params(eqn).get("differentiated")
    if differentiated is None:  # jax_remat3
        return "rematted_computation" in _jax.name_stack(eqn)
    return bool(differentiated)


def _holds(jaxpr: Any, known: dict[int, tuple[Any, bool]]) -> bool:
    """Whether a remat eqn stands anywhere in the jaxpr."""
    found = known.get(id(jaxpr))
    if found is None:
        holds = any(
            _jax.primitive_name(eqn) == "remat" or any(_holds(n.jaxpr, known) for n in nests(eqn))
            for eqn in jaxpr.eqns
        )
        found = known[id(jaxpr)] = jaxpr, holds
    return found[1]


def _function(jaxpr: Any, frames: Frames) -> tuple[str, Location | None]:
    """The name of the checkpointed function and where it is defined, for one that nobody but us
    calls."""
    name, _, where = (_jax.traced_function(jaxpr) or "").partition(" at ")
    file, _, line = where.rpartition(":")
    name = name.rpartition(".")[2] or "a function"
    if not (file and line.isdecimal()):
        return name, None
    if frames.kind(file, name) in ("machinery", "jax"):
        # With jax_remat3 a backward pass holds a function of JAX's own around the user's.
        inner = (frames.of(eqn).frames for eqn in jaxpr.eqns)
        first = next((found[0] for found in inner if found), None)
        return (first.code.co_name if first else "a function"), None
    code = linecache.getline(file, int(line)).strip()
    shown = os.path.relpath(file) if file.startswith(os.path.join(os.getcwd(), "")) else file
    return name, Location(shown, int(line), None, name, code)
