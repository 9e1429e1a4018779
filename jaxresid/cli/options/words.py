"""Options that were typed on the command line, as words that mean the same to another process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import click
from click.core import ParameterSource


def typed_arguments(context: click.Context, names: Collection[str]) -> tuple[str, ...]:
    """Return the options of these parameters, as far as they were typed, each as one word."""
    typed = _typed(context, names, context.params)
    return tuple(flag if text is None else f"{flag}={text}" for flag, text in typed)


def words_of(
    context: click.Context, names: Collection[str], values: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the options of these parameters, as far as they were typed, with other values."""
    typed = _typed(context, names, values)
    return tuple(word for pair in typed for word in pair if word is not None)


def _typed(
    context: click.Context, names: Collection[str], values: Mapping[str, Any]
) -> Iterator[tuple[str, str | None]]:
    """Yield flags and their values; None for a flag that has none."""
    for parameter in context.command.params:
        name = str(parameter.name)
        typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name not in names or not typed or not isinstance(parameter, click.Option):
            continue
        flag, value = max(parameter.opts, key=len), values[name]
        if parameter.is_flag:
            yield from [(flag, None)] * bool(value)
        elif parameter.multiple:
            yield from ((flag, str(item)) for item in value)
        elif isinstance(value, tuple):
            yield flag, ",".join(map(str, value))
        else:
            # A whole number is a size, read as bytes, unless the option is one of numbers.
            is_number = isinstance(parameter.type, click.types.IntParamType)
            yield flag, f"{value}B" if isinstance(value, int) and not is_number else str(value)
