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
from jaxresid.cli.options.inputs import TargetOptions, subject_of, target_options, trips_option
from jaxresid.cli.options.output import Output, output_options, picture_of
from jaxresid.cli.options.places import asks_compiler, placed
from jaxresid.cli.options.policies import at_option, policy_option


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
    options: TargetOptions,
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
    options, places = placed(options, compiles=compile_, measures=measure)
    with showing_progress(f"tracing {options.target}", quiet=output.quiet) as say:
        found, request = subject_of(options)
        from jaxresid import jax_compat
        from jaxresid.advice.compare.compare import (
            MeasureOptions,
            comparison,
            dynamic_leaves,
        )
        from jaxresid.advice.compare.policies import chosen_policies

        chosen = chosen_policies(policies)
        asked = request.question
        leaves = jax_compat.import_jax().tree.leaves((asked.args, asked.kwargs)) if measure else []
        result = comparison(
            found,
            at=at,
            policies=chosen,
            measure=MeasureOptions(dynamic_leaves(found, leaves), rounds or 10)
            if measure
            else None,
            compile=settings(compiling) if compile_ or asks_compiler(places) else None,
            limit_s=limit_s(compiling),
            progress=say,
            lifetimes=output.format == "perfetto"
            or (output.format == "html" and not asks_compiler(places)),
            words=asked.words,
        )
    if output.format == "perfetto":
        output.write_binary(result.to_perfetto())
    elif output.format == "json":
        output.write(result.to_json())
    elif output.format == "html":
        output.write(result.to_page(), verbatim=True)
    elif output.format == "svg":
        output.write(picture_of(result.to_svg))
    else:
        from jaxresid.render.tables.compare import render_comparison

        output.write(output.rendered(render_comparison(result, output.encoding)))
    named = {*chosen.names, *(label for label, _ in chosen.own)}
    failed = [row for row in result.rows if row.policy in named and row.error]
    for row in failed:
        tell(f"jaxresid: error: --policy {row.policy}: {row.error}")
    compiled = [each for row in result.rows for each in row.compiled]
    return EXIT_FAILED if print_errors(compiled) or failed else 0
