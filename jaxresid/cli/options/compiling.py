"""Define the options that say how to compile, shared by every command that does."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from jaxresid.cli.main import tell
from jaxresid.cli.options.sizes import size
from jaxresid.xla.places import place

if TYPE_CHECKING:
    from jaxresid.advice.compile.ahead_of_time import Settings
    from jaxresid.model import Compiled

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


@dataclass(frozen=True, slots=True)
class CompilingOptions:
    """The options as given; None where one was not."""

    jobs: int | None = None
    timeout: float | None = None
    memory_limit: int | None = None
    no_cache: bool = False
    xla_flags: tuple[tuple[str, str], ...] = ()

    def given(self) -> tuple[str, ...]:
        """Return the names of the options that were given."""
        names = {
            "--jobs": self.jobs is not None,
            "--timeout": self.timeout is not None,
            "--memory-limit": self.memory_limit is not None,
            "--no-cache": self.no_cache,
            "--xla-flag": bool(self.xla_flags),
        }
        return tuple(name for name, given in names.items() if given)


def compiling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command receives them as one `CompilingOptions`, `compiling`."""

    @click.option(
        "--jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="How many to compile at once.  [default: depends on the number of cores]",
    )
    @click.option(
        "--timeout",
        callback=_seconds,
        metavar="TIME",
        help="Stop a compilation after this long: 90, 10m, 1h.  [default: 10m]",
    )
    @click.option(
        "--memory-limit",
        callback=size(is_room=True),
        metavar="SIZE",
        help="Stop a compilation that takes more memory than this: 8GiB.",
    )
    @click.option("--no-cache", is_flag=True, help="Do not reuse earlier compilations.")
    @click.option(
        "--xla-flag",
        "xla_flags",
        multiple=True,
        callback=_flags,
        metavar="NAME=VALUE",
        help="A flag of the compiler. Repeat for more.",
    )
    @functools.wraps(command)
    def wrapped(*args: Any, **options: Any) -> Any:
        chosen = {name: options.pop(name) for name in CompilingOptions.__dataclass_fields__}
        return command(*args, compiling=CompilingOptions(**chosen), **options)

    return wrapped


def on_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --on; the command receives `ons`."""
    return click.option(
        "--on",
        "ons",
        multiple=True,
        required=True,
        metavar="PLATFORM",
        help="The platform to compile for: cpu, gpu, or a TPU, which need not be present, such as"
        " tpu:v5e:2x4 (see jaxresid compile --list-topologies). Repeat for more.",
    )(command)


def compile_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--compile ON` and the options of `compiling_options`.

    The command receives the places as `ons`.
    """

    @click.option(
        "--compile",
        "ons",
        multiple=True,
        metavar="PLATFORM",
        help="Also compile for this platform and show XLA's figures: cpu, gpu, tpu:v5e:2x4 (see"
        " jaxresid compile --list-topologies). Repeat for more.",
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any, ons: tuple[str, ...], compiling: CompilingOptions, **options: Any
    ) -> Any:
        if compiling.given() and not ons:
            raise click.UsageError(f"{compiling.given()[0]} needs --compile")
        return command(*args, ons=ons, compiling=compiling, **options)

    return compiling_options(wrapped)


def places_here(ons: Sequence[str], *, measure: bool = False) -> tuple[str, ...]:
    """Return the places by their normalised names, each once, and prepare this process for them.

    That has to happen before it loads jax: it traces on the CPU, with as many devices as the
    largest topology has, so that a mesh of that many can be made.

    Args:
      ons: The places as given.
      measure: Whether programs run here too, on whatever device jax finds.

    Raises:
      InputsError: One of them is not a place.
    """
    found = [place(on) for on in ons]
    if found and not measure:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    devices = max((p.devices or 1 for p in found), default=1)
    known = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    if devices > (int(known) if known.isdigit() else 1) and not _forced():
        os.environ["JAX_NUM_CPU_DEVICES"] = str(devices)
    return tuple(dict.fromkeys(p.text for p in found))


def settings(compiling: CompilingOptions) -> Settings:
    """Return the settings that the options amount to."""
    from jaxresid.advice.compile.ahead_of_time import Settings
    from jaxresid.xla.processes.cache import Cache, default_directory

    default = Settings()
    return Settings(
        flags=compiling.xla_flags,
        timeout_s=default.timeout_s if compiling.timeout is None else compiling.timeout,
        memory_nbytes=compiling.memory_limit,
        workers=compiling.jobs,
        cache=None if compiling.no_cache else Cache(default_directory()),
    )


def say_errors(option: str, rows: Sequence[Compiled]) -> bool:
    """Say on stderr what could not be compiled, each reason once, and return whether any was."""
    errors = dict.fromkeys((row.on, row.error) for row in rows if row.error is not None)
    for on, error in errors:
        tell(f"jaxresid: error: {option} {on}: {error}")
    return bool(errors)


def _forced() -> bool:
    """Return whether XLA is told in another way how many devices the CPU has.

    jax accepts only one of the two ways.
    """
    return "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")


def _seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", value.strip().lower())
    factor = _SECONDS.get(match.group(2)) if match else None
    if match is None or factor is None or not float(match.group(1)):
        raise click.BadParameter(f"{value!r} is not a time; write seconds or a unit: 90, 10m, 1h")
    return float(match.group(1)) * factor


def _flags(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    found = {}
    for value in values:
        name, equals, text = value.removeprefix("--").partition("=")
        if not equals or not name:
            raise click.BadParameter(
                f"{value!r} is not NAME=VALUE; write e.g. xla_cpu_enable_fast_math=true"
            )
        found[name] = text
    return tuple(found.items())


__all__ = [
    "CompilingOptions",
    "compile_options",
    "compiling_options",
    "places_here",
    "say_errors",
    "settings",
]
