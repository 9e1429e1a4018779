"""Define the command line: parse, call, echo, exit, without analysis or formatting."""

from __future__ import annotations

import importlib

import click

from jaxresid._version import __version__
from jaxresid.interrupts import deferring_interrupts

# Command -> the module that has it under the same name. A commit hook runs `lint` often and must
# not pay for what `report` imports.
_COMMANDS = {
    "report": "jaxresid.cli.commands.report",
    "split": "jaxresid.cli.commands.split",
    "check": "jaxresid.cli.commands.check",
    "compare": "jaxresid.cli.commands.compare",
    "plan": "jaxresid.cli.commands.plan",
    "sweep": "jaxresid.cli.commands.sweep",
    "compile": "jaxresid.cli.commands.compile",
    "oom": "jaxresid.cli.commands.oom",
    "lint": "jaxresid.cli.commands.lint",
    "explain": "jaxresid.cli.commands.explain",
    "rules": "jaxresid.cli.commands.explain",
}


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are called (or listed)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        with deferring_interrupts():  # a command may load numpy
            command: click.Command = getattr(importlib.import_module(module), cmd_name)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="jaxresid")
def cli() -> None:
    """Show what a JAX backward pass keeps, which line keeps it, and which checkpoints to change.

    `report`, `check`, `split`, `compare`, `plan`, `compile` and `sweep` trace functions on abstract
    inputs: nothing is computed or allocated, except by `compare --measure`. `lint` reads source
    code without running it, `oom` the log of a program that ran out of memory.
    """
