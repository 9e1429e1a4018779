"""`jaxresid compare`: print a comparison of checkpoint policies for a function."""

from __future__ import annotations

import functools

import click

from jaxresid.cli.help import command, option
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
from jaxresid.cli.options.policies import at_option, policy_option
from jaxresid.cli.options.request import Request
from jaxresid.cli.resolve import resolve


@command(
    examples=(
        ("each of JAX's policies", "jaxresid compare train.py:loss --on tpu:v5e"),
        (
            "two of JAX's and one of your own",
            "jaxresid compare train.py:loss --policy dots_saveable --policy train:mine",
        ),
        ("run each on this machine, and time it", "jaxresid compare train.py:loss --measure"),
    )
)
@target_options
@trips_option
@output_options(("text", "json", "html", "svg", "perfetto"))
@policy_option(
    "all of JAX's, which module:policy comes beside; none and as-written are always there"
)
@at_option(
    " segments compares loops in checkpointed segments, and Python loops in groups, instead of"
    " policies."
)
@option(
    "--measure",
    is_flag=True,
    help="Run each policy on the local device, with random inputs, and compare times and"
    " gradients.",
)
@option(
    "--rounds",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of rounds of --measure.  [default: 10]",
)
@functools.partial(compile_options, compiles_unasked=True)
def compare(
    request: Request,
    output: Output,
    at: str | None,
    policies: tuple[str, ...],
    measure: bool,
    rounds: int | None,
    compile_: bool,
    compiling: CompilingOptions,
) -> int:
    """Compare what checkpoint policies keep and recompute in TARGET.

    TARGET, a loss or any other program, is module:function, path/to/file.py:function or a
    name from pyproject.toml; it is traced without checkpoints, as written, with each of JAX's
    policies, with the checkpoint_names that occur in it, and with your own policies. Nothing runs
    without --measure; with --compile each is compiled for the place of --on, and the table says
    which of them fit. -f svg draws their peaks against what they recompute, -f perfetto when each
    value is live with each policy, for ui.perfetto.dev. On a CPU, where peaks are not estimated,
    each is compiled anyway. Exits 0, or 2 if something went wrong, including one of the policies
    you name.
    """
    if rounds is not None and not measure:
        raise click.UsageError("--rounds needs --measure")
    request, places = placed(request, compiles=compile_, measures=measure)
    with showing_progress(f"tracing {request.target}", quiet=output.quiet) as say:
        question = resolve(request)
        from jaxresid import jax_compat
        from jaxresid.advice.compare.compare import MeasureOptions, comparison, dynamic_leaves
        from jaxresid.advice.compare.policies import chosen_policies
        from jaxresid.inspector.report import subject

        traced = subject(question)
        measuring = None
        if measure:
            leaves = jax_compat.import_jax().tree.leaves((question.args, question.kwargs))
            measuring = MeasureOptions(dynamic_leaves(traced, leaves), rounds or 10)
        chosen = chosen_policies(policies)
        result = comparison(
            traced,
            at=at,
            policies=chosen,
            measure=measuring,
            compile=settings(compiling) if compile_ or asks_compiler(places) else None,
            limit_s=limit_s(compiling),
            progress=say,
            lifetimes=output.format == "perfetto"
            or (output.format == "html" and not asks_compiler(places)),
            words=request.words,
        )
    from jaxresid.render.tables.compare import render_comparison

    output.show(result, lambda: render_comparison(result, output.encoding))
    named = {*chosen.names, *(label for label, _ in chosen.own)}
    failed = [row for row in result.rows if row.policy in named and row.error]
    for row in failed:
        tell(f"jaxresid: error: --policy {row.policy}: {row.error}")
    compiled = [program for row in result.rows for program in row.compiled]
    return EXIT_FAILED if print_errors(compiled) or failed else 0
