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
from jaxresid.inspector.trace.function import TracedFunction
from jaxresid.inspector.trace.traced import Traced
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr

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
        self._numbered = functools.cache(self._number)
        self._is_faithful = functools.cache(self._find_faithful)
        self._near_shard_maps = functools.cache(self._find_near_shard_maps)
        self._ids = functools.cache(lambda hole: frozenset(map(id, _remats(hole.jaxpr))))
        self._made: dict[frozenset[CheckpointSite], Traced] = {}
        self.sites = self._shown
        if any(_may_hide(hole.jaxpr, holes.levels.frames) for hole in holes.holes):
            with contextlib.suppress(JaxresidError):
                self.sites = tuple(self._numbered()[1])

    def without(self, gone: Iterable[CheckpointSite]) -> Traced:
        """Return the trace without some sites.

        Raises:
          JaxresidError: that trace cannot be determined.
        """
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
        if not self._is_faithful() or own & self._near_shard_maps():
            return None
        (hole,) = self._holes.holes
        with contextlib.suppress(Exception):  # whatever JAX raises where it cannot differentiate
            short = shortened(without(hole.jaxpr, _eqns(own)))
            return None if short is None else whole_figures(few_layers(alone, short), profile)
        return None

    def hole_of(self, site: CheckpointSite) -> Hole | None:
        """Return the first hole that shows a site; None where none does."""
        return next((hole for hole in self._holes.holes if self._is_in(site, hole)), None)

    def _is_in(self, site: CheckpointSite, hole: Hole) -> bool:
        return not site.eqns.isdisjoint(self._ids(hole))

    def _without(self, gone: frozenset[CheckpointSite]) -> Traced:
        if all(site.is_as_written for site in gone):
            if not self._is_faithful() or gone & self._near_shard_maps():
                with contextlib.suppress(JaxresidError):
                    return self._traced_without(gone)
            # What JAX cannot differentiate as rewritten, it may as the source has it.
            with contextlib.suppress(Exception):
                return self._rewritten(_eqns(gone))
        return self._traced_without(gone)

    def _traced_without(self, gone: frozenset[CheckpointSite]) -> Traced:
        removal, numbers = self._numbered()
        own = frozenset(number for site in gone for number in numbers[site])

        def around(primal: Callable[[], TracedFunction]) -> Callable[[], TracedFunction]:
            # It is traced later than the passes, and without the same checkpoints.
            return functools.cache(
                lambda: removal.leaving_out(
                    own, primal, lambda traced: [jax_compat.open_jaxpr(traced.jaxpr)]
                )
            )

        made: Traced = removal.without(own).traced_with(around)
        return made

    def _rewritten(self, eqns: set[int]) -> Traced:
        made: Traced = self._holes.trace(
            {
                hole.number: without(hole.jaxpr, eqns & self._ids(hole))
                for hole in self._holes.holes
                if not eqns.isdisjoint(self._ids(hole))
            }
        )
        return made

    def _find_faithful(self) -> bool:
        """Return whether JAX keeps the same for the jaxprs as for the functions that they are of.

        Of a `shard_map` it keeps numbers that are literals in a jaxpr.
        """
        eqns = [eqn for hole in self._holes.holes for eqn in eqns_in(hole.jaxpr)]
        if not any(jax_compat.primitive_name(eqn) == "shard_map" for eqn in eqns):
            return True
        same = self._holes.trace({hole.number: hole.jaxpr for hole in self._holes.holes})
        return self._holes.kept_nbytes(same) == self._holes.kept_nbytes(self._holes.traced)

    def _find_near_shard_maps(self) -> frozenset[CheckpointSite]:
        """Return the sites that are in the body of a `shard_map`, or around one."""
        eqns = [eqn for hole in self._holes.holes for eqn in eqns_in(hole.jaxpr)]
        maps = [e for e in eqns if jax_compat.primitive_name(e) == "shard_map"]
        inside = {id(e) for found in maps for nest in nests(found) for e in eqns_in(nest.jaxpr)}
        own = {id(e) for e in maps}
        return frozenset(
            site
            for site in self._shown
            if not site.eqns.isdisjoint(inside) or any(id(e) in own for e in site.held)
        )

    def _number(self) -> tuple[Removal, dict[CheckpointSite, frozenset[int]]]:
        """Trace the program again with its checkpoints numbered.

        Returns:
          The removal, and the numbers of each site. Sites that show in the backward pass alone are
          included.
        """
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
        found = removal.numbers_of(self._shown, numbers)
        found = {_called(site, own, removal): own for site, own in found.items()}
        known = {number for own in found.values() for number in own}
        backward = numbered.passes[-1]
        marks = removal.numbers(backward, backward)
        for site in sites(Levels(frames), Level(backward), backward=True):
            calls = [c for c in site.calls if marks.get(id(c.eqn), -1) not in known]
            if calls and all(id(c.eqn) in marks for c in calls):
                (hidden,) = with_bodies([replace(site, calls=tuple(calls))], marks, removal)
                own = frozenset(marks[id(c.eqn)] for c in calls)
                # What JAX's rules bind again has the line that they are called at.
                where = removal.bound()[min(own)].location or hidden.location
                source = replace(hidden.source, location=where)
                found[replace(hidden, source=source)] = own
        return removal, found | removal.hidden_sites(found)


def _remats(jaxpr: Jaxpr) -> list[Eqn]:
    return [eqn for eqn in eqns_in(jaxpr) if jax_compat.primitive_name(eqn) == "remat"]


def _eqns(gone: Iterable[CheckpointSite]) -> set[int]:
    return {eqn for site in gone for eqn in site.eqns}


def _called(site: CheckpointSite, numbers: frozenset[int], removal: Removal) -> CheckpointSite:
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


def _may_hide(jaxpr: Jaxpr, frames: Frames) -> bool:
    """Return whether a primal jaxpr may not show all checkpoints.

    That is so where it holds derivatives, or what is differentiated by rules of the user's.
    """
    for eqn in eqns_in(jaxpr):
        name = jax_compat.primitive_name(eqn)
        if is_derived(eqn) or jax_compat.has_own_rules(eqn) or name == "custom_linear_solve":
            return True
        if name in _RULES:
            inner = [jax_compat.traced_function(nest.jaxpr) or "" for nest in nests(eqn)]
            files = [where.partition(" at ")[2].rpartition(":")[0] for where in inner]
            if not all(_is_jaxs_own(file, frames) for file in files) or not files:
                return True
    return False


def _is_jaxs_own(file: str, frames: Frames) -> bool:
    return not file.endswith(_OF_USERS) and frames.kind(file, "") == "jax"
