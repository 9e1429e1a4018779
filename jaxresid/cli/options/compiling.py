"""Define the options that say how to compile, shared by every command that does."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from jaxresid.cli.help import Group, option, options
from jaxresid.cli.main import tell
from jaxresid.cli.options.places import asks_compiler
from jaxresid.cli.options.sizes import size
from jaxresid.xla.places import parse_place

if TYPE_CHECKING:
    from jaxresid.advice.compile.ahead_of_time import CompileSettings
    from jaxresid.cli.options.request import Request
    from jaxresid.results import Compiled


_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


@dataclass(frozen=True, slots=True)
class CompilingOptions:
    """The options as given; None where one was not."""

    jobs: int | None = None
    timeout: float | None = None
    memory_limit: int | None = None
    no_cache: bool = False
    xla_flags: tuple[tuple[str, str], ...] = ()
    compile_time: float | None = None

    def typed(self) -> tuple[str, ...]:
        """Return the options that were typed."""
        values = {
            "--jobs": self.jobs,
            "--timeout": self.timeout,
            "--memory-limit": self.memory_limit,
            "--no-cache": self.no_cache or None,
            "--xla-flag": self.xla_flags or None,
            "--compile-time": self.compile_time,
        }
        return tuple(name for name, value in values.items() if value is not None)


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
    flags = {}
    for value in values:
        name, equals, text = value.removeprefix("--").partition("=")
        if not equals or not name:
            raise click.BadParameter(
                f"{value!r} is not NAME=VALUE; write e.g. xla_cpu_enable_fast_math=true"
            )
        flags[name] = text
    return tuple(flags.items())


_COMPILING = options(
    option(
        "--jobs",
        group=Group.COMPILING,
        type=click.IntRange(min=1),
        metavar="N",
        help="How many programs to compile at once.  [default: depends on the number of cores]",
    ),
    option(
        "--timeout",
        group=Group.COMPILING,
        callback=_seconds,
        metavar="TIME",
        help="Stop a compilation after this long: 90, 10m, 1h.  [default: 10m]",
    ),
    option(
        "--memory-limit",
        group=Group.COMPILING,
        callback=size(is_room=True),
        metavar="SIZE",
        help="Stop a compilation that takes more memory than this: 8GiB.",
    ),
    option(
        "--no-cache", is_flag=True, group=Group.COMPILING, help="Do not reuse earlier compilations."
    ),
    option(
        "--xla-flag",
        "xla_flags",
        group=Group.COMPILING,
        multiple=True,
        callback=_flags,
        metavar="NAME=VALUE",
        help="A flag of the compiler. Repeat for more.",
    ),
)


def compiling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command receives them as one `CompilingOptions`, `compiling`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **values: Any) -> Any:
        names = [name for name in CompilingOptions.__dataclass_fields__ if name in values]
        compiling = CompilingOptions(**{name: values.pop(name) for name in names})
        return command(*args, compiling=compiling, **values)

    return _COMPILING(wrapped)


def compile_options(
    command: Callable[..., Any], *, compiles_unasked: bool = False
) -> Callable[..., Any]:
    """Add `--compile` and the options of `compiling_options`; the command receives `compile_`.

    Args:
      compiles_unasked: Whether it compiles without `--compile` where peaks are not estimated, and
        before it writes.
    """

    @option(
        "--compile-time",
        group=Group.COMPILING,
        callback=_seconds,
        metavar="TIME",
        help="What the compilations of --compile may take, all together, in plan with the searches"
        " between them: 90, 10m, 1h.  [default: 2m]",
    )
    @functools.wraps(command)
    def wrapped(
        request: Request, *, compile_: bool, compiling: CompilingOptions, **options: Any
    ) -> Any:
        unasked = compiles_unasked and (
            options.get("write_") or asks_compiler(map(parse_place, request.on))
        )
        if compiling.typed() and not (compile_ or unasked):
            raise click.UsageError(f"{compiling.typed()[0]} needs --compile")
        return command(request, compile_=compile_, compiling=compiling, **options)

    return option(
        "--compile",
        "compile_",
        group=Group.COMPILING,
        is_flag=True,
        help="Also compile for the place of --on, and show XLA's figures.",
    )(compiling_options(wrapped))


def settings(compiling: CompilingOptions) -> CompileSettings:
    """Return the settings that the options amount to."""
    from jaxresid.advice.compile.ahead_of_time import CompileSettings
    from jaxresid.xla.processes.cache import CompileCache, default_directory

    default = CompileSettings()
    return CompileSettings(
        flags=compiling.xla_flags,
        timeout_s=default.timeout_s if compiling.timeout is None else compiling.timeout,
        memory_nbytes=compiling.memory_limit,
        workers=compiling.jobs,
        cache=None if compiling.no_cache else CompileCache(default_directory()),
    )


def limit_s(compiling: CompilingOptions) -> float:
    """Return the seconds that the compiles of one answer may take together."""
    from jaxresid.advice.compile.limited import COMPILE_SECONDS

    return COMPILE_SECONDS if compiling.compile_time is None else compiling.compile_time


def print_errors(rows: Sequence[Compiled]) -> bool:
    """Say on stderr what could not be compiled, each reason once, and return whether any was."""
    errors = dict.fromkeys((row.on, row.error) for row in rows if row.error is not None)
    for on, error in errors:
        tell(f"jaxresid: error: {on}: {error}")
    return bool(errors)
