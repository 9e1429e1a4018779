"""Find the checkpoints of what a program differentiates, and make the program without some of them.

The jaxprs that are differentiated are rewritten and differentiated again. Where the result is not
what the source without the checkpoints would give, the program is traced again; see `removal`.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import JaxresidError
from jaxresid.inspector.checkpoints.removal import Removal, with_bodies
from jaxresid.inspector.checkpoints.sites import CheckpointSite, is_derived, sites, sites_in
from jaxresid.inspector.few_layers import (
    Figures,
    can_leave_out_layers,
    few_layers,
    whole_figures,
)
from jaxresid.inspector.holes.holes import Hole, Holes
from jaxresid.inspector.jaxpr.alike.repeats import shortened
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.inline import without
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.trace.primal import TracedFunction
from jaxresid.inspector.trace.traced import Traced
from jaxresid.jax_compat.jaxpr_types import Jaxpr

# What JAX differentiates by rules that may hold checkpoints which show nowhere else.
_RULES = frozenset({"custom_jvp_call", "custom_vjp_call"})
# JAX's own functions that are differentiated by rules made of a user's functions.
_OF_USERS = os.path.join("control_flow", "solves.py")


class Removed:
    """A program of which some checkpoints can be removed.

    Attributes:
      sites: all of its checkpoints; those that what is differentiated does not show come last.

    Raises:
      JaxresidError: what it differentiates cannot be told.
    """

    def __init__(self, holes: Holes[Any]) -> None:
        self._holes = holes
        self._shown = sites_in(holes)
        self._ids = functools.cache(
            lambda hole: {
                id(e) for e in eqns_in(hole.jaxpr) if jax_compat.primitive_name(e) == "remat"
            }
        )
        self._made: dict[frozenset[CheckpointSite], Traced] = {}
        self.sites = self._shown
        if any(_may_hide(hole.jaxpr, holes.levels.frames) for hole in holes.holes):
            with contextlib.suppress(JaxresidError):
                self.sites = tuple(self._numbered[1])

    def without(self, gone: Iterable[CheckpointSite]) -> Traced:
        """Return the trace without some sites."""
        key = frozenset(gone)
        if key not in self._made:
            self._made[key] = self._without(key)
        return self._made[key]

    def few_without(self, gone: Iterable[CheckpointSite], profile: Profile) -> Figures | None:
        """Return the figures without some sites, from a few of the layers that are repeated.

        None where none are, or where that trace is not made from what is differentiated.
        """
        own = frozenset(gone)
        alone = self._holes.alone
        if alone is None or not can_leave_out_layers(alone):
            return None
        if not all(site.is_as_written for site in own):
            return None
        if not self._is_faithful or own & self._near_shard_maps:
            return None
        (hole,) = self._holes.holes
        with contextlib.suppress(Exception):  # whatever JAX raises where it cannot differentiate
            short = shortened(without(hole.jaxpr, _eqns(own)))
            return None if short is None else whole_figures(few_layers(alone, short), profile)
        return None

    def hole_of(self, site: CheckpointSite) -> Hole | None:
        return next((hole for hole in self._holes.holes if site.eqns & self._ids(hole)), None)

    def _without(self, gone: frozenset[CheckpointSite]) -> Traced:
        if all(site.is_as_written for site in gone):
            if not self._is_faithful or gone & self._near_shard_maps:
                with contextlib.suppress(JaxresidError):
                    return self._traced_without(gone)
            # What JAX cannot differentiate as rewritten, it may as the source has it.
            with contextlib.suppress(Exception):
                return self._rewritten(_eqns(gone))
        return self._traced_without(gone)

    def _traced_without(self, gone: frozenset[CheckpointSite]) -> Traced:
        removal, numbers = self._numbered
        own = frozenset(number for site in gone for number in numbers[site])

        def around(primal: Callable[[], TracedFunction]) -> Callable[[], TracedFunction]:
            # It is traced later than the passes, and without the same checkpoints.
            return functools.cache(
                lambda: removal.leaving_out(
                    own, primal, lambda traced: [jax_compat.open_jaxpr(traced.jaxpr)]
                )
            )

        trace: Traced = removal.without(own).traced_with(around)
        return trace

    def _rewritten(self, eqns: set[int]) -> Traced:
        traced: Traced = self._holes.trace(
            {
                hole.number: without(hole.jaxpr, eqns & self._ids(hole))
                for hole in self._holes.holes
                if not eqns.isdisjoint(self._ids(hole))
            }
        )
        return traced

    @functools.cached_property
    def _is_faithful(self) -> bool:
        """JAX keeps the same for the jaxprs as for the functions that they are of.

        Of a `shard_map` it keeps numbers that are literals in a jaxpr.
        """
        eqns = [eqn for hole in self._holes.holes for eqn in eqns_in(hole.jaxpr)]
        if not any(jax_compat.primitive_name(eqn) == "shard_map" for eqn in eqns):
            return True
        same = self._holes.trace({hole.number: hole.jaxpr for hole in self._holes.holes})
        return self._holes.kept_nbytes(same) == self._holes.kept_nbytes(self._holes.traced)

    @functools.cached_property
    def _near_shard_maps(self) -> frozenset[CheckpointSite]:
        eqns = [eqn for hole in self._holes.holes for eqn in eqns_in(hole.jaxpr)]
        maps = [e for e in eqns if jax_compat.primitive_name(e) == "shard_map"]
        inside = {
            id(e) for shard_map in maps for nest in nests(shard_map) for e in eqns_in(nest.jaxpr)
        }
        own = {id(e) for e in maps}
        return frozenset(
            site
            for site in self._shown
            if not site.eqns.isdisjoint(inside) or any(id(e) in own for e in site.held)
        )

    @functools.cached_property
    def _numbered(self) -> tuple[Removal, dict[CheckpointSite, frozenset[int]]]:
        """Trace the program again, numbered; with the sites that the backward pass alone shows."""
        frames = self._holes.levels.frames
        removal = Removal(self._holes)
        numbered = removal.numbered()
        numbers: dict[int, int] = {}
        again = {hole.number: hole for hole in numbered.holes}
        for hole in self._holes.holes:
            same = again.get(hole.number)
            if same is None:
                raise JaxresidError("the program takes other gradients when it is traced again")
            numbers |= removal.numbers(hole.jaxpr, same.jaxpr)
        numbers_of = removal.numbers_of(self._shown, numbers)
        numbers_of = {_called(site, own, removal): own for site, own in numbers_of.items()}
        with_site = {number for own in numbers_of.values() for number in own}
        backward = numbered.passes[-1]
        marks = removal.numbers(backward, backward)
        for site in sites(Levels(frames), Level(backward), backward=True):
            calls = [c for c in site.calls if marks.get(id(c.eqn), -1) not in with_site]
            if calls and all(id(c.eqn) in marks for c in calls):
                (hidden,) = with_bodies([replace(site, calls=tuple(calls))], marks, removal)
                own = frozenset(marks[id(c.eqn)] for c in calls)
                # What JAX's rules bind again has the line that they are called at.
                where = removal.bound()[min(own)].location or hidden.location
                source = replace(hidden.source, location=where)
                numbers_of[replace(hidden, source=source)] = own
        return removal, numbers_of | removal.hidden_sites(numbers_of)


def _eqns(gone: Iterable[CheckpointSite]) -> set[int]:
    return {eqn for site in gone for eqn in site.eqns}


def _called(site: CheckpointSite, numbers: frozenset[int], removal: Removal) -> CheckpointSite:
    """Return a site with the line that calls it, known from its making.

    In a derivative that the function takes, JAX may give its eqn the traceback of what is around
    it.
    """
    locations = [removal.bound()[number].location for number in sorted(numbers)]
    lines = {where and (where.file, where.line) for where in locations}
    where, shown = locations[0] if len(lines) == 1 else None, site.location
    if where is None or (shown and (shown.file, shown.line) in lines):
        return site
    return replace(site, source=replace(site.source, location=where))


def _may_hide(jaxpr: Jaxpr, frames: Frames) -> bool:
    """It may where it holds derivatives, or what is differentiated by rules of the user's."""
    for eqn in eqns_in(jaxpr):
        name = jax_compat.primitive_name(eqn)
        if is_derived(eqn) or jax_compat.has_own_rules(eqn) or name == "custom_linear_solve":
            return True
        if name in _RULES:
            inner = [jax_compat.traced_function(nest.jaxpr) or "" for nest in nests(eqn)]
            files = [where.partition(" at ")[2].rpartition(":")[0] for where in inner]
            is_own = [not f.endswith(_OF_USERS) and frames.kind(f, "") == "jax" for f in files]
            if not is_own or not all(is_own):
                return True
    return False
