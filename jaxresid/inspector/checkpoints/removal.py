"""Trace a function again without some of its checkpoints.

This takes a checkpoint away where no jaxpr holds it as it was written: in a training step, inside
an inner derivative, inside what JAX differentiates by a rule of its own (`lax.custom_root`). What
`jax.checkpoint` binds is intercepted while the function is traced, see `jax_compat`; a removed
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
from jaxresid.inspector.jaxpr.bindings import strip_trace_context, user_line
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
      key: equal for all bindings that one line makes of one function with one policy.
      location: that line; None where no line of the user's ran.
    """

    body: Jaxpr
    key: _Key
    location: Location | None
    policy: Any


class Removal:
    """Tracing of a program again, as it is and without some of its checkpoints."""

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
        binding = jax_compat.checkpoint_binding()

        def number(params: Mapping[str, Any], _: FrameType) -> Callable[..., Any]:
            bound.append(self._made(params))
            scope = f"{MARK}{len(bound) - 1}"

            def bind(*args: Any) -> Any:
                with jax_compat.import_jax().named_scope(scope):
                    return binding.primitive.bind(*args, **params)

            return bind

        try:
            with jax_compat.intercept_bind({binding: number}):
                holes = self._holes.again()
                self._count = len(bound)
                holes.holes  # noqa: B018 - of a loss they are traced when they are asked for
        except Exception as e:
            raise TraceError(f"it cannot be traced again: {summary(e)}") from e
        self._bound = bound
        return holes

    def bound(self) -> Sequence[CheckpointBinding]:
        """Return the bindings of `jax.checkpoint`, in order, including those made for the holes."""
        self.numbered()
        return self._bound

    def numbers(self, written: Jaxpr, numbered: Jaxpr) -> dict[int, int]:
        """Map the ids of the remat eqns of an open jaxpr to the numbers of their bindings.

        Raises:
          TraceError: the two differ.
        """
        eqns, marked = (
            [call.eqn for _, call in calls(self._levels, Level(jaxpr))]
            for jaxpr in (written, numbered)
        )
        if [_source(eqn) for eqn in eqns] != [_source(eqn) for eqn in marked]:
            raise TraceError(_DIFFERS)
        pairs = ((id(eqn), _number(other)) for eqn, other in zip(eqns, marked, strict=True))
        return {key: number for key, number in pairs if number is not None}

    def outermost(self) -> dict[int, int]:
        """Map the number of each nested checkpoint to that of the outermost one around it."""
        outer: dict[int, int] = {}
        for number in range(len(self.bound())):  # a body is bound before what it stands in
            outer.update(dict.fromkeys(self._inside(number), number))
        return outer

    def _inside(self, number: int) -> set[int]:
        eqns = eqns_in(self.bound()[number].body)
        marked = {_number(e) for e in eqns if jax_compat.primitive_name(e) == "remat"}
        return {inner for inner in marked if inner is not None and inner != number}

    def numbers_of(
        self, sites: Sequence[CheckpointSite], numbers: Mapping[int, int]
    ) -> dict[CheckpointSite, frozenset[int]]:
        """Return the numbers of what each site binds while the function is traced.

        They are the numbers of the eqns in which the site shows, and of what the same line binds
        besides, for example for the rules of `lax.custom_root`.
        """
        keys = [binding.key for binding in self.bound()]
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
        shown_numbers = {number for owners in own.values() for number in owners}
        for number, key in enumerate(first):
            if number in shown_numbers:
                continue
            # By the line; or, where rules hold it that JAX calls from elsewhere, without.
            same = makers[key] or {
                s for k, owners in makers.items() if _is_same_checkpoint(k, key) for s in owners
            }
            if len(same) == 1:
                own[next(iter(same))].add(number)
        return {site: frozenset(owners) for site, owners in own.items()}

    def hidden_sites(
        self, shown_sites: Mapping[CheckpointSite, frozenset[int]]
    ) -> dict[CheckpointSite, frozenset[int]]:
        """Return the checkpoints that no jaxpr shows, with their numbers.

        The function makes them while it is traced. With `jax_remat3` a derivative that the function
        takes itself has already taken them apart.
        """
        bound = self.bound()[: self._count]
        visible = {number for own in shown_sites.values() for number in own}
        shown = [bound[number].key for number in visible if number < len(bound)]
        groups: dict[_Key, list[int]] = defaultdict(list)
        for number, binding in enumerate(bound):
            if number not in visible and not any(
                _is_same_checkpoint(binding.key, key) for key in shown
            ):
                groups[binding.key].append(number)
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

        Raises:
          TraceError: JAX cannot differentiate it, or the function binds others each time.
        """
        numbers = frozenset(gone)
        if not numbers:
            raise TraceError("it is not found when the function is traced again")
        return self.leaving_out(numbers, self._holes.again, lambda holes: holes.passes)

    def leaving_out(
        self,
        numbers: frozenset[int],
        trace: Callable[[], T],
        jaxprs: Callable[[T], Iterable[Jaxpr]],
    ) -> T:
        """Return what some way of tracing the function makes of it without some checkpoints.

        Raises:
          TraceError: as `without`.
        """
        keys, again = list[_Key](), list[int]()
        expected = [binding.key for binding in self.bound()[: self._count]]

        def leave_out(
            params: Mapping[str, Any], frame: FrameType
        ) -> Mapping[str, Any] | Callable[..., Any]:
            binding = self._made(params)
            if again:
                number = again.pop(0)
            else:
                number = len(keys)
                keys.append(binding.key)
            if number not in numbers:
                return params
            names = map(jax_compat.primitive_name, eqns_in(binding.body))
            function = None
            if jax_compat.is_in_shard_map() or "shard_map" in names:
                function = jax_compat.checkpointed_function(frame)
            if function is None:
                return jax_compat.as_function(jax_compat.as_jit_jaxpr(binding.body))
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
            with jax_compat.intercept_bind({jax_compat.checkpoint_binding(): leave_out}):
                binding = trace()
        except Exception as e:
            cause = e.__cause__ if type(e).__name__ == "BackwardError" else e
            raise TraceError(
                f"JAX cannot differentiate the program without it: {summary(cause or e)}"
            ) from e
        if keys != expected:
            raise TraceError(_DIFFERS)
        for jaxpr in jaxprs(binding):
            strip_trace_context(jaxpr)
        return binding

    def _made(self, params: Mapping[str, Any]) -> CheckpointBinding:
        held = jax_compat.bound_params(params)
        body = jax_compat.open_jaxpr(held["jaxpr"])
        where = user_line(self._frames)
        line = (where.file, where.line) if where else None
        policy, prevents = description(held["policy"]), prevents_cse(held)
        key = jax_compat.traced_function(body), line, policy, prevents
        return CheckpointBinding(body, key, where, held["policy"])


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

    completed = []
    for site in sites:
        own = sorted({numbers[id(c.eqn)] for c in site.calls if id(c.eqn) in numbers})
        bodies = tuple(bound[number].body for number in own)
        completed.append(
            replace(site, bodies=bodies or site.bodies, calls=tuple(map(placed, site.calls)))
        )
    return tuple(completed)


def _is_same_checkpoint(one: _Key, other: _Key) -> bool:
    return (one[0], *one[2:]) == (other[0], *other[2:])


def _number(eqn: Eqn) -> int | None:
    """Return the number of the innermost checkpoint that an eqn belongs to."""
    numbers = _NUMBER.findall(jax_compat.name_stack(eqn))
    return int(numbers[-1]) if numbers else None


def _source(eqn: Eqn) -> tuple[str | None, str | None]:
    held = jax_compat.params(eqn)
    return jax_compat.traced_function(jax_compat.open_jaxpr(held["jaxpr"])), description(
        held.get("policy")
    )
