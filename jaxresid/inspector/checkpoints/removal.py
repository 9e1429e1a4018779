"""Trace a function again without some of its checkpoints.

This takes a checkpoint away where no jaxpr holds it as it was written: in a training step, inside
an inner derivative, inside what JAX differentiates by a rule of its own (`lax.custom_root`). What
`jax.checkpoint` binds is intercepted while the function is traced, see `bindings`; a removed
checkpoint binds the eqns of its body instead.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, TypeVar

from jaxresid import jax_compat
from jaxresid.base.errors import TraceError, summary
from jaxresid.inspector.checkpoints.policies import description
from jaxresid.inspector.checkpoints.sites import Call, CheckpointSite, body, calls, prevents_cse
from jaxresid.inspector.holes.holes import Holes
from jaxresid.inspector.jaxpr.bindings import (
    checkpoint_binding,
    intercept_bind,
    strip_trace_context,
    user_line,
)
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import MARK, Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr
from jaxresid.results import Location, Source

_NUMBER = re.compile(MARK + r"(\d+)")

T = TypeVar("T")
# The function, the line, the policy, and whether CSE is prevented.
_Key = tuple[str | None, tuple[str, int] | None, str | None, bool]


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointBinding:
    """One binding of `jax.checkpoint`.

    Attributes:
      body: the open jaxpr of the function.
      key: equal for all bindings that one line makes of one function with one policy.
      location: that line; None where no line of the user's ran.
      policy: the policy that decides what is saved.
    """

    body: Jaxpr
    key: _Key
    location: Location | None
    policy: Any


class Removal:
    """Tracing of a program again, as it is and without some of its checkpoints.

    Args:
      holes: what the program differentiates.
    """

    def __init__(self, holes: Holes[Any]) -> None:
        self._holes = holes
        self._frames = holes.levels.frames
        # Of jaxprs that stay: the one that was traced, and the numbered one.
        self._levels = Levels(self._frames)
        self._bound: list[CheckpointBinding] = []
        self._count = 0
        self.numbered = functools.cache(self._numbered)

    def _numbered(self) -> Holes[Any]:
        """Return the program in which the name stacks of a checkpoint's eqns tell its number."""
        bound: list[CheckpointBinding] = []
        binding = checkpoint_binding()

        def number(params: Mapping[str, Any], _: FrameType) -> Callable[..., Any]:
            bound.append(self._made(params))
            scope = f"{MARK}{len(bound) - 1}"

            def bind(*args: Any) -> Any:
                with jax_compat.import_jax().named_scope(scope):
                    return binding.primitive.bind(*args, **params)

            return bind

        try:
            with intercept_bind({binding: number}):
                made = self._holes.again()
                self._count = len(bound)
                made.holes  # noqa: B018 - of a loss they are traced when they are asked for
        except Exception as e:
            raise TraceError(f"it cannot be traced again: {summary(e)}") from e
        self._bound = bound
        return made

    def bound(self) -> Sequence[CheckpointBinding]:
        """Return the bindings of `jax.checkpoint`, in order, including those made for the holes."""
        self.numbered()
        return self._bound

    def numbers(self, written: Jaxpr, numbered: Jaxpr) -> dict[int, int]:
        """Map the ids of the remat eqns of an open jaxpr to the numbers of their bindings.

        Args:
          written: the open jaxpr.
          numbered: the same jaxpr, of the numbered trace.

        Raises:
          TraceError: the two differ.
        """
        eqns, marked = ([call.eqn for call in self._calls(j)] for j in (written, numbered))
        if [_source(eqn) for eqn in eqns] != [_source(eqn) for eqn in marked]:
            raise TraceError(_DIFFERS)
        pairs = ((id(eqn), _number(other)) for eqn, other in zip(eqns, marked, strict=True))
        return {key: number for key, number in pairs if number is not None}

    def _calls(self, jaxpr: Jaxpr) -> list[Call]:
        return [call for _, call in calls(self._levels, Level(jaxpr))]

    def outermost(self) -> dict[int, int]:
        """Map the number of each nested checkpoint to that of the outermost one around it."""
        found: dict[int, int] = {}
        for number in range(len(self.bound())):  # a body is bound before what it stands in
            found.update(dict.fromkeys(self._inside(number), number))
        return found

    def _inside(self, number: int) -> set[int]:
        """Return the numbers of the checkpoints in the body of a checkpoint."""
        eqns = eqns_in(self.bound()[number].body)
        marked = {_number(e) for e in eqns if jax_compat.primitive_name(e) == "remat"}
        return {inner for inner in marked if inner is not None and inner != number}

    def numbers_of(
        self, sites: Sequence[CheckpointSite], numbers: Mapping[int, int]
    ) -> dict[CheckpointSite, frozenset[int]]:
        """Return the numbers of what each site binds while the function is traced.

        They are the numbers of the eqns in which the site shows, and of what the same line binds
        besides, for example for the rules of `lax.custom_root`.

        Args:
          sites: the sites.
          numbers: by the ids of the eqns in which the sites show, their numbers.
        """
        keys = [made.key for made in self.bound()]
        first, again = keys[: self._count], keys[self._count :]
        own: dict[CheckpointSite, set[int]] = {}
        makers: dict[_Key, set[CheckpointSite]] = defaultdict(set)
        for site in sites:
            shown = {numbers[id(c.eqn)] for c in site.calls if id(c.eqn) in numbers}
            own[site] = {n for n in shown if n < self._count}
            if first == again:
                own[site] |= {n - self._count for n in shown if n >= self._count}
            for number in shown:
                makers[keys[number]].add(site)
        known = {number for found in own.values() for number in found}
        for number, key in enumerate(first):
            if number in known:
                continue
            # By the line; or, where rules hold it that JAX calls from elsewhere, without.
            same = makers[key] or {
                s for k, found in makers.items() if _is_same_checkpoint(k, key) for s in found
            }
            if len(same) == 1:
                own[next(iter(same))].add(number)
        return {site: frozenset(found) for site, found in own.items()}

    def hidden_sites(
        self, found: Mapping[CheckpointSite, frozenset[int]]
    ) -> dict[CheckpointSite, frozenset[int]]:
        """Return the checkpoints that no jaxpr shows, with their numbers.

        The function makes them while it is traced. With `jax_remat3` a derivative that the function
        takes itself has already taken them apart.

        Args:
          found: the sites that are shown, with their numbers.
        """
        bound = self.bound()[: self._count]
        known = {number for own in found.values() for number in own}
        shown = [bound[number].key for number in known if number < len(bound)]
        groups: dict[_Key, list[int]] = defaultdict(list)
        for number, made in enumerate(bound):
            if number not in known and not any(_is_same_checkpoint(made.key, key) for key in shown):
                groups[made.key].append(number)
        sites = {}
        for numbers in groups.values():
            first = bound[numbers[0]]
            what = body(first.body, self._frames)
            site = CheckpointSite(
                what,
                Source(first.location or what.defined),
                first.policy,
                prevent_cse=first.key[3],
                calls=(),
                bodies=tuple(bound[number].body for number in numbers),
                is_hidden=True,
            )
            sites[site] = frozenset(numbers)
        return sites

    def without(self, gone: Iterable[int]) -> Holes[Any]:
        """Return the program without the checkpoints of some numbers.

        Args:
          gone: the numbers.

        Raises:
          TraceError: JAX cannot differentiate it, or the function binds others each time.
        """
        numbers = frozenset(gone)
        if not numbers:
            raise TraceError("it is not found when the function is traced again")
        return self.leaving_out(numbers, self._holes.again, lambda made: made.passes)

    def leaving_out(
        self,
        numbers: frozenset[int],
        trace: Callable[[], T],
        jaxprs: Callable[[T], Iterable[Jaxpr]],
    ) -> T:
        """Return what some way of tracing the function makes of it without some checkpoints.

        Args:
          numbers: the numbers of the checkpoints.
          trace: traces the function.
          jaxprs: returns the open jaxprs of what that makes.

        Raises:
          TraceError: as `without`.
        """
        found, again = list[_Key](), list[int]()
        expected = [made.key for made in self.bound()[: self._count]]

        def leave_out(
            params: Mapping[str, Any], frame: FrameType
        ) -> Mapping[str, Any] | Callable[..., Any]:
            made = self._made(params)
            if again:
                number = again.pop(0)
            else:
                number = len(found)
                found.append(made.key)
            if number not in numbers:
                return params
            if not (jax_compat.is_in_shard_map() or _holds_shard_map(made.body)):
                return jax_compat.as_function(jax_compat.as_jit_jaxpr(made.body))
            function = jax_compat.checkpointed_function(frame)
            if function is None:
                return jax_compat.as_function(jax_compat.as_jit_jaxpr(made.body))
            return functools.partial(called, function, number)

        def called(function: Callable[..., Any], number: int, *args: Any) -> Any:
            # JAX has traced it already, to bind it, and what stands in it was bound then.
            again[:0] = inner = sorted(self._inside(number))
            left = len(again) - len(inner)
            result = function(*args)
            if len(again) != left:
                raise TraceError(_DIFFERS)
            return result

        try:
            with intercept_bind({checkpoint_binding(): leave_out}):
                made = trace()
        except Exception as e:
            cause = e.__cause__ if type(e).__name__ == "BackwardError" else e
            raise TraceError(
                f"JAX cannot differentiate the program without it: {summary(cause or e)}"
            ) from e
        if found != expected:
            raise TraceError(_DIFFERS)
        for jaxpr in jaxprs(made):
            strip_trace_context(jaxpr)
        return made

    def _made(self, params: Mapping[str, Any]) -> CheckpointBinding:
        held = jax_compat.bound_params(params)
        body = jax_compat.open_jaxpr(held["jaxpr"])
        where = user_line(self._frames)
        line = (where.file, where.line) if where else None
        policy, prevents = description(held["policy"]), prevents_cse(held)
        key = jax_compat.traced_function(body), line, policy, prevents
        return CheckpointBinding(body, key, where, held["policy"])


