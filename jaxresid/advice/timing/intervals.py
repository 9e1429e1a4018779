"""The interval that the ratio of two programs' times is in, given the roofline's.

The factors are in `intervals.json`, by place and by whether a program has a loop;
`python -m tests.benchmarks.times.conformal` makes them, and says how. Only of programs of one
device without transfers to the host was anything told, and only of those that the roofline covers.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources

from jaxresid.advice.timing.roofline import Seconds
from jaxresid.inspector.memory.intervals import kind_of
from jaxresid.inspector.variants.choices import Variant
from jaxresid.results import TimeBasis, TimeInterval
from jaxresid.xla.places import Place


@dataclass(frozen=True, slots=True)
class Checked:
    """What was told of the programs of a place; `has_loop` is None where some have one."""

    has_loop: bool | None
    basis: TimeBasis


def time_basis(place: Place, *, has_loop: bool) -> TimeBasis | None:
    for checks in checked():
        is_of = f"{place.text}:".startswith(f"{checks.basis.place}:")
        if is_of and checks.has_loop in (None, has_loop):
            return checks.basis
    return None


def time_basis_of(variant: Variant, place: Place) -> TimeBasis | None:
    return time_basis(place, has_loop=kind_of(variant.lowered.program).has_loop)


def time_interval(
    checkpointed: Seconds, plain: Seconds, basis: TimeBasis | None, *, is_split: bool
) -> TimeInterval | None:
    """Return the interval around a program's time over that of the same without checkpoints.

    Args:
      is_split: whether it runs on several devices, of whose communication nothing was told.

    Returns:
      The interval; None where nothing told of such programs.
    """
    if basis is None or is_split or not plain.total:
        return None
    if checkpointed == plain:
        return TimeInterval(0.0, 0.0)
    untold = (checkpointed.transfers, plain.transfers, checkpointed.collectives, plain.collectives)
    if any(untold) or checkpointed.uncosted or plain.uncosted:
        return None
    return basis.around(checkpointed.total / plain.total)


def checked_on() -> tuple[str, ...]:
    """Return the places whose times were held against something, in words."""
    return tuple(
        checks.basis.place + (" (programs without loops)" if checks.has_loop is False else "")
        for checks in checked()
    )


@functools.cache
def checked() -> tuple[Checked, ...]:
    text = resources.files(__package__).joinpath("intervals.json").read_text(encoding="utf-8")
    return tuple(
        Checked(
            entry["has_loop"],
            TimeBasis(
                place=entry["place"],
                by=entry["by"],
                compilers={name: tuple(versions) for name, versions in entry["compilers"].items()},
                models=entry["models"],
                pairs=entry["pairs"],
                coverage=entry["coverage"],
                factor=entry["factor"],
            ),
        )
        for entry in json.loads(text)["checked"]
    )
