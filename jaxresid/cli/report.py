"""`jaxresid report`."""

from __future__ import annotations

import click

from jaxresid.cli.inputs import TargetOptions, inspected, output_options, target_options
from jaxresid.cli.running import encoding_of, rendered, working, write
from jaxresid.errors import InputsError
from jaxresid.render.rows import GROUPS, View
from jaxresid.units import parse_bytes


def _min_bytes(context: click.Context, parameter: click.Parameter, value: str) -> int:
    try:
        return parse_bytes(value)
    except ValueError as e:
        raise click.BadParameter(str(e)) from None


@click.command()
@target_options
@output_options(("text", "json", "jax"))
@click.option(
    "--group-by",
    type=click.Choice(GROUPS),
    help="Sum the residuals by this; none: one row each. Default: identical ones as one row.",
)
@click.option(
    "--top", type=click.IntRange(min=1), metavar="N", help="Show at most N rows.  [default: 20]"
)
@click.option(
    "--min-bytes",
    callback=_min_bytes,
    default="0",
    metavar="SIZE",
    help="Leave out smaller rows: 4096, 1MiB, 2GB.",
)
@click.option("--all", "all_", is_flag=True, help="Show every row; arguments and literals too.")
def report(
    options: TargetOptions,
    format_: str,
    output: str | None,
    group_by: str | None,
    top: int | None,
    min_bytes: int,
    all_: bool,
) -> None:
    """Report what the backward pass of TARGET keeps, what it costs, its peak memory, and what each
    checkpoint in it is worth.

    TARGET is module:function or path/to/file.py:function, a function or a whole training step.
    Only the text format is grouped and cut; json holds every residual, jax prints the lines of
    jax.ad_checkpoint's own print_saved_residuals with our totals under them.
    """
    view = View(
        group_by=group_by,
        top=top if top is not None or all_ else 20,
        min_bytes=min_bytes,
        all=all_,
    )
    with working(f"tracing {options.target}"):
        found = inspected(options)
        if format_ == "jax":
            from jaxresid.inspector.saved import saved_residual_lines

            if found.report.target.mode == "step":
                raise InputsError(
                    f"{options.target} is a training step, and jax lists the residuals of"
                    " functions only; choose -f text or json, or --mode function"
                )
            lines = saved_residual_lines(found.fun, found.trace.arguments, options.has_aux)
    if format_ == "json":
        from jaxresid.render.json import report_json

        text = report_json(found.report)
    elif format_ == "jax":
        from jaxresid.render.totals import totals_lines

        text = "\n".join([*lines, *totals_lines(found.report)])
    else:
        from jaxresid.render.text import render_report

        text = rendered(render_report(found.report, view, encoding_of(output)), output)
    write(text, output)
