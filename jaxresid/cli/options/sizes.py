"""Parse sizes on the command line."""

from __future__ import annotations

from collections.abc import Callable

import click

from jaxresid.base.text.units import parse_bytes


def size(
    *, is_room: bool = False, is_named_bytes: bool = False
) -> Callable[[click.Context, click.Parameter, str | None], int | None]:
    """Return an option's callback that turns text such as `12GiB` or `800MB` into bytes.

    Args:
      is_room: Whether zero bytes are refused as a mistake.
      is_named_bytes: Whether the option's name says bytes, so that a number needs no unit.
    """

    def parsed(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
        if value is None:
            return None
        try:
            number = value.strip()
            nbytes = parse_bytes(f"{number}B" if is_named_bytes and number.isdigit() else value)
        except ValueError as e:
            raise click.BadParameter(str(e)) from None
        if is_room and nbytes <= 0:
            raise click.BadParameter(
                f"{value!r} leaves no room; write a size such as 12GiB or 800MB"
            )
        return nbytes

    return parsed
