"""`jaxresid sweep`: compile a function under several policies, sizes and places."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import click

from jaxresid.base.errors import InputsError
from jaxresid.cli.help import command, option
from jaxresid.cli.main import EXIT_FAILED, showing_progress, tell
from jaxresid.cli.options import batches
from jaxresid.cli.options.compiling import CompilingOptions, compiling_options, settings
from jaxresid.cli.options.inputs import target_options, trips_option
from jaxresid.cli.options.output import Output, output_options
from jaxresid.cli.options.places import placed
from jaxresid.cli.options.policies import at_option, policy_option
from jaxresid.cli.options.request import Request
from jaxresid.cli.resolve import subject_of


@command(
    examples=(
        (
            "two batch sizes on two places",
            "jaxresid sweep train.py:loss --batch 8,16 --on gpu:h100 --on tpu:v5e",
        ),
        (
            "continue where an interrupted sweep ended",
            "jaxresid sweep train.py:loss --batch 8..64 --results sweep.jsonl",
        ),
    )
)
@target_options
@trips_option
@output_options(("text", "json-lines"))
@policy_option(
    "none, as-written, dots_saveable, dots_with_no_batch_dims_saveable, nothing_saveable"
)
@at_option()
@compiling_options
@option(
    "--scheduler",
    metavar="ADDRESS",
    help="Compile on the workers of a Dask cluster: tcp://host:8786.",
)
@option(
    "--results",
    "results_file",
    type=click.Path(),
    metavar="FILE",
    help="Add each result to this file as a line of JSON as soon as it is known. Results that are"
    " already in the file are not compiled again.",
)
def sweep(
    request: Request,
    policies: tuple[str, ...],
    at: str | None,
    compiling: CompilingOptions,
    scheduler: str | None,
    results_file: str | None,
    output: Output,
) -> int:
    """Compile TARGET for several policies, batch sizes and places.

    TARGET, a loss or any other program, is module:function, path/to/file.py:function or a
    name from pyproject.toml; it is traced here, and each compilation runs in its own process, here
    or on a Dask cluster. Run an interrupted sweep again with the same --results to continue it.
    A program that takes no gradient is compiled as it is, without policies.
    Exits 0, 2 if something could not be compiled, or 130 if interrupted.
    """
    if results_file == "-":
        raise InputsError("--results needs a file to add the results to, not stdout")
    batches.check_specs((*request.arg, *request.kwarg), request.batch)
    request, places = placed(request, compiles=True, several=True)
    with contextlib.ExitStack() as stack:
        say = stack.enter_context(showing_progress(f"tracing {request.target}", quiet=output.quiet))
        from jaxresid.advice.sweep.results import Results
        from jaxresid.advice.sweep.run import POLICIES, Grid
        from jaxresid.advice.sweep.sweep import swept

        chosen = settings(compiling)
        file = stack.enter_context(Results.open(results_file)) if results_file is not None else None
        if scheduler is not None:
            from jaxresid.xla.processes.cluster import cluster

            say(f"connecting to {scheduler}")
            chosen = replace(chosen, executor=stack.enter_context(cluster(scheduler)))
        grid = Grid(places, policies or POLICIES, request.batch.listed, at, request.batch.name)
        try:
            result = swept(
                lambda size: subject_of(replace(request, batch=request.batch.at(size))),
                grid,
                chosen,
                results=file,
                progress=say,
            )
        except KeyboardInterrupt:
            if file is not None:
                tell(
                    f"jaxresid: interrupted; {results_file} has the results so far, and the same"
                    " command continues from there"
                )
            raise
    if output.format == "json-lines":
        text = "\n".join(row.to_json() for row in result.rows)
    else:
        from jaxresid.render.tables.sweep import render_sweep

        text = output.rendered(render_sweep(result))
    output.write(text)
    failed = sum(row.error is not None for row in result.rows)
    if failed:
        tell(f"jaxresid: error: {failed} of {len(result.rows)} could not be compiled")
    return EXIT_FAILED if failed else 0
