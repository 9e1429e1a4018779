"""`jaxresid compile`: compile a function ahead of time and print whether it fits."""

from __future__ import annotations

import click

from jaxresid.base.errors import InputsError
from jaxresid.cli.help import command, option
from jaxresid.cli.main import EXIT_FAILED, showing_progress, write
from jaxresid.cli.options.compiling import (
    CompilingOptions,
    compiling_options,
    print_errors,
    settings,
)
from jaxresid.cli.options.inputs import target_options
from jaxresid.cli.options.output import Output, output_options
from jaxresid.cli.options.places import placed
from jaxresid.cli.options.request import Request
from jaxresid.cli.resolve import subject_of


def _list_places(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from jaxresid.render.report.compiled import place_lines
    from jaxresid.xla.places import listed

    write("\n".join(place_lines(listed())), None)
    context.exit()


@command(
    examples=(
        (
            "does it fit into one TPU, or one GPU?",
            "jaxresid compile train.py:loss --on tpu:v5e --on gpu:h100",
        ),
        ("the places there are", "jaxresid compile --list-places"),
    )
)
@target_options
@output_options(("text", "json", "html", "pprof"))
@compiling_options
@option(
    "--list-places",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_places,
    help="List the known GPUs and TPUs and exit.",
)
def compile(request: Request, output: Output, compiling: CompilingOptions) -> int:
    """Compile TARGET ahead of time, and say whether it fits.

    TARGET, a loss or any other program, is module:function, path/to/file.py:function or a
    name from pyproject.toml; it is compiled with its gradients for abstract inputs, but not run.
    Each compilation runs in its own process. With pprof the buffers that are live at the peak are a
    profile for the tool of that name. Exits 0 if it fits (or the available memory is not
    known), 1 if it does not or may not, 2 if it could not be compiled.
    """
    request, places = placed(request, compiles=True, several=True)
    if output.format == "pprof" and len(places) > 1:
        raise click.UsageError("-f pprof is a profile of one place: give --on once")
    with showing_progress(f"tracing {request.target}", quiet=output.quiet) as say:
        subject = subject_of(request)
        from jaxresid.advice.compile.ahead_of_time import compiled_report

        result = compiled_report(subject, places, settings(compiling), say)
    if output.format == "pprof":
        (row,) = result.compiled
        if row.error is None and not row.buffers:
            raise InputsError(
                f"the compiler of {row.on} does not list its buffers, of which -f pprof is a"
                " profile; use report -f pprof, whose peak is an estimate"
            )
    if output.format != "pprof" or row.error is None:
        from jaxresid.render.report.compiled import render_compiled

        output.show(result, lambda: render_compiled(result))
    if print_errors(result.compiled):
        return EXIT_FAILED
    return 1 if any(row.fits is False or row.may_fit for row in result.compiled) else 0
