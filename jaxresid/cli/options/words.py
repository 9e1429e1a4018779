"""The words of a command line that name the target, its inputs and its place, for another one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import click
from click.core import ParameterSource


def words_of(
    context: click.Context, options: Collection[str], values: dict[str, Any]
) -> tuple[str, ...]:
    """Return the options that were typed, as words that mean the same."""
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        typed = context.get_parameter_source(name) == ParameterSource.COMMANDLINE
        if name in options and typed and isinstance(parameter, click.Option):
            flag = max(parameter.opts, key=len)
            words += _option(flag, parameter, values[name])
    return tuple(words)


def _option(flag: str, option: click.Option, value: Any) -> Iterator[str]:
    if option.is_flag:
        yield from [flag] * bool(value)
    elif option.multiple:
        for each in value:
            yield from (flag, str(each))
    else:
        # A list of numbers is typed with commas, and a size of so many bytes with its unit.
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        yield from (flag, f"{text}B" if flag == "--margin" else text)
