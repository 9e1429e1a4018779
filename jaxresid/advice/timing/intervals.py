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
    """What was told of the programs of a place.

    Attributes:
      has_loop: whether these have a loop; None: some do.
      basis: what told it.
    """

    has_loop: bool | None
    basis: TimeBasis


def time_basis(place: Place, *, has_loop: bool) -> TimeBasis | None:
    """Return what times on a place were held against; None where nothing was.

    Args:
      place: the place.
      has_loop: whether the program has a loop.
    """
    return next(
        (
            each.basis
            for each in checked()
            if each.has_loop in (None, has_loop) and _is_of(place, each.basis)
        ),
        None,
    )


def time_basis_of(variant: Variant, place: Place) -> TimeBasis | None:
    """Return what times of a program on a place were held against; None where nothing was."""
    return time_basis(place, has_loop=kind_of(variant.lowered.program).has_loop)


def time_interval(
    found: Seconds, plain: Seconds, basis: TimeBasis | None, *, is_split: bool
) -> TimeInterval | None:
    """Return the interval around a program's time over that of the same without checkpoints.

    Args:
      found: the estimated time of the program.
      plain: that without checkpoints.
      basis: what such times were held against; None: nothing.
      is_split: whether it runs on several devices, of whose communication nothing was told.

    Returns:
      The interval; None where nothing told of such programs.
    """
    if basis is None or is_split or not plain.total:
        return None
    if found == plain:
        return TimeInterval(0.0, 0.0)
    untold = (found.transfers, plain.transfers, found.collectives, plain.collectives)
    if any(untold) or found.uncosted or plain.uncosted:
        return None
    return basis.around(found.total / plain.total)


def checked_on() -> tuple[str, ...]:
    """Return the places whose times were held against something, in words."""
    return tuple(
        each.basis.place + (" (programs without loops)" if each.has_loop is False else "")
        for each in checked()
    )


@functools.cache
def checked() -> tuple[Checked, ...]:
    """Return everything that times were held against."""
    text = resources.files(__package__).joinpath("intervals.json").read_text(encoding="utf-8")
    return tuple(
        Checked(
            each["has_loop"],
            TimeBasis(
                place=each["place"],
                by=each["by"],
                compilers={name: tuple(found) for name, found in each["compilers"].items()},
                models=each["models"],
                pairs=each["pairs"],
                coverage=each["coverage"],
                factor=each["factor"],
            ),
        )
        for each in json.loads(text)["checked"]
    )


def _is_of(place: Place, basis: TimeBasis) -> bool:
    return f"{place.text}:".startswith(f"{basis.place}:")
