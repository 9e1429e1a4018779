"""`jaxresid completion`: print the script that completes command lines in a shell."""

from __future__ import annotations

import click

from jaxresid.cli.completion.scripts import SCRIPTS
from jaxresid.cli.help import command
from jaxresid.cli.main import write


@command(
    examples=(
        ("bash, in ~/.bashrc", 'eval "$(jaxresid completion bash)"'),
        ("zsh, in ~/.zshrc", 'eval "$(jaxresid completion zsh)"'),
        ("fish, once", "jaxresid completion fish > ~/.config/fish/completions/jaxresid.fish"),
    )
)
@click.argument("shell", type=click.Choice(tuple(SCRIPTS)))
def completion(shell: str) -> None:
    """Print the script that completes jaxresid's command lines in SHELL.

    SHELL is bash (4.4 or newer), zsh or fish. Commands, options, files, targets (after train.py:
    its functions), places, policies and codes of rules are completed; no file of yours is run for
    that.
    """
    write(SCRIPTS[shell], None, verbatim=True)
