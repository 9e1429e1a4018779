"""Define the options that say what a program may take, and by how much it may grow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from jaxresid.base.text.units import parse_budget, parse_growth
from jaxresid.cli.help import Group, option

if TYPE_CHECKING:
    from jaxresid.results import Limits


@dataclass(frozen=True, slots=True)
class GrowthOptions:
    """What growth is held against, as given.

    Attributes:
      baseline: a lockfile, a saved report or a revision of git; None for the project's lockfile.
      update: whether the lockfile is written anew, and nothing held against it.
    """

    baseline: str | None
    update: bool


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; `taken_limits` and `taken_growth` take them out of the command's options."""
    for decorate in (
        option(
            "--update",
            is_flag=True,
            group=Group.BUDGET,
            help="Write the figures of what is checked into the lockfile.",
        ),
        option(
            "--baseline",
            group=Group.BUDGET,
            metavar="FILE|REV",
            help="What --max-growth is held against: a lockfile, a report (`report -o"
            " before.json`) or a revision of git, which is traced in a folder of its own."
            "  [default: jaxresid.lock beside pyproject.toml]",
        ),
        option(
            "--max-growth",
            group=Group.BUDGET,
            callback=_read(parse_growth),
            metavar="SHARE",
            help="Fail if the peak is above that of the baseline by more than this: 2%.",
        ),
        option(
            "--max-kept",
            group=Group.BUDGET,
            callback=_read(parse_budget),
            metavar="SIZE",
            help="Fail if the backward pass keeps more than this in device memory, arguments"
            " aside: 4GiB.",
        ),
        option(
            "--max-peak",
            group=Group.BUDGET,
            callback=_read(parse_budget),
            metavar="SIZE",
            help="Fail if the peak is above this: 12GiB. The estimate decides, or XLA's figure"
            " with --compile.",
        ),
    ):
        command = decorate(command)
    return command


def taken_limits(options: dict[str, Any]) -> Limits:
    """Remove the options of limits from those of a command, and return what they amount to."""
    from jaxresid.results import Limits

    return Limits(options.pop("max_peak"), options.pop("max_kept"), options.pop("max_growth"))


def taken_growth(options: dict[str, Any]) -> GrowthOptions:
    """Remove the options of the baseline from those of a command, and return them."""
    return GrowthOptions(options.pop("baseline"), options.pop("update"))


def _read(parse: Callable[[str], Any]) -> Callable[..., Any]:
    def read(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
        try:
            return None if value is None else parse(value)
        except ValueError as e:
            raise click.BadParameter(str(e)) from None

    return read
