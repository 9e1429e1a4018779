"""Define the options that say what place an answer is for, shared by every command that has one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from jaxresid.base.errors import InputsError
from jaxresid.cli.completion.values import places as completed_places
from jaxresid.cli.help import Group, option, options
from jaxresid.cli.options.sizes import size
from jaxresid.xla.budgets import budget_nbytes
from jaxresid.xla.chosen import choose
from jaxresid.xla.places import Place, parse_place

if TYPE_CHECKING:
    from jaxresid.cli.options.request import Request


place_options = options(
    option(
        "--on",
        group=Group.PLACE,
        shell_complete=completed_places,
        multiple=True,
        metavar="PLACE",
        help="What it is to run on, which need not be present: gpu:h100, gpu:h100:8, tpu:v5e,"
        " tpu:v5e:2x4, gpu:FILE, cpu (jaxresid compile --list-places). Commands that compile take"
        " several: repeat it.  [default: the accelerator that JAX sees here, else gpu:h100]",
    ),
    option(
        "--memory-fraction",
        group=Group.PLACE,
        type=click.FloatRange(min=0, max=1, min_open=True),
        metavar="SHARE",
        help="How much of a GPU's memory JAX takes.  [default: XLA_CLIENT_MEM_FRACTION, or 0.75]",
    ),
    option(
        "--margin",
        group=Group.PLACE,
        callback=size(),
        metavar="SIZE",
        help="How much memory of each device to leave free for what XLA does not count: 2GiB.",
    ),
)


def budget_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds --budget; `budget_of` turns its text into bytes."""
    return option(
        "--budget",
        shell_complete=completed_places,
        metavar="SIZE|PLACE",
        group=Group.PLACE,
        help="The memory that the peak has to fit into: 12GiB, 800MB, or a place such as gpu:h100"
        f" for what a program can have of one device there.  [default: {default}]",
    )


def budget_of(request: Request, budget: str) -> int:
    """Return the bytes of a budget, of a place by the options' account of its memory."""
    try:
        return budget_nbytes(
            budget, memory_fraction=request.memory_fraction, margin_nbytes=request.margin or 0
        )
    except InputsError as e:
        raise click.BadParameter(str(e), param_hint="'--budget'") from None


def placed(
    request: Request, *, compiles: bool, several: bool = False, measures: bool = False
) -> tuple[Request, tuple[Place, ...]]:
    """Return the request with the place that is meant, and the places, each once.

    Where something is compiled, or a place is of several devices, this process is prepared for it,
    before it loads jax: it traces on the CPU, with as many devices as the largest topology has, so
    that a mesh of that many can be made.

    Args:
      compiles: Whether programs are compiled for the places, even where peaks are estimated.
      measures: Whether programs run here too, on whatever device jax finds.
    """
    if len(request.on) > 1 and not several:
        raise click.UsageError(
            "--on is given more than once; only compile and sweep take several places"
        )
    if request.on:
        places = [place_of(request, on) for on in request.on]
    else:
        places = [
            choose(
                None,
                memory_fraction=request.memory_fraction,
                margin_nbytes=request.margin or 0,
                compiles=compiles,
            )
        ]
    devices = max(place.devices or 1 for place in places)
    # A program's own mesh, of a shard_map, needs as many devices too.
    if compiles or asks_compiler(places) or devices > 1:
        if not measures:
            os.environ.setdefault("JAX_PLATFORMS", "cpu")
        provide_cpu_devices(devices)
    unique = tuple(dict.fromkeys(places))
    texts = tuple(place.text for place in unique)
    return replace(request, on=texts, on_origin=places[0].origin), unique


def asks_compiler(places: Iterable[Place]) -> bool:
    """Return whether there is a place where peaks are not estimated, so that XLA is asked."""
    from jaxresid.inspector.memory.compilers import has_estimate

    return not all(map(has_estimate, places))


def place_of(request: Request, on: str) -> Place:
    """Return a place by the options' account of its memory."""
    place = parse_place(
        on, memory_fraction=request.memory_fraction, margin_nbytes=request.margin or 0
    )
    return replace(place, origin=request.on_origin)


def provide_cpu_devices(count: int) -> None:
    """Set the environment to at least so many CPU devices, for a JAX that is not loaded.

    XLA_FLAGS may have their number, and JAX accepts only one of the two.
    """
    before = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    is_set = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if count > (int(before) if before.isdigit() else 1) and not is_set:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(count)
