"""`jaxresid diff`: print what two versions of a program keep, cost and take differently."""

from __future__ import annotations

from typing import Any

import click

from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.cli.completion import values
from jaxresid.cli.help import command, option
from jaxresid.cli.main import EXIT_FAILED, showing_progress, tell
from jaxresid.cli.options.inputs import input_options, mode_option, trips_option
from jaxresid.cli.options.output import Output, output_options
from jaxresid.cli.options.places import place_options
from jaxresid.cli.options.sides import AskedSides, label_of, sides_of, traced
from jaxresid.cli.options.typed import typed_arguments


@command(
    examples=(
        (
            "the working tree against a branch, all targets of pyproject.toml",
            "jaxresid diff main",
        ),
        (
            "two revisions, as Markdown for a comment",
            "jaxresid diff main HEAD --target train.py:loss -f markdown",
        ),
        (
            "two saved reports",
            "jaxresid diff before.json after.json",
        ),
        (
            "what a flag of JAX would change, checkpoint by checkpoint",
            "jaxresid diff --target train.py:loss --flag jax_remat3=1",
        ),
        (
            "the JAX of another environment",
            "jaxresid diff --target train.py:loss --python ../new/bin/python",
        ),
        ("two functions", "jaxresid diff train.py:loss train.py:faster_loss"),
    )
)
@click.argument("a", required=False, shell_complete=values.sides)
@click.argument("b", required=False, shell_complete=values.sides)
@option(
    "--target",
    multiple=True,
    metavar="TARGET",
    shell_complete=values.targets,
    help="What to trace on both sides: module:function, path/to/file.py:function or a name from"
    " pyproject.toml. Repeat for more.  [default: all targets of pyproject.toml]",
)
@option(
    "--flag",
    multiple=True,
    metavar="NAME=VALUE",
    help="A flag of JAX for the second side: jax_remat3=1. Repeat for more.",
)
@option(
    "--python",
    type=click.Path(),
    metavar="PATH",
    help="The interpreter that traces the second side, or the folder of its environment. It needs"
    " JAX, not jaxresid.",
)
@option("--all", "all_", is_flag=True, help="Show every line and checkpoint that differs.")
@option(
    "--exit-code",
    is_flag=True,
    help="Exit 1 if a peak is more than 1 % higher, and 2 if the peaks cannot be compared.",
)
@mode_option
@place_options
@input_options
@trips_option
@output_options(("text", "json", "html", "markdown"))
def diff(
    output: Output,
    a: str | None,
    b: str | None,
    target: tuple[str, ...],
    flag: tuple[str, ...],
    python: str | None,
    all_: bool,
    exit_code: bool,
    **options: Any,
) -> int:
    """Show what changed between two versions: peak, kept bytes, recompute and verdicts, by line.

    A and B are saved reports (FILE.json), revisions of git, or targets. B is the working tree if it
    is not given; with --flag or --python it is A, under that flag or interpreter, and A may be left
    out as well. main...HEAD compares HEAD with where it left main. A revision is checked out to a
    temporary folder and traced there. Code that moved, was renamed, reformatted or put into a
    helper is followed, and is no difference. Exits 0, or 2 if something went wrong.
    """
    arguments = typed_arguments(click.get_current_context(), tuple(options))
    pairs = sides_of(AskedSides(a, b, target, python, flag, arguments))
    if output.format == "html" and len(pairs) > 1:
        raise click.UsageError("-f html is a page of one target: name one")
    with showing_progress("comparing", quiet=output.quiet) as say:
        reports = traced(pairs, say)
        from jaxresid.advice.diff.difference import diff as difference

        found = [
            difference(*each, labels=(label_of(one), label_of(other)))
            for each, (one, other) in zip(reports, pairs, strict=True)
            if not isinstance(each, JaxresidError)
        ]
    if output.format == "json":
        from jaxresid.serialization.encoding import json_documents

        text = json_documents(found)
    elif output.format == "html":
        text = found[0].to_page() if found else ""
    elif output.format == "markdown":
        from jaxresid.render.diff.markdown import render_markdown

        text = render_markdown(found)
    else:
        from jaxresid.render.diff.text import render_differences

        text = output.rendered(render_differences(found, all=all_))
    if text:
        output.write(text, verbatim=output.format == "html")
    failed = [each for each in reports if isinstance(each, JaxresidError)]
    if exit_code:
        failed += [
            InputsError(
                f"--exit-code: the peaks of {each.after.target.name} cannot be compared; trace both"
                " for one place whose peak is known, such as --on gpu:h100"
            )
            for each in found
            if each.peak_growth_nbytes is None
        ]
    for error in failed:
        tell(f"jaxresid: error: {error}")
    if failed:
        return EXIT_FAILED
    return int(exit_code and any(each.has_higher_peak for each in found))
