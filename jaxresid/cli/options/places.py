"""Define the options that say what place an answer is for, shared by every command that has one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar

import click

from jaxresid.base.errors import InputsError
from jaxresid.cli.completion.values import places as completed_places
from jaxresid.cli.help import Group, option
from jaxresid.cli.options.sizes import size
from jaxresid.xla.budgets import budget_nbytes
from jaxresid.xla.chosen import choose
from jaxresid.xla.places import Place, parse_place


class _PlaceOptions(Protocol):
    """The options of `place_options` in the value that holds all of a command's."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def on(self) -> tuple[str, ...]: ...
    @property
    def on_origin(self) -> str: ...
    @property
    def memory_fraction(self) -> float | None: ...
    @property
    def margin(self) -> int | None: ...


Given = TypeVar("Given", bound=_PlaceOptions)


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --on, --memory-fraction and --margin; `function_options` puts them into its value."""
    command = option(
        "--margin",
        group=Group.PLACE,
        callback=size(),
        metavar="SIZE",
        help="How much memory of each device to leave free for what XLA does not count: 2GiB.",
    )(command)
    command = option(
        "--memory-fraction",
        group=Group.PLACE,
        type=click.FloatRange(min=0, max=1, min_open=True),
        metavar="SHARE",
        help="How much of a GPU's memory JAX takes.  [default: XLA_CLIENT_MEM_FRACTION, or 0.75]",
    )(command)
    return option(
        "--on",
        group=Group.PLACE,
        shell_complete=completed_places,
        multiple=True,
        metavar="PLACE",
        help="What it is to run on, which need not be present: gpu:h100, gpu:h100:8, tpu:v5e,"
        " tpu:v5e:2x4, gpu:FILE, cpu (jaxresid compile --list-places). Commands that compile take"
        " several: repeat it.  [default: the accelerator that JAX sees here, else gpu:h100]",
    )(command)


def budget_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds --budget; `budget_of` turns its text into bytes.

    Args:
      default: what it is without the option, in words.
    """
    return option(
        "--budget",
        shell_complete=completed_places,
        metavar="SIZE|PLACE",
        group=Group.PLACE,
        help="The memory that the peak has to fit into: 12GiB, 800MB, or a place such as gpu:h100"
        f" for what a program can have of one device there.  [default: {default}]",
    )


def budget_of(options: _PlaceOptions, budget: str) -> int:
    """Return the bytes of a budget, of a place by the options' account of its memory.

    Raises:
      click.BadParameter: It is neither a size nor a place whose memory is known.
    """
    try:
        return budget_nbytes(
            budget, memory_fraction=options.memory_fraction, margin_nbytes=options.margin or 0
        )
    except InputsError as e:
        raise click.BadParameter(str(e), param_hint="'--budget'") from None


def placed(
    options: Given, *, compiles: bool, several: bool = False, measures: bool = False
) -> tuple[Given, tuple[Place, ...]]:
    """Return the options with the place that is meant, and the places, each once.

    Where something is compiled, or a place is of several devices, this process is prepared for it,
    before it loads jax: it traces on the CPU, with as many devices as the largest topology has, so
    that a mesh of that many can be made.

    Args:
      options: The options as given.
      compiles: Whether programs are compiled for the places, even where peaks are estimated.
      several: Whether the command takes more than one.
      measures: Whether programs run here too, on whatever device jax finds.

    Raises:
      InputsError: One of them is not a place.
    """
    if len(options.on) > 1 and not several:
        raise click.UsageError(
            "--on is given more than once; only compile and sweep take several places"
        )
    if options.on:
        found = [place_of(options, on) for on in options.on]
    else:
        found = [
            choose(
                None,
                memory_fraction=options.memory_fraction,
                margin_nbytes=options.margin or 0,
                compiles=compiles,
            )
        ]
    # A program's own mesh, of a shard_map, needs as many devices too.
    if compiles or asks_compiler(found) or any((place.devices or 1) > 1 for place in found):
        _prepare(found, measures=measures)
    places = tuple(dict.fromkeys(found))
    texts = tuple(place.text for place in places)
    return replace(options, on=texts, on_origin=places[0].origin), places


def asks_compiler(places: Iterable[Place]) -> bool:
    """Return whether there is a place where peaks are not estimated, so that XLA is asked."""
    from jaxresid.inspector.memory.compilers import has_estimate

    return not all(map(has_estimate, places))


def place_of(options: _PlaceOptions, on: str) -> Place:
    """Return a place by the options' account of its memory.

    Raises:
      InputsError: It is not a place.
    """
    found = parse_place(
        on, memory_fraction=options.memory_fraction, margin_nbytes=options.margin or 0
    )
    return replace(found, origin=options.on_origin)


def _prepare(places: Sequence[Place], *, measures: bool) -> None:
    if not measures:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    devices = max((place.devices or 1 for place in places), default=1)
    known = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    if devices > (int(known) if known.isdigit() else 1) and not _is_device_count_set():
        os.environ["JAX_NUM_CPU_DEVICES"] = str(devices)


def _is_device_count_set() -> bool:
    """Return whether XLA is told in another way how many devices the CPU has.

    jax accepts only one of the two ways.
    """
    return "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
