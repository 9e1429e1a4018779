"""`jaxresid plan`: the cheapest way to fit a function into a budget of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxresid.advice.chips import DEFAULT, Chip, chip
from jaxresid.advice.options import Menu, menu
from jaxresid.advice.roofline import eqn_seconds, seconds, transfer_seconds
from jaxresid.advice.search import Runs, Search
from jaxresid.advice.spots import remarks
from jaxresid.advice.writing import code
from jaxresid.errors import InputsError, JaxresidError
from jaxresid.inspector import Question, Subject, _jax, subject, uncollected
from jaxresid.inspector.barriers import undoing
from jaxresid.inspector.choices import Place, Variant, Variants, everywhere
from jaxresid.inspector.cost import Costs
from jaxresid.inspector.nesting import eqns_in
from jaxresid.inspector.question import in_two_calls
from jaxresid.inspector.recompute import Graph, graph
from jaxresid.inspector.subjects import variants_of
from jaxresid.model import Plan, PlannedPart, PlannedSite
from jaxresid.units import parse_bytes
from jaxresid.words import Mode, Profile

# A value smaller than this share of the budget is not worth a name; nor is what spares less than
# that share of the function's cost.
_WORTH_A_NAME = 1e-5
_WORTH_AN_EDIT = 5e-4
# How finely the front of each of several places is made, as a share of its saveable bytes.
_STEP = 0.01


@in_two_calls
def plan(
    fun: Callable[..., Any],
    *,
    budget: int | str,
    offload: bool = False,
    device: str = DEFAULT.name,
    writable: bool = False,
    argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    mode: Mode = "auto",
    profile: Profile = "accelerator",
    mesh: Any = None,
) -> Callable[..., Plan]:
    """How `fun` and its gradients fit into `budget` with the least recomputation.

    `jaxresid.plan(fun, budget="12GiB")(*args, **kwargs)`.

    Args:
      budget: bytes of peak memory, or text such as `12GiB`.
      offload: values may also be moved to host memory; then the estimated time on `device` is
        minimised, transfers included, instead of the recomputed FLOPs.
      writable: only what `jaxresid plan --write` can write: all calls of a place alike.
      fun, argnums, has_aux, mode, profile, mesh: as those of `jaxresid.inspect`.

    Returns:
      a function of the arguments of `fun` that returns a `Plan`.

    Raises:
      JaxresidError: as `jaxresid.inspect`; or the budget or the device is not understood.
    """
    question = Question(
        fun, argnums=argnums, has_aux=has_aux, mode=mode, profile=profile, mesh=mesh
    )
    if isinstance(budget, str):
        try:
            nbytes = parse_bytes(budget)
        except ValueError as e:
            raise InputsError(f"budget: {e}") from None
    else:
        nbytes = budget
    chosen = chip(device).name

    def planned_for(*args: Any, **kwargs: Any) -> Plan:
        found = subject(question.of(args, kwargs))
        return planned(found, nbytes, offload=offload, device=chosen, writable=writable)

    return planned_for


def planned(
    subject: Subject,
    budget_nbytes: int,
    *,
    offload: bool = False,
    device: str = DEFAULT.name,
    writable: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """As `plan`, of a traced function.

    Args:
      progress: is told what is being done.
    """
    if budget_nbytes <= 0:
        raise InputsError(f"a budget of {budget_nbytes} bytes holds nothing; give e.g. 12GiB")
    with uncollected(), subject.tracing():
        return _planned(
            subject, budget_nbytes, offload, chip(device), writable, progress or (lambda _: None)
        )


def _planned(
    subject: Subject,
    budget_nbytes: int,
    offload: bool,
    on: Chip,
    writable: bool,
    tell: Callable[[str], None],
) -> Plan:
    variants = variants_of(subject)
    places = _places(variants)
    written = variants.variant({})
    sites = [p for p in variants.places() if p.kind == "checkpoint"]
    plain = variants.variant({p: everywhere(p, None) for p in sites}) if sites else written

    def taken(variant: Variant) -> float:
        return seconds(variant.program, on, subject.profile).total

    plain_seconds = taken(plain)

    def cost(variant: Variant) -> float:
        if offload:
            return taken(variant) - plain_seconds
        return float(variant.cost.flops - plain.cost.flops)

    costs = Costs()
    each = (lambda eqn: eqn_seconds(eqn, on)) if offload else (lambda eqn: costs.of_eqn(eqn).flops)
    moved = (lambda nbytes: 2 * transfer_seconds(nbytes, on)) if offload else None
    taken_names = _names(variants, places)
    menus: list[Menu] = []
    warnings = [*subject.warnings, *undoing(subject.profile), *remarks(variants)]
    for place in places:
        tell(f"looking at {place}")
        least = int(budget_nbytes * _WORTH_A_NAME / place.trips)
        # Values of the whole function are named only where it has no parts; none are where it fits
        # without recomputing anything.
        is_searched = (place.kind != "whole" or len(places) == 1) and (
            offload or plain.peak_nbytes > budget_nbytes
        )
        made = None
        if is_searched:
            made = _graph(variants, place, subject, each, least)
            if made is None:
                warnings.append(
                    f"at {place} only JAX's policies were tried: its body cannot be differentiated"
                    " by itself, so what its values are worth is not known"
                )
        names = _names(variants, [place])
        step = _STEP if len(places) > 2 else 0.0
        menus.append(menu(place, made, names, taken_names, moved, subject.frames.cwd, step))
    search = Search(
        variants,
        menus,
        cost,
        budget_nbytes,
        slack=_WORTH_AN_EDIT * (plain_seconds if offload else plain.cost.flops),
        uniform=writable,
        progress=tell,
    )
    search.run()
    best = search.best()
    shown = best or search.lowest()
    recompute = shown.variant.cost - plain.cost
    planned_sites = tuple(
        site for m in menus if (site := _site(m, shown.combination[m.place])) is not None
    )
    return Plan(
        target=subject.target,
        jax=subject.jax,
        profile=subject.profile.name,
        device=on.name,
        budget_nbytes=budget_nbytes,
        offload=offload,
        fits=best is not None,
        floor_nbytes=min(search.lowest().peak, written.peak_nbytes, plain.peak_nbytes),
        written_nbytes=written.peak_nbytes,
        plain_nbytes=plain.peak_nbytes,
        peak_nbytes=shown.peak,
        kept_nbytes=shown.variant.kept_nbytes,
        host_nbytes=shown.variant.host_nbytes,
        recompute_flops=recompute.flops,
        recompute_fraction=recompute.flops / plain.cost.flops if plain.cost.flops else 0.0,
        time_fraction=(taken(shown.variant) - plain_seconds) / plain_seconds
        if plain_seconds
        else 0.0,
        sites=planned_sites,
        proven=_is_proven(search, menus),
        tried=len(search.tried),
        code=tuple(code(site) for site in planned_sites if site.changed),
        uncosted=shown.variant.cost.uncosted,
        warnings=tuple(warnings),
    )


def _places(variants: Variants) -> list[Place]:
    """Where a plan may put checkpoints: those that the code has, loop bodies without one inside,
    calls of functions, and everything as one."""
    places = variants.places()
    overlaps = variants.overlaps()
    sites = {p for p in places if p.kind == "checkpoint"}
    holding = {a for a, b in overlaps if b in sites}
    scans = {p for p in places if p.kind == "scan"}
    around_scans = {a for a, b in overlaps if b in scans}
    return [
        p
        for p in places
        if p in sites
        or p.kind == "whole"
        or (p.kind == "scan" and p not in holding and not _is_inside(p, sites, overlaps))
        or (p.kind == "call" and p not in holding and p not in around_scans)
    ]


def _is_inside(place: Place, others: set[Place], overlaps: Sequence[tuple[Place, Place]]) -> bool:
    return any(a in others and b is place for a, b in overlaps)


def _graph(
    variants: Variants,
    place: Place,
    subject: Subject,
    cost: Callable[[Any], float],
    enough: int,
) -> Graph | None:
    """The graph of a place's body, None where JAX cannot differentiate the body by itself."""
    try:
        return graph(variants.body(place), subject.frames, cost, enough)
    except (JaxresidError, TypeError, ValueError, NotImplementedError, KeyError):
        return None


