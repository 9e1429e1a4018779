"""Define the command line: parse, call, echo, exit, without analysis or formatting."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click
from click.shell_completion import CompletionItem

from jaxresid._version import __version__
from jaxresid.base.interrupts import deferring_interrupts
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.cli.help import write_examples

# Title -> command -> what it is for, in words that need no knowledge of ours. `jaxresid --help`
# shows them, and imports none of the commands.
SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Understand a function": {
        "report": "what its backward pass keeps, at which lines, and its peak",
        "split": "its forward and its backward pass, as JAX has them",
        "check": "checkpoints and residuals that do not pay off; limits",
        "diff": "what a change, a flag or another JAX does to its memory",
    },
    "Make it fit": {
        "plan": "the cheapest checkpoints that fit a memory budget",
        "compare": "what each checkpoint policy keeps and recomputes",
        "compile": "whether it fits, by the compiler of a GPU or TPU",
        "sweep": "the same for many policies, batch sizes and places",
        "oom": "what filled the memory of a program that ran out, by its log",
    },
    "Read source code": {
        "lint": "find mistaken uses of jax.checkpoint, running nothing",
        "explain": "what a rule of lint or check finds, and why it matters",
        "rules": "list these rules",
    },
    "Your shell and editor": {
        "completion": "complete commands, targets and options in bash, zsh, fish",
        "server": "what lint finds, in editors, by the Language Server Protocol",
    },
}
COMMANDS = tuple(name for commands in SECTIONS.values() for name in commands)
EXAMPLES = (
    ("what the backward pass of loss in train.py keeps", "jaxresid report train.py:loss"),
    ("the same for a GPU that need not be here", "jaxresid report train.py:loss --on gpu:h100"),
    ("how it would fit into 12 GiB", "jaxresid plan train.py:loss --budget 12GiB"),
    ("the functions of a file", "jaxresid report train.py"),
)
# Command -> the module that has it, where that is not named as the command.
_MODULES = {"rules": "explain"}


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are called.

    A commit hook runs `lint` often and must not pay for what `report` imports.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = _MODULES.get(cmd_name, cmd_name)
        with deferring_interrupts():  # a command may load numpy
            found = importlib.import_module(f"jaxresid.cli.commands.{module}")
        command: click.Command = getattr(found, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word in COMMANDS or word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        if ":" in word or word.endswith(".py"):
            raise click.UsageError(f"{word!r} is no command; write: jaxresid report {word}", ctx)
        near = did_you_mean(word, COMMANDS)
        raise click.UsageError(f"no command {word!r}{near or '; jaxresid --help lists them'}", ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        write_examples(formatter, EXAMPLES)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if not all(word.startswith("-") for word in ctx.obj or ()):  # after an unknown command
            return []
        described = {name: what for each in SECTIONS.values() for name, what in each.items()}
        options = click.Command.shell_complete(self, ctx, incomplete)
        names = [n for n in described if n.startswith(incomplete)]
        return [*(CompletionItem(name, help=described[name]) for name in names), *options]


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="jaxresid COMMAND --help has more examples.",
)
@click.version_option(__version__, prog_name="jaxresid")
def cli() -> None:
    """Show what a JAX backward pass keeps in memory, which line keeps it, and what makes it fit.

    Name a loss, a training step or another program. It is traced for the shapes of its
    inputs: nothing is computed or allocated, and no accelerator is needed. The inputs come from a
    function loss_inputs() beside it, or are given as shapes: --arg 'f32[64,512]'. Only compare
    --measure runs it.
    """
