"""`jaxresid oom`: say what filled the memory of a program that ran out of it, by its log."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jaxresid.cli.help import command, option
from jaxresid.cli.main import showing_progress
from jaxresid.cli.options.inputs import TargetOptions, inspected, target_options
from jaxresid.cli.options.named_targets import optional_target
from jaxresid.cli.options.output import Output, output_options
from jaxresid.cli.options.places import placed

if TYPE_CHECKING:
    from jaxresid.advice.oom.ways import Names
    from jaxresid.model import OomReport, Report


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
def oom(options: TargetOptions | None, log: str | None, output: Output, verbose: bool) -> int:
    """Say what filled the memory of a program that ran out of it, and what to try.

    LOG is what the program printed, on a TPU, a GPU or a CPU, with or without the prefixes of
    launchers; or the folder that XLA was told to dump into; `-` or nothing reads stdin. With
    TARGET, the function or training step that ran out, the buffers are matched to its residuals.
    Nothing is compiled or run. Exits 0 if the cause is known, 1 if not, 2 if LOG cannot be read.
    """
    report = _report(options, output) if options is not None else None
    result = _result(log, report, _names(options))
    if output.format == "json":
        text = result.to_json()
    else:
        from jaxresid.render.oom.text import render_oom

        text = output.rendered(render_oom(result, verbose=verbose))
    output.write(text)
    return 1 if result.cause == "unknown" else 0


def _report(options: TargetOptions, output: Output) -> Report:
    """Return the report of the target."""
    options, _ = placed(options, compiles=False)
    with showing_progress(f"tracing {options.target}", quiet=output.quiet):
        return inspected(options).report


def _names(options: TargetOptions | None) -> Names:
    """Return what commands are written with, as far as the command line says."""
    from jaxresid.advice.oom.ways import Names

    places = click.get_current_context().params.get("on") or ()
    target = Names().target if options is None else " ".join(_as_typed(options))
    return Names(target, places[0] if places else Names().place)


def _as_typed(options: TargetOptions) -> Iterator[str]:
    """Yield the words of a command line that name the target and its inputs."""
    yield options.reference
    if options.name is not None:  # its table has the rest
        return
    given = [
        *(("--arg", spec) for spec in options.arg),
        *(("--kwarg", spec) for spec in options.kwarg),
        *(("--inputs", name) for name in (options.inputs,) if name),
        *(("--loss", loss) for loss in (options.loss,) if loss),
        *(("--optimizer", optimizer) for optimizer in (options.optimizer,) if optimizer),
        *(("--mode", mode) for mode in (options.mode,) if mode != "auto"),
        *(("--argnums", ",".join(map(str, n))) for n in (options.argnums,) if n is not None),
    ]
    yield from (shlex.join(pair) for pair in given)
    yield from (
        flag
        for flag, is_set in (
            ("--build", options.build),
            ("--has-aux", options.has_aux),
            ("--concrete-inputs", options.concrete_inputs),
        )
        if is_set
    )


def _result(log: str | None, report: Report | None, names: Names) -> OomReport:
    from jaxresid.advice.oom.oom import oom_of_lines, oom_of_path

    if log is not None and log != "-":
        return oom_of_path(Path(log), report, names)
    if sys.stdin.isatty():
        raise click.UsageError("give a log: jaxresid oom train.log, or COMMAND 2>&1 | jaxresid oom")
    with io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace") as lines:
        return oom_of_lines(lines, report, names)
