"""`jaxresid explain` and `jaxresid rules`: print the documentation of one rule, or all rules."""

from __future__ import annotations

import click

from jaxresid.advice.check.rules import traced_rules
from jaxresid.base.errors import JaxresidError
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.cli.completion import values
from jaxresid.cli.help import command
from jaxresid.cli.main import terminal_width, use_color
from jaxresid.cli.options.output import Output, output_options
from jaxresid.linter.rules import KNOWN, all_rules
from jaxresid.render.lint.explain import explain as explained
from jaxresid.render.lint.explain import rule_table


@command(examples=(("by code or by name", "jaxresid explain JXR101"),))
@click.argument("rule", metavar="CODE", shell_complete=values.rules)
@output_options(("text", "json"))
def explain(rule: str, output: Output) -> None:
    """Explain what a rule finds, why that is bad, and when it is fine.

    CODE is a rule's code or its name: JXR101, checkpointed-loss.
    """
    every = (*all_rules(), *traced_rules())
    found = next((r for r in every if rule.upper() == r.code or rule == r.name), None)
    if found is None:
        guess = did_you_mean(rule, [w for pair in KNOWN.items() for w in pair])
        raise JaxresidError(f"unknown rule {rule!r}{guess} (`jaxresid rules` lists them)")
    color = use_color(output.color, output.file)
    output.write(explained(found.info(), output.format, color=color, width=_width(output)))


@command(examples=(("as JSON", "jaxresid rules -f json"),))
@output_options(("text", "json"))
def rules(output: Output) -> None:
    """List the rules of `jaxresid lint` and `jaxresid check`."""
    every = [r.info() for r in (*all_rules(), *traced_rules())]
    output.write(rule_table(every, output.format, width=_width(output)))


def _width(output: Output) -> int:
    return terminal_width(to_stdout=output.file in (None, "-"))
