"""`jaxresid oom`: say what filled the memory of a program that ran out of it, by its log."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jaxresid.advice.oom.ways import Names
from jaxresid.cli.help import command, option
from jaxresid.cli.main import showing_progress
from jaxresid.cli.oom_names import names_of, on_place_of
from jaxresid.cli.options.inputs import target_options
from jaxresid.cli.options.named_targets import optional_target
from jaxresid.cli.options.output import Output, output_options
from jaxresid.cli.options.request import Request
from jaxresid.cli.resolve import inspected

if TYPE_CHECKING:
    from jaxresid.advice.oom.oom import Evidence


@command(
    examples=(
        ("what filled the memory, and what to try?", "jaxresid oom train.log"),
        ("from what was copied", "xclip -o | jaxresid oom"),
        ("which residuals are it?", "jaxresid oom train.log train.py:loss"),
        ("a dump: XLA_FLAGS=--xla_dump_to=dump python train.py", "jaxresid oom dump"),
    )
)
@click.argument("log", type=click.Path(allow_dash=True), required=False)
@optional_target
@target_options
@output_options(("text", "json"))
@option("-v", "--verbose", is_flag=True, help="Show every buffer, and what the log says.")
def oom(request: Request | None, log: str | None, output: Output, verbose: bool) -> int:
    """Say what filled the memory of a program that ran out of it, and what to try.

    LOG is what the program printed, on a TPU, a GPU or a CPU, with or without the prefixes of
    launchers; or the folder that XLA was told to dump into; `-` or nothing reads stdin. With
    TARGET, the function or training step that ran out, the buffers are matched to its residuals,
    and its peak and lines stand beside the log's figures. Nothing is compiled or run. Exits 0 if
    the cause is known, 1 if not, 2 if LOG cannot be read.
    """
    from jaxresid.advice.oom.oom import reported

    evidence = _evidence(log)
    report = names = None
    if request is not None and evidence.failures:
        request = on_place_of(evidence, request)
        with showing_progress(f"tracing {request.target}", quiet=output.quiet):
            report = inspected(request).report
        names = names_of(request)
    elif on := click.get_current_context().params.get("on"):
        names = Names(place=on[0])
    result = reported(evidence, report, names)
    from jaxresid.render.oom.text import render_oom

    output.show(result, lambda: render_oom(result, verbose=verbose))
    return 1 if result.cause == "unknown" else 0


def _evidence(log: str | None) -> Evidence:
    from jaxresid.advice.oom.oom import evidence_of_lines, evidence_of_path

    if log is not None and log != "-":
        return evidence_of_path(Path(log))
    if sys.stdin.isatty():
        raise click.UsageError("give a log: jaxresid oom train.log, or COMMAND 2>&1 | jaxresid oom")
    with io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace") as lines:
        return evidence_of_lines(lines)
