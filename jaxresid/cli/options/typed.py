"""What was typed on the command line, to be typed for another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource


def typed_arguments(context: click.Context, names: Sequence[str]) -> tuple[str, ...]:
    """Return the options of a command that were typed, as they are typed."""
    found: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in names and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            found += _typed(parameter, context.params[name])
    return tuple(found)


def _typed(parameter: click.Parameter, value: Any) -> list[str]:
    flag = parameter.opts[0]
    if isinstance(value, bool):
        return [flag] * value
    if parameter.multiple:
        return [f"{flag}={each}" for each in value]
    if isinstance(value, tuple):
        return [f"{flag}={','.join(map(str, value))}"]
    # A whole number is a size, which has been read as bytes, unless the option is one of numbers.
    is_size = isinstance(value, int) and not isinstance(parameter.type, click.types.IntParamType)
    return [f"{flag}={value}{'B' if is_size else ''}"]
