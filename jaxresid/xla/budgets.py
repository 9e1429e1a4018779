"""Read a budget of memory: a size, or a place, which stands for what a program can have there."""

from __future__ import annotations

from jaxresid.base.errors import InputsError
from jaxresid.base.text.units import parse_budget
from jaxresid.xla.places import memory_of, parse_place


def budget_nbytes(
    text: str, *, memory_fraction: float | None = None, margin_nbytes: int = 0
) -> int:
    """Return the bytes of a budget such as `12GiB`, `800MB` or `gpu:h100`.

    Args:
      text: a size with its unit, or a place, which stands for what a program can have of one
        device of it.
      memory_fraction: of a place, the part of a GPU's memory that a program can have, as for
        `parse_place`.
      margin_nbytes: of a place, bytes of each device to leave free.

    Raises:
      InputsError: The text is neither, or leaves no room, or it is not known what memory the place
        has.
    """
    if text.strip()[:1].isalpha():
        try:
            place = parse_place(text, memory_fraction=memory_fraction, margin_nbytes=margin_nbytes)
        except InputsError as e:
            raise InputsError(f"not a size such as 12GiB, and {e}") from None
        return memory_of(place)
    try:
        return parse_budget(text)
    except ValueError as e:
        raise InputsError(str(e)) from None
