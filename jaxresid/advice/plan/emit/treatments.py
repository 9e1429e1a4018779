"""Find the one treatment that a plan gives to a place, of those that a policy can express."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from jaxresid.advice.plan.source.snippets import merged, treatment
from jaxresid.base.errors import InputsError
from jaxresid.results import Plan, PlannedPart, PlannedSite, PlannedValue

# The kinds of places that are loops, of which no policy says anything.
CUT = frozenset({"segments", "groups", "solver"})


@dataclass(frozen=True, slots=True)
class Treated:
    """What a plan does at a place, or at several alike.

    Attributes:
      checkpointed: Whether there is a checkpoint.
      policy: Its policy, as `PlannedPart.policy`.
      values: The values that the policy saves and offloads, of all these places.
      cuts: In words, which loops there are cut into checkpointed stretches or keep another number
        of carries, which no policy does.
    """

    checkpointed: bool
    policy: str | None
    values: tuple[PlannedValue, ...]
    cuts: tuple[str, ...]


def treated(plan: Plan, at: str | None = None, call: int | None = None) -> Treated:
    """Return the one treatment that a plan gives, to one place or to all alike.

    Args:
      plan: The plan.
      at: The place: `model.py:42`, where the function is called or defined, or the function's
        name. None means all places.
      call: Which call, in program order from 0, where the plan treats a place's calls differently.

    Raises:
      InputsError: There is no such place, no checkpoint can treat it so, or there are several
        treatments.
    """
    if not plan.sites:
        raise InputsError(f"the plan of {plan.target.name} has no checkpoints, and so no policy")
    chosen = [site for site in plan.sites if at is None or is_at(site, at)]
    if not chosen:
        raise InputsError(f"the plan has no place {at!r}; it has {_listed(plan.sites)}")
    sites = [site for site in chosen if site.kind not in CUT]
    if not sites:
        raise InputsError(
            f"no policy can say that {'; '.join(_cuts(chosen))}: plan --diff writes it"
        )
    parts = [part for site in sites for part in _parts(site, call)]
    wanted = {treatment(part) for part in parts}
    if len(wanted) == 1:
        values = tuple(value for part in parts for value in part.values)
        return Treated(*wanted.pop(), values, tuple(_cuts(chosen)))
    if len(sites) == 1:
        (site,) = sites
        raise InputsError(
            f"the plan treats the {site.calls} calls of {place_text(site)} differently:"
            f" {_calls_listed(site)}; give call=, from 0"
        )
    raise InputsError(
        f"the plan differs between {_listed(sites)}; give at= one of them"
        if at is None
        else f"{at!r} is several places, between which the plan differs: {_listed(sites)}"
    )


def is_at(site: PlannedSite, at: str) -> bool:
    """Return whether a place is what a user calls it: its text, its line or its function."""
    if at in (place_text(site), site.function, site.function.removesuffix(".__call__")):
        return True
    path, _, line = at.rpartition(":")
    if not path or not line.isdecimal():
        return False
    wanted = PurePath(path).parts
    return any(
        where.line == int(line) and PurePath(where.file).parts[-len(wanted) :] == wanted
        for where in (site.location, site.defined)
        if where is not None
    )


def place_text(site: PlannedSite) -> str:
    """Return a place in words: `model.py:42 (layer)`."""
    if site.location is None:
        return site.function
    return f"{site.location.file}:{site.location.line} ({site.function})"


def _cuts(sites: Sequence[PlannedSite]) -> list[str]:
    return [
        f"the loop at {place_text(site)} {loop_text(part)}"
        for site in sites
        if site.kind in CUT
        for part in site.parts
        if part.checkpointed
    ]


def loop_text(part: PlannedPart) -> str:
    """Return what a plan does with a loop in words: `is cut into segments of 9 iterations`."""
    if part.checkpoints is not None:
        return f"has checkpoints={part.checkpoints}"
    return f"is cut into segments of {' of '.join(map(str, part.segments))} iterations"


def _parts(site: PlannedSite, call: int | None) -> tuple[PlannedPart, ...]:
    parts = merged(site.parts)
    if call is None:
        return parts
    end = 0
    for part in parts:
        end += part.calls
        if 0 <= call < end:
            return (part,)
    raise InputsError(
        f"{place_text(site)} is called {end} times in the plan: call= is from 0 to {end - 1}"
    )


def _listed(sites: Sequence[PlannedSite]) -> str:
    return ", ".join(dict.fromkeys(repr(place_text(site)) for site in sites))


def _calls_listed(site: PlannedSite) -> str:
    start, found = 0, []
    for part in merged(site.parts):
        done = part.policy or "all recomputed" if part.checkpointed else "no checkpoint"
        found.append(f"{part.calls} from {start}: {done}")
        start += part.calls
    return ", ".join(found)
