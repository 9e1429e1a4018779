"""`jaxresid report`: print what the backward pass of a function keeps."""

from __future__ import annotations

import functools
import time
from typing import get_args

import click

from jaxresid.base.crashes import crash_warnings
from jaxresid.base.errors import InputsError
from jaxresid.base.option_types import GroupBy, PictureView, ReportView
from jaxresid.base.text.safe_text import visible
from jaxresid.cli.help import command, option
from jaxresid.cli.keep_result import keep_result
from jaxresid.cli.main import EXIT_FAILED, showing_progress, tell
from jaxresid.cli.options.compiling import (
    CompilingOptions,
    compile_options,
    limit_s,
    print_errors,
    settings,
)
from jaxresid.cli.options.inputs import target_options, trips_option
from jaxresid.cli.options.output import Output, output_options
from jaxresid.cli.options.places import asks_compiler, placed
from jaxresid.cli.options.request import Request
from jaxresid.cli.options.sizes import size
from jaxresid.cli.resolve import inspected
from jaxresid.render.report.rows import View


@command(
    examples=(
        (
            "inputs from loss_inputs() or example_inputs() of the same file",
            "jaxresid report train.py:loss",
        ),
        (
            "inputs by shape and type; figures for a GPU that need not be here",
            "jaxresid report train.py:loss --arg 'f32[64,512]' --on gpu:h100",
        ),
        (
            "with the compiler's own figures, as JSON",
            "jaxresid report train.py:loss --compile -o report.json",
        ),
    )
)
@target_options
@trips_option
@output_options(("text", "json", "html", "jax", "svg", "pprof", "perfetto"))
@option(
    "-v", "--verbose", is_flag=True, help="Show everything: each value, checkpoint and residual."
)
@option(
    "--view",
    "show",
    type=click.Choice((*get_args(ReportView), "icicle")),
    help="Show one thing in full: what is live at the peak, the residuals, the checkpoints, the"
    " modules of the model, or the bytes over the program (timeline). With -f svg draw timeline, or"
    " icicle: what is kept by module, function, line and value.  [default with -f svg: timeline]",
)
@option(
    "--group-by",
    type=click.Choice(get_args(GroupBy)),
    help="With -v or --view residuals: sum the residuals by this; none: one row for each."
    "  [default: one row for identical residuals]",
)
@option(
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    help="With -v or --view residuals: show at most N rows of them.  [default: 20]",
)
@option(
    "--min-bytes",
    callback=size(is_named_bytes=True),
    metavar="SIZE",
    help="With -v or --view residuals: leave out smaller rows: 4096, 1MiB, 2GB.",
)
@option(
    "--all",
    "all_",
    is_flag=True,
    help="With -v or --view residuals: show every row, including arguments and literals.",
)
@functools.partial(compile_options, compiles_unasked=True)
def report(
    request: Request,
    output: Output,
    verbose: bool,
    show: ReportView | PictureView | None,
    group_by: GroupBy | None,
    top: int | None,
    min_bytes: int | None,
    all_: bool,
    compile_: bool,
    compiling: CompilingOptions,
) -> int:
    """Report the residuals, cost, peak and checkpoints of TARGET.

    TARGET, a loss or any other program, is module:function, path/to/file.py:function or a
    name from pyproject.toml. The report says whether it fits, what its peak is made of, which lines
    keep most for the backward pass, and what each checkpoint saves. -v adds all values and figures,
    and --view shows one thing in full. Only the text format is shortened; json holds everything,
    html is a page to look at, on its own, with all values over the program, by module and by line;
    svg draws the bytes over the program, or with --view icicle what is kept; pprof is a profile for
    the tool of that name: kept bytes, bytes at the peak and recomputed FLOPs by their stacks;
    perfetto is a trace for ui.perfetto.dev of when each value is live, op by op; and jax prints the
    lines of jax.ad_checkpoint.print_saved_residuals, followed by the totals. --compile adds a
    section with XLA's own figures at the place of --on, and compiles TARGET without each of the ten
    checkpoints that drop most: the verdicts on these are then XLA's. On a CPU, where peaks are not
    estimated, XLA's figures are there anyway. Exits 0, or 2 if something went wrong.
    """
    since = time.time()
    if (compile_ or compiling.typed()) and output.format == "jax":
        raise click.UsageError("-f jax prints only JAX's own lines; compile with -f text or json")
    if verbose and show:
        raise click.UsageError("-v shows everything and --view one thing: choose one")
    rows = {"--group-by": group_by, "--top": top, "--min-bytes": min_bytes, "--all": all_ or None}
    chosen = [option for option, value in rows.items() if value is not None]
    if chosen and not verbose and show != "residuals":
        raise click.UsageError(
            f"{chosen[0]} chooses rows of residuals: add --view residuals, or -v"
        )
    if output.format in ("html", "pprof", "perfetto") and (verbose or show):
        raise click.UsageError(
            f"{'-v' if verbose else '--view'} shows more or less of the text; -f {output.format}"
            " has everything: leave it out"
        )
    picture = _picture(show, verbose=verbose) if output.format == "svg" else None
    if show == "icicle" and picture is None:
        raise click.UsageError("--view icicle is a picture: add -f svg, or -o icicle.svg")
    view = View(
        show=show if show != "icicle" else None,
        verbose=verbose,
        group_by=group_by,
        top=top if top is not None or all_ else 20,
        min_bytes=min_bytes or 0,
        all=all_,
    )
    request, places = placed(request, compiles=compile_)
    with showing_progress(f"tracing {request.target}", quiet=output.quiet) as say:
        drawn = (
            picture == "timeline"
            or output.format == "perfetto"
            or (output.format in ("html", "pprof") and not asks_compiler(places))
        )
        inspection = inspected(request, lifetimes=drawn)
        if compile_ or (asks_compiler(places) and output.format != "jax"):
            from jaxresid.advice.compile.limited import LimitedCompiles
            from jaxresid.advice.compile.report import confirmed

            compiles = LimitedCompiles(
                inspection.subject.place,
                settings(compiling),
                limit_s=limit_s(compiling),
                progress=say,
            )
            inspection = confirmed(inspection, compiles, checkpoints=compile_)
        result = inspection.report
        keep_result("report", request, result, since=since)
        if output.format == "jax":
            from jaxresid.inspector.subject.base import without_gradient
            from jaxresid.inspector.trace.saved_lines import saved_residual_lines

            loss = inspection.subject.holes.alone
            if loss is None:
                if not result.target.has_gradient:
                    raise InputsError(without_gradient(result.target))
                raise InputsError(
                    f"{request.target} is taken as it is, and JAX lists the residuals of what it"
                    " differentiates only; use -f text or json, or --mode loss"
                )
            lines = saved_residual_lines(inspection.subject.fun, loss.arguments, loss.has_aux)
    if output.format not in ("text", "json", "html"):  # these have the report's warnings
        for warning in crash_warnings(inspection.crashes):
            tell(f"jaxresid: warning: {warning}")
    if output.format == "jax":
        from jaxresid.render.report.totals import totals_lines

        output.write("\n".join([*map(visible, lines), *totals_lines(result)]))
    else:
        from jaxresid.render.report.text import render_report

        output.show(result, lambda: render_report(result, output.encoding, view), picture)
    return EXIT_FAILED if print_errors(result.compiled) else 0


def _picture(show: ReportView | PictureView | None, *, verbose: bool) -> PictureView:
    if verbose:
        raise click.UsageError("-v shows everything as text, and -f svg draws one thing: --view")
    if show is None or show == "timeline":
        return "timeline"
    if show != "icicle":
        raise click.UsageError(f"--view {show} is text; -f svg draws timeline or icicle")
    return show
