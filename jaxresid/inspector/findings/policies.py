"""Find names that a policy wants and no value has, and names that no policy wants."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.inspector.checkpoints.policies import (
    answers,
    description,
    means_nothing,
    wanted_names,
)
from jaxresid.inspector.checkpoints.sites import CheckpointSite, sites
from jaxresid.inspector.findings.search import FindingContext, FindingSearch
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Finding, Location, Source


def policy_findings(context: FindingContext) -> Iterator[Finding]:
    """Yield the findings about checkpoint_names."""
    traced = context.subject.trace
    if not traced.has_checkpoints:
        return  # names are for policies; the primal jaxpr would be another trace
    levels, top = traced.levels, Level(traced.written)
    named = [eqn for eqn in eqns_in(top.jaxpr) if jax_compat.primitive_name(eqn) == "name"]
    checkpoints = sites(levels, top, backward=traced.holds_backward)
    defined = _defined(levels, top)
    yield from _undefined_names(checkpoints, defined)
    yield from _unused_names(checkpoints, named, defined, traced.frames)


def _defined(levels: Levels, top: Level) -> dict[str, Location | None]:
    """Map each checkpoint_name of a program to the line where it is first given."""
    defined: dict[str, Location | None] = {}
    holding: dict[int, bool] = {}

    def walk(level: Level) -> None:
        for eqn in level.jaxpr.eqns:
            if jax_compat.primitive_name(eqn) == "name":
                defined.setdefault(str(jax_compat.params(eqn)["name"]), levels.location(level, eqn))
            for which, nest in enumerate(levels.nests(eqn)):
                if _holds_unknown(nest.jaxpr, holding, defined):
                    walk(levels.enter(level, eqn, which))

    walk(top)
    return defined


def _holds_unknown(jaxpr: Jaxpr, holding: dict[int, bool], defined: Mapping[str, Any]) -> bool:
    """Return whether a jaxpr holds, at any depth, names that were not met yet."""
    if holding.get(id(jaxpr)) is False:
        return False
    holding[id(jaxpr)] = any(
        str(jax_compat.params(eqn)["name"]) not in defined
        for eqn in eqns_in(jaxpr)
        if jax_compat.primitive_name(eqn) == "name"
    )
    return holding[id(jaxpr)]


def _undefined_names(
    checkpoints: Sequence[CheckpointSite], defined: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield findings of names that a policy saves and that nothing in the whole program has.

    Where a policy finds none of its names, its verdict says so.
    """
    reported: set[str] = set()
    for site in checkpoints:
        names = wanted_names(site.policy)
        missing = sorted(names - set(defined) - reported)
        if not missing or not names & set(defined):
            continue
        reported.update(missing)
        listed = ", ".join(repr(n) for n in missing)
        yield Finding(
            "undefined-checkpoint-name",
            f"the policy of the checkpoint of `{site.function}` saves {listed}, but no value in"
            f" this program has that name{did_you_mean(missing[0], sorted(defined))}",
            site.source,
            help="correct the name, or name the value with checkpoint_name",
            measured={"missing": missing, "defined": sorted(defined)},
        )


def _unused_names(
    checkpoints: Sequence[CheckpointSite],
    named: Sequence[Any],
    defined: Mapping[str, Location | None],
    frames: Frames,
) -> Iterator[Finding]:
    """Yield findings of names that no policy in a program is for.

    Only a program with policies has them: without any, names may be there for a policy to come.
    """
    if all(means_nothing(site.policy) for site in checkpoints):
        return
    used: set[str] = set()
    for site in checkpoints:
        used |= answers(site.policy, named, str(site)).saved_names
        text = description(site.policy) or ""
        used |= {name for name in defined if repr(name) in text}  # as an exception
    for name, location in defined.items():
        if name in used or location is None or not _is_own(location, frames):
            continue
        yield Finding(
            "unused-checkpoint-name",
            f"the name {name!r} changes nothing: no policy in this program saves or mentions it",
            Source(location),
            help="add the name to a policy, or remove the call",
            measured={"name": name},
        )


def _is_own(location: Location, frames: Frames) -> bool:
    file = os.path.join(frames.cwd, location.file)
    return bool(frames.kind(file, location.function) == "user")


SEARCH = FindingSearch(
    ["undefined-checkpoint-name", "unused-checkpoint-name"], "code", 1, policy_findings
)