def _holds_shard_map(body: Jaxpr) -> bool:
    return any(jax_compat.primitive_name(eqn) == "shard_map" for eqn in eqns_in(body))


_DIFFERS = (
    "the function makes different checkpoints each time it is traced, so it cannot be traced"
    " without just one of them"
)


def with_bodies(
    sites: Sequence[CheckpointSite], numbers: Mapping[int, int], removal: Removal
) -> tuple[CheckpointSite, ...]:
    """Add their bodies as written, and what is around them, to the sites of a differentiated jaxpr.

    A call that is nested in another checkpoint gets the outermost one in `around`.
    """
    bound, outermost = removal.bound(), removal.outermost()
    eqns = {numbers[id(c.eqn)]: c.eqn for s in sites for c in s.calls if id(c.eqn) in numbers}

    def placed(call: Call) -> Call:
        outer = eqns.get(outermost.get(numbers.get(id(call.eqn), -1), -1))
        return call if outer is None or call.around else replace(call, around=(outer,))

    found = []
    for site in sites:
        own = sorted({numbers[id(c.eqn)] for c in site.calls if id(c.eqn) in numbers})
        bodies = tuple(bound[number].body for number in own)
        found.append(
            replace(site, bodies=bodies or site.bodies, calls=tuple(map(placed, site.calls)))
        )
    return tuple(found)


def _is_same_checkpoint(one: _Key, other: _Key) -> bool:
    """Return whether two keys are of one function with one policy, whatever the line."""
    return (one[0], *one[2:]) == (other[0], *other[2:])


def _number(eqn: Eqn) -> int | None:
    """Return the number of the innermost checkpoint that an eqn belongs to."""
    found = _NUMBER.findall(jax_compat.name_stack(eqn))
    return int(found[-1]) if found else None


def _source(eqn: Eqn) -> tuple[str | None, str | None]:
    held = jax_compat.params(eqn)
    return jax_compat.traced_function(jax_compat.open_jaxpr(held["jaxpr"])), description(
        held.get("policy")
    )