def _names(variants: Variants, places: Sequence[Place]) -> list[str]:
    """The checkpoint_names inside places, in program order."""
    found = dict.fromkeys(
        str(_jax.params(eqn)["name"])
        for place in places
        for eqn in eqns_in(variants.body(place))
        if _jax.primitive_name(eqn) == "name"
    )
    return list(found)


def _site(menu: Menu, runs: Runs) -> PlannedSite | None:
    """What a plan says of a place; None where there was no checkpoint and is to be none."""
    place = menu.place
    if place.kind != "checkpoint" and all(option.choice is None for option, _ in runs):
        return None
    return PlannedSite(
        kind=place.kind,  # type: ignore[arg-type]
        function=place.function,
        location=place.location,
        calls=place.calls,
        trips=place.trips,
        parts=tuple(
            PlannedPart(count, option.choice is not None, option.policy, option.values)
            for option, count in runs
        ),
        changed=any(option.changed for option, _ in runs),
    )


def _is_proven(search: Search, menus: Sequence[Menu]) -> bool:
    """Whether every choice by name that could be cheaper was traced: at one place of one call, or
    loop, with its whole front tried."""
    best = search.best()
    if best is not None and best.cost <= 0 and not search.transfers:
        return True
    searched = [m for m in menus if m.front]
    if len(searched) != 1 or not search.every_front:
        return False
    (only,) = searched
    if only.place.calls > 1 and only.place.can_split:
        return False
    return all(
        search.known({only.place: option}) is not None
        for option in only.front
        if best is None or (option.cost or 0.0) < best.cost
    )
