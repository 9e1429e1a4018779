"""The command line: parse, call, echo, exit. No analysis and no formatting."""

from __future__ import annotations

import click

from jaxresid import __version__
from jaxresid.cli.report import report
from jaxresid.cli.split import split


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="jaxresid")
def cli() -> None:
    """What a JAX backward pass keeps, in bytes, and which line keeps it.

    Functions are traced on abstract inputs: nothing is computed, nothing is allocated.
    """


cli.add_command(report)
cli.add_command(split)
