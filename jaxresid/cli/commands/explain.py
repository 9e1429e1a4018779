"""`jaxresid explain` and `jaxresid rules`: print the documentation of one rule, or all rules."""

from __future__ import annotations

import click

from jaxresid.advice.check.rules import traced_rules
from jaxresid.cli.main import terminal_width, use_color, write
from jaxresid.errors import JaxresidError
from jaxresid.linter.rules import KNOWN, all_rules
from jaxresid.nearest import did_you_mean
from jaxresid.render.lint.explain import explain as explained
from jaxresid.render.lint.explain import rule_table

_format = click.option(
    "-f",
    "--format",
    "--output-format",
    "format_",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="Output format.",
)
_output = click.option(
    "-o", "--output", metavar="FILE", help="Write to this file instead of stdout."
)
_traceback = click.option("--traceback", is_flag=True, help="Show the tracebacks of errors.")


@click.command()
@click.argument("rule", metavar="CODE")
@_format
@_output
@_traceback
def explain(rule: str, format_: str, output: str | None, traceback: bool) -> None:
    """Explain what a rule finds, why that is bad, and when it is fine.

    CODE is a rule's code or its name: JXR101, checkpointed-loss.
    """
    del traceback
    every = (*all_rules(), *traced_rules())
    found = next((r for r in every if rule.upper() == r.code or rule == r.name), None)
    if found is None:
        guess = did_you_mean(rule, [w for pair in KNOWN.items() for w in pair])
        raise JaxresidError(f"unknown rule {rule!r}{guess} (`jaxresid rules` lists them)")
    text = explained(found.info(), format_, color=use_color("auto", output), width=_width(output))
    write(text, output)


@click.command()
@_format
@_output
@_traceback
def rules(format_: str, output: str | None, traceback: bool) -> None:
    """List the rules of `jaxresid lint` and `jaxresid check`."""
    del traceback
    every = [r.info() for r in (*all_rules(), *traced_rules())]
    write(rule_table(every, format_, width=_width(output)), output)


def _width(output: str | None) -> int:
    return terminal_width(to_stdout=output is None or output == "-")
