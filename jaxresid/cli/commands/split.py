"""`jaxresid split`: print the forward and the backward jaxpr of a function."""

from __future__ import annotations

import click

from jaxresid.cli.help import command, option
from jaxresid.cli.main import showing_progress
from jaxresid.cli.options.inputs import function_options
from jaxresid.cli.options.output import Output, output_options
from jaxresid.cli.options.request import Request
from jaxresid.cli.resolve import inspected


@command(
    examples=(("with the source line of each equation", "jaxresid split train.py:loss --source"),)
)
@function_options
@output_options(("text", "json"))
@option(
    "--mode",
    type=click.Choice(["auto", "loss"]),
    default="auto",
    show_default=True,
    help="loss: differentiate TARGET, whatever it is. auto: refuse what is no loss.",
)
@option("--source", is_flag=True, help="Show the source line of each eqn.")
@option(
    "--max-eqns",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    metavar="N",
    help="Show at most N eqns of each jaxpr.",
)
@option(
    "--depth",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    metavar="N",
    help="Show nested jaxprs down to this depth; deeper ones are folded.",
)
def split(request: Request, output: Output, source: bool, max_eqns: int, depth: int) -> None:
    """Show the forward and the backward jaxpr of TARGET.

    The residuals are numbered in both. TARGET is a function to differentiate, such as a loss; a
    training step has both passes in one jaxpr. The two are shown side by side if the terminal is
    wide enough, else one above the other.
    """
    with showing_progress(f"tracing {request.target}", quiet=output.quiet):
        inspection = inspected(request)
        jaxprs = inspection.subject.split(inspection.report, max_eqns=max_eqns, depth=depth)
    for warning in inspection.report.warnings:
        click.echo(f"jaxresid: warning: {warning}", err=True)
    if output.format == "json":
        from jaxresid.serialization.encoding import json_document

        text = json_document(jaxprs)
    else:
        from jaxresid.render.report.split import render_split

        text = output.rendered(render_split(jaxprs, source=source))
    output.write(text)
