"""Define commands whose --help has options in named groups, and examples.

A group is a word of an option: `option("--top", group=Group.OUTPUT, ...)`. A command's own options
need none and come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

import click


class Group(Enum):
    """A group of options by its title, in the order of --help."""

    OWN = "Options"
    INPUTS = "Target and inputs"
    PLACE = "Place and memory"
    COMPILING = "Compiling"
    BUDGET = "Budget"
    RULES = "Rules"
    FIXES = "Fixes"
    FILES = "Files"
    OUTPUT = "Output"
    GENERAL = "General"


class GroupedOption(click.Option):
    """An option that knows its group."""

    def __init__(self, *args: Any, group: Group = Group.OWN, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.group = group


class ExplainedCommand(click.Command):
    """A command whose --help shows examples (what one does, its command line), options by group."""

    def __init__(
        self, *args: Any, examples: Sequence[tuple[str, str]] = (), **attributes: Any
    ) -> None:
        super().__init__(*args, **attributes)
        self.examples = tuple(examples)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description and the examples."""
        super().format_help_text(ctx, formatter)
        write_examples(formatter, self.examples)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, each group under its title."""
        for group, options in grouped(self, ctx):
            records = [record for it in options if (record := it.get_help_record(ctx))]
            with formatter.section(group.value):
                formatter.write_dl(records)


def write_examples(formatter: click.HelpFormatter, examples: Sequence[tuple[str, str]]) -> None:
    """Write examples as a section, each with what it does above it."""
    if not examples:
        return
    with formatter.section("Examples"):
        indent = " " * formatter.current_indent
        for what, line in examples:
            formatter.write(f"{indent}# {what}\n{indent}{line}\n")


def command(
    *, examples: Sequence[tuple[str, str]], cls: type[ExplainedCommand] = ExplainedCommand
) -> Callable[[Callable[..., Any]], ExplainedCommand]:
    """Return a decorator that makes a function a command; its docstring is the description.

    Examples are pairs of what one does and its command line, of at most 76 columns each.
    """

    def decorate(function: Callable[..., Any]) -> ExplainedCommand:
        decorated: ExplainedCommand = click.command(cls=cls, examples=examples)(function)
        return decorated

    return decorate


def option(
    *names: str, group: Group = Group.OWN, **attributes: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds an option to a command, as `click.option` does."""
    return click.option(*names, cls=GroupedOption, group=group, **attributes)


def options(
    *decorators: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds options, in the order of --help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def grouped(
    command: click.Command, context: click.Context
) -> Iterator[tuple[Group, list[click.Option]]]:
    """Yield the groups of a command with their options that are shown, none of them empty.

    What click adds, --help, is in the last group.
    """
    shown = [
        parameter
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and parameter.get_help_record(context) is not None
    ]
    for group in Group:
        members = [it for it in shown if getattr(it, "group", Group.GENERAL) is group]
        if members:
            yield group, members
