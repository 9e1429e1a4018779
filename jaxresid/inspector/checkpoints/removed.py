"""Find the checkpoints of a function, and make the function without some of them.

The function's primal jaxpr is rewritten and differentiated again. Where the result is not what the
source without the checkpoints would give, the function is traced again; see `removal`.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from jaxresid import jax_compat
from jaxresid.errors import JaxresidError
from jaxresid.inspector.checkpoints.removal import Removal, with_bodies
from jaxresid.inspector.checkpoints.sites import CheckpointSite, is_derived, sites
from jaxresid.inspector.few_layers import FewLayers, can_leave_out_layers, few_layers
from jaxresid.inspector.jaxpr.alike.repeats import shortened
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.inline import without
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
from jaxresid.inspector.trace.function import Trace, TracedFunction, retrace
from jaxresid.jaxpr_types import Jaxpr

# What JAX differentiates by rules that may hold checkpoints which show nowhere else.
_RULES = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_linear_solve"})
# JAX's own functions that are differentiated by rules made of a user's functions.
_OF_USERS = os.path.join("control_flow", "solves.py")


class Removed:
    """A function of which some checkpoints can be removed.

    Attributes:
      sites: all of its checkpoints; those that the primal jaxpr does not show come last.
    """

    def __init__(self, traced: Trace) -> None:
        self._traced = traced
        self._jaxpr = jaxpr = traced.written
        self._shown = sites(traced.levels, Level(jaxpr, inputs=traced.primal_inputs))
        self._numbered = functools.cache(self._number)
        self._is_faithful = functools.cache(self._find_faithful)
        self._near_shard_maps = functools.cache(self._find_near_shard_maps)
        self._made: dict[frozenset[CheckpointSite], Trace] = {}
        self.sites = self._shown
        if traced.again is not None and _may_hide(jaxpr, traced.frames):
            with contextlib.suppress(JaxresidError):
                self.sites = tuple(self._numbered()[1])

    def without(self, gone: Iterable[CheckpointSite]) -> Trace:
        """Return the trace without some sites.

        Raises:
          JaxresidError: that trace cannot be determined.
        """
        key = frozenset(gone)
        if key not in self._made:
            self._made[key] = self._without(key)
        return self._made[key]

    def few_without(self, gone: Iterable[CheckpointSite]) -> FewLayers | None:
        """Return the trace without some sites of a few of the layers that the function repeats.

        None where it repeats none, or where that trace is not made from the primal jaxpr.
        """
        own = frozenset(gone)
        if not can_leave_out_layers(self._traced) or not all(site.is_as_written for site in own):
            return None
        if not self._is_faithful() or own & self._near_shard_maps():
            return None
        with contextlib.suppress(Exception):  # whatever JAX raises where it cannot differentiate
            short = shortened(without(self._jaxpr, _eqns(own)))
            return None if short is None else few_layers(self._traced, short)
        return None

    def _without(self, gone: frozenset[CheckpointSite]) -> Trace:
        if all(site.is_as_written for site in gone):
            if not self._is_faithful() or gone & self._near_shard_maps():
                with contextlib.suppress(JaxresidError):
                    return self._traced_without(gone)
            # What JAX cannot differentiate as rewritten, it may as the source has it.
            with contextlib.suppress(Exception):
                return self._rewritten(_eqns(gone))
        return self._traced_without(gone)

    def _traced_without(self, gone: frozenset[CheckpointSite]) -> Trace:
        removal, numbers = self._numbered()
        own = frozenset(number for site in gone for number in numbers[site])
        made = removal.without(own)
        if made.arguments.refs:
            return made  # its primal jaxpr is traced with the passes

        def around(primal: Callable[[], TracedFunction]) -> Callable[[], TracedFunction]:
            # It is traced later than the passes, and without the same checkpoints.
            return functools.cache(
                lambda: removal.leaving_out(
                    own, primal, lambda traced: [jax_compat.open_jaxpr(traced.jaxpr)]
                )
            )

        return made.tracing_in(around)

    def _rewritten(self, eqns: Iterable[int]) -> Trace:
        primal = self._traced.primal().jaxpr
        return retrace(self._traced, jax_compat.with_jaxpr(primal, without(self._jaxpr, eqns)))

    def _find_faithful(self) -> bool:
        """Return whether JAX keeps the same for the primal jaxpr as for the function.

        Of a `shard_map` it keeps numbers that are literals in a jaxpr.
        """
        if not any(jax_compat.primitive_name(eqn) == "shard_map" for eqn in eqns_in(self._jaxpr)):
            return True
        return _kept(self._rewritten(())) == _kept(self._traced)

    def _find_near_shard_maps(self) -> frozenset[CheckpointSite]:
        """Return the sites that are in the body of a `shard_map`, or around one."""
        maps = [e for e in eqns_in(self._jaxpr) if jax_compat.primitive_name(e) == "shard_map"]
        inside = {id(e) for found in maps for nest in nests(found) for e in eqns_in(nest.jaxpr)}
        own = {id(e) for e in maps}
        return frozenset(
            site
            for site in self._shown
            if not site.eqns.isdisjoint(inside) or any(id(e) in own for e in site.held)
        )

    def _number(self) -> tuple[Removal[Trace], dict[CheckpointSite, frozenset[int]]]:
        """Trace the function again with its checkpoints numbered.

        Returns:
          The removal, and the numbers of each site. Sites that show in the backward pass alone are
          included.
        """
        if self._traced.again is None:
            raise JaxresidError("the function cannot be traced again")
        again = functools.partial(self._traced.again, self._traced.arguments)
        removal = Removal(again, _passes_of, self._traced.frames, lambda made: made.primal())
        numbered = removal.numbered()
        shown = numbered.written
        found = removal.numbers_of(self._shown, removal.numbers(self._jaxpr, shown))
        found = {_called(site, own, removal): own for site, own in found.items()}
        known = {number for own in found.values() for number in own}
        marks = removal.numbers(numbered.backward, numbered.backward)
        for site in sites(numbered.levels, Level(numbered.backward), backward=True):
            calls = [c for c in site.calls if marks.get(id(c.eqn), -1) not in known]
            if calls and all(id(c.eqn) in marks for c in calls):
                (hidden,) = with_bodies([replace(site, calls=tuple(calls))], marks, removal)
                own = frozenset(marks[id(c.eqn)] for c in calls)
                # What JAX's rules bind again has the line that they are called at.
                where = removal.bound()[min(own)].location or hidden.location
                source = replace(hidden.source, location=where)
                found[replace(hidden, source=source)] = own
        return removal, found | removal.hidden_sites(found)


def _eqns(gone: Iterable[CheckpointSite]) -> set[int]:
    return {eqn for site in gone for eqn in site.eqns}


def _called(
    site: CheckpointSite, numbers: frozenset[int], removal: Removal[Trace]
) -> CheckpointSite:
    """Return a site with the line that calls it, which is known from its making.

    In a derivative that the function takes, JAX may give its eqn the traceback of what is around
    it.
    """
    made = [removal.bound()[number].location for number in sorted(numbers)]
    lines = {where and (where.file, where.line) for where in made}
    where, shown = made[0] if len(lines) == 1 else None, site.location
    if where is None or (shown and (shown.file, shown.line) in lines):
        return site
    return replace(site, source=replace(site.source, location=where))


def _kept(traced: Trace) -> Counter[str]:
    """Count the types of what a trace keeps."""
    return Counter(str(v.aval) for v in traced.forward.outvars[traced.num_outputs :])


def _passes_of(traced: Trace) -> tuple[Jaxpr, Jaxpr]:
    return traced.forward, traced.backward


def _may_hide(jaxpr: Jaxpr, frames: Frames) -> bool:
    """Return whether a primal jaxpr may not show all checkpoints.

    That is so where it holds derivatives, or what is differentiated by rules of the user's.
    """
    for eqn in eqns_in(jaxpr):
        if is_derived(eqn) or jax_compat.has_own_rules(eqn):
            return True
        if jax_compat.primitive_name(eqn) in _RULES:
            inner = [jax_compat.traced_function(nest.jaxpr) or "" for nest in nests(eqn)]
            files = [where.partition(" at ")[2].rpartition(":")[0] for where in inner]
            if not all(_is_jaxs_own(file, frames) for file in files) or not files:
                return True
    return False


def _is_jaxs_own(file: str, frames: Frames) -> bool:
    return not file.endswith(_OF_USERS) and frames.kind(file, "") == "jax"
