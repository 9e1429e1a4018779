"""What a result shows of itself in a line: its `repr`."""

from __future__ import annotations

from collections.abc import Iterable

from jaxresid.base.text.short_repr import LIMIT, cut, printable
from jaxresid.base.text.units import format_bytes
from jaxresid.results.interval import Interval
from jaxresid.results.target import Target


def headline(kind: str, target: Target, places: Iterable[str], parts: Iterable[str]) -> str:
    """Return the line of a result.

    Args:
      kind: the name of its class.
      target: what it is of.
      places: the places that its figures are for.
      parts: what else it says.
    """
    names = list(places)
    on = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    said = ", ".join(part for part in parts if part)
    return cut(f"<{kind} of {printable(target.name)} on {printable(on)}: {said}", LIMIT) + ">"


def peak_text(nbytes: int | None, interval: Interval | None = None, by: str = "") -> str:
    """Return a peak in words, `peak 8.20 GiB (7.90 GiB to 9.10 GiB)`."""
    if nbytes is None:
        return "no peak known"
    between = ""
    if interval is not None:
        low, high = format_bytes(interval.low_nbytes), format_bytes(interval.high_nbytes)
        between = f" ({low} to {high})"
    return f"peak {format_bytes(nbytes)}{between}{by}"


def count_text(number: int, one: str) -> str:
    """Return a number of things, in the plural where there are several."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"


def signed_bytes(nbytes: int) -> str:
    """Return a difference of bytes with its sign, `+1.25 GiB`; `unchanged` for none."""
    if nbytes == 0:
        return "unchanged"
    return f"{'+' if nbytes > 0 else '-'}{format_bytes(abs(nbytes))}"
