"""Define the options that say what a program may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from jaxresid.cli.help import Group, option
from jaxresid.units import parse_budget

if TYPE_CHECKING:
    from jaxresid.model import Limits


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --max-peak and --max-kept; `taken_limits` takes them out of the command's options."""
    command = option(
        "--max-kept",
        group=Group.BUDGET,
        callback=_size,
        metavar="SIZE",
        help="Fail if the backward pass keeps more than this in device memory, arguments aside:"
        " 4GiB.",
    )(command)
    return option(
        "--max-peak",
        group=Group.BUDGET,
        callback=_size,
        metavar="SIZE",
        help="Fail if the peak is above this: 12GiB. The estimate decides, or XLA's figure with"
        " --compile.",
    )(command)


def taken_limits(options: dict[str, Any]) -> Limits:
    """Remove the options of `limit_options` and return what they amount to."""
    from jaxresid.model import Limits

    return Limits(options.pop("max_peak"), options.pop("max_kept"))


def _size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_budget(value)
    except ValueError as e:
        raise click.BadParameter(str(e)) from None
