"""Estimates in words: how much about, between what, and what that says about a budget."""

from __future__ import annotations

from collections.abc import Iterable

from jaxresid.base.text.units import format_bytes
from jaxresid.render.style.columns import bytes_unit
from jaxresid.results import Answer, Interval, PlaceInfo, answer

_NO_INTERVAL = "No interval: too few programs were compiled to say how far off this estimate is."
STYLES: dict[Answer, str] = {
    "fits": "bold green",
    "does not fit": "bold red",
    "too close": "bold yellow",
}


def about_text(nbytes: int, interval: Interval | None) -> str:
    """Return an estimate with the interval around it: `about 13.8 GiB (12.4 to 15.6)`."""
    unit = bytes_unit([nbytes])
    about = f"about {unit.short(nbytes)} {unit.name}"
    if interval is None:
        return about
    low, high = unit.short(interval.low_nbytes), unit.short(interval.high_nbytes)
    return f"{about} ({low} to {high})"


def answer_text(interval: Interval | None, budget_nbytes: int) -> str:
    """Return what an interval says about a budget: `fits 59.38 GiB`.

    Where the budget is inside it is `too close to 59.38 GiB: --compile decides`.
    """
    found, budget = answer(interval, budget_nbytes), format_bytes(budget_nbytes)
    if found == "too close":
        return f"too close to {budget}: --compile decides"
    return f"{found} {budget}"


def interval_remarks(places: Iterable[PlaceInfo]) -> tuple[str, ...]:
    """Return a line for each compiler on what the intervals of its estimates are."""
    return tuple(dict.fromkeys(_remark(place) for place in places if place.kind != "cpu"))


def _remark(place: PlaceInfo) -> str:
    basis = place.intervals
    if basis is None:
        return _NO_INTERVAL
    if basis.others:
        wider = round((basis.widened - 1) * 100)
        versions = (
            f"{name} {version} (measured: {', '.join(basis.compilers[name])})"
            for name, version in basis.others.items()
        )
        return f"Range {wider} % wider for {', '.join(versions)}."
    share = "nine in ten programs" if basis.coverage < 1 else "all programs over a mesh"
    found = f"Range of {share}, by"
    if not any(f"{place.name}:".startswith(f"{measured}:") for measured in basis.places):
        chips = ", ".join(basis.places)
        return f"{found} {basis.programs} for {chips}, not for this chip."
    # The last package is the one that compiles: libtpu beside jaxlib.
    name, measured_versions = list(basis.compilers.items())[-1]
    return f"{found} {basis.programs} with {name} {', '.join(measured_versions)}."
