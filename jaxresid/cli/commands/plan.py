"""`jaxresid plan`: print a plan that fits a function into a budget, or write it to the source."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import get_args

import click

from jaxresid.base.errors import InputsError
from jaxresid.base.option_types import Framework, Maximized, Minimized
from jaxresid.cli.emit_plan import emitted
from jaxresid.cli.help import command, option
from jaxresid.cli.keep_result import keep_result
from jaxresid.cli.main import EXIT_INTERRUPTED, showing_progress, tell
from jaxresid.cli.options import batches
from jaxresid.cli.options.compiling import CompilingOptions, compile_options, limit_s, settings
from jaxresid.cli.options.inputs import target_options, trips_option
from jaxresid.cli.options.output import Output, output_options
from jaxresid.cli.options.places import asks_compiler, budget_of, budget_option, placed
from jaxresid.cli.options.request import Request
from jaxresid.cli.options.words import words_of
from jaxresid.cli.resolve import provide_devices, resolve
from jaxresid.cli.verify_edit import verify, with_second_process
from jaxresid.xla.places import memory_of, why_unavailable


@command(
    examples=(
        (
            "what would make it fit into 12 GiB, or into an H100?",
            "jaxresid plan train.py:loss --budget 12GiB",
        ),
        (
            "the same as an edit of the source, which nothing writes",
            "jaxresid plan train.py:loss --budget gpu:h100 --diff",
        ),
        (
            "the same as nn.remat of the classes, to paste",
            "jaxresid plan train.py:loss --budget 12GiB --emit linen",
        ),
        (
            "the largest batch per second that fits",
            "jaxresid plan train.py:loss --batch 8..64 --maximize throughput",
        ),
    )
)
@target_options
@trips_option
@output_options(("text", "json", "html", "svg", "perfetto"))
@budget_option("what a program can have of one device of --on")
@option(
    "--microbatches",
    callback=batches.counts,
    metavar="N",
    help="In how many microbatches the batch may go through, its gradients added up in a scan: a"
    " number, several (1,4) or a range (1..16), of which those are tried that divide the batch."
    "  [default: 1]",
)
@option(
    "--minimize",
    type=click.Choice(get_args(Minimized)),
    help="recompute: the FLOPs that are run again. time: the estimated time of an item of the"
    " batch, transfers included. memory: the peak.  [default: recompute, with --offload time]",
)
@option(
    "--maximize",
    type=click.Choice(get_args(Maximized)),
    help="throughput: the items of the batch per second, estimated as the time. batch: the largest"
    " size of --batch that fits; a range then has all multiples of its first number.  [default: of"
    " a program without a gradient and several sizes, batch]",
)
@option(
    "--offload",
    is_flag=True,
    help="Allow moving values to the host, and minimise the estimated time, transfers included,"
    " instead of the recomputed FLOPs.",
)
@option("--diff", "diff_", is_flag=True, help="Print the edit to the source as a diff.")
@option(
    "--write",
    "write_",
    is_flag=True,
    help="Edit the source, but only if tracing the edited code gives the planned figures, and XLA"
    " confirms the plan, where the compiler of --on is installed.",
)
@option(
    "--emit",
    type=click.Choice(get_args(Framework)),
    help="Print the plan as settings of this framework, on its classes and methods or in its"
    " configuration, in place of an edit where they are called, and trace the target with them.",
)
@functools.partial(compile_options, compiles_unasked=True)
def plan(
    request: Request,
    output: Output,
    budget: str | None,
    microbatches: tuple[int, ...],
    minimize: Minimized | None,
    maximize: Maximized | None,
    offload: bool,
    diff_: bool,
    write_: bool,
    emit: Framework | None,
    compile_: bool,
    compiling: CompilingOptions,
) -> int:
    """Plan the cheapest checkpoints that fit a memory budget.

    TARGET, a loss or any other program, is module:function, path/to/file.py:function or a
    name from pyproject.toml; it is traced, not run. Prints which places to checkpoint, with which
    policies, which values to save, and the code to write; -f svg draws the plans that no other
    beats by peak and recomputation, -f perfetto when each value is live, before and with the plan,
    for ui.perfetto.dev. Peaks are estimates; with --compile XLA confirms the plan: it compiles what
    is proposed and, where that needs more, what is proposed then, at most six times. For a CPU,
    where peaks are not estimated, it always does, at most twenty times. Exits 0 if the plan fits, 1
    if nothing does, if an estimate is too close to tell or the code of the plan cannot be traced, 2
    if something went wrong. Ctrl-C ends the search: the best plan found so far is printed, nothing
    is written, and the exit code is 130.
    """
    since = time.time()
    context = click.get_current_context()
    own = {
        "budget": budget,
        "microbatches": microbatches,
        "minimize": minimize,
        "maximize": maximize,
        "offload": offload,
    }
    if minimize and maximize:
        raise click.UsageError("--minimize and --maximize cannot be combined: use one of them")
    if diff_ and write_:
        raise click.UsageError("--diff shows the edit and --write makes it: choose one")
    if emit and (diff_ or write_):
        raise click.UsageError("--emit prints other code than --diff and --write: choose one")
    if (diff_ or emit) and output.format != "text":
        what = "--diff prints a diff" if diff_ else "--emit prints code"
        raise click.UsageError(f"{what}, not {output.format}; leave out --format")
    wanted_nbytes = None if budget is None else budget_of(request, budget)
    request, (place,) = placed(request, compiles=False)
    nbytes = memory_of(place) if wanted_nbytes is None else wanted_nbytes
    unavailable = why_unavailable(place)
    if compile_ and unavailable:
        raise InputsError(unavailable)
    confirms = compile_ or place.kind == "cpu" or (write_ and not unavailable)
    request, _ = placed(request, compiles=confirms)
    with showing_progress(f"tracing {request.target}", quiet=output.quiet) as say:
        from jaxresid.advice.plan.confirmation import compiles_for
        from jaxresid.advice.plan.joint.api import aim_of
        from jaxresid.advice.plan.joint.configurations import Configurations, Grid
        from jaxresid.advice.plan.joint.joint import jointly_drafted
        from jaxresid.advice.plan.source import writing

        def at(batch: int | None, mesh: str | None) -> Request:
            chosen = replace(request, batch=request.batch.at(batch))
            return chosen if mesh is None else replace(chosen, mesh=(mesh,))

        batches.check_specs((*request.arg, *request.kwarg), request.batch)
        provide_devices(request.mesh)
        result, edits = jointly_drafted(
            Configurations(
                Grid(
                    request.batch.listed,
                    microbatches,
                    request.mesh,
                    request.batch.every,
                    request.batch.name,
                ),
                lambda batch, mesh: resolve(at(batch, mesh)),
            ),
            place,
            nbytes,
            aim=aim_of(minimize, maximize),
            offload=offload,
            progress=say,
            # Nobody edits the code of MaxText: its settings are traced instead.
            checks=lambda check, case: (
                None
                if emit == "maxtext"
                else with_second_process(check, at(case.batch, case.mesh), case.microbatches)
            ),
            compiles=compiles_for(
                place, settings(compiling), limit_s=limit_s(compiling), progress=say
            )
            if confirms
            else None,
            keeps_interrupted=True,
            lifetimes=output.format == "perfetto"
            or (output.format == "html" and not asks_compiler([place])),
            words=(*request.words, *words_of(context, own, own)),
        )
        if not result.target.has_gradient and (diff_ or write_ or emit):
            flag = "--diff" if diff_ else "--write" if write_ else "--emit"
            raise InputsError(
                f"{flag} is for checkpoints, and {result.target.name} takes no gradient: there is"
                " nothing to checkpoint; leave it out"
            )
        if not result.interrupted:
            can_apply = result.is_within and not write_
            can_apply = can_apply and not (result.unwritten or result.is_untraced)
            keep_result("plan", request, result, since=since, edits=edits if can_apply else ())
        chosen = result.selection.configuration
        if result.interrupted or not (result.is_within and (diff_ or write_)):
            edits = ()
        elif result.unwritten:
            lines = ["the plan cannot be written:", *result.unwritten]
            raise InputsError("\n  ".join(lines))
        elif result.is_untraced:
            outcome = "shown as a diff" if diff_ else "written"
            raise InputsError(f"the plan is not verified; nothing was {outcome}: {result.doubt}")
        if edits and write_ and confirms and not result.confirmed:
            reasons = "\n  ".join(
                ("XLA did not confirm the plan; nothing was written", *result.warnings)
            )
            raise InputsError(reasons)
        if edits and write_:
            say("tracing the edited code")
            verify(result, edits, at(chosen.batch, chosen.mesh))
        shown = None
        if emit and result.is_within and not result.interrupted:
            say("tracing with the settings")
            shown = emitted(result, emit, at(chosen.batch, chosen.mesh))
    from jaxresid.render.tables.plan import render_plan, verdict_text

    if write_ and edits:
        writing.write(edits)
    if diff_ or emit:
        text = writing.diff(edits) if diff_ else shown.text if shown else ""
        for line in (
            verdict_text(shown.plan if shown else result),
            *(shown.remarks if shown else ()),
        ):
            tell(f"jaxresid: {line}")
        if text:
            output.write(text, verbatim=True)
    elif output.format != "perfetto" or result.lifetimes:
        output.show(result, lambda: render_plan(result, output.encoding))
    if result.interrupted:
        left_out = output.format == "perfetto"
        outcome = "nothing is written" if left_out else "this is the best plan found so far"
        tell(f"jaxresid: interrupted; {outcome}")
        return EXIT_INTERRUPTED
    if write_:
        written = ", ".join(edit.display_path for edit in edits) or "nothing"
        unconfirmed = f", unconfirmed: {unavailable}" if edits and not confirms else ""
        tell(f"jaxresid: {written} written{unconfirmed}")
    if shown is not None:
        return 0 if shown.fits else 1
    return 0 if result.fits and not result.is_untraced else 1
