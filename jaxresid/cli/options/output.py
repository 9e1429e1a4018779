"""Define the options of how an answer is shown, shared by every command."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from jaxresid.base.errors import InputsError
from jaxresid.cli.help import Group, option, options
from jaxresid.cli.main import check_output, encoding_of, rendered, write, write_binary

if TYPE_CHECKING:
    from rich.console import RenderableType

# Format -> the suffixes of files of it. A suffix of several stands for the first one that a command
# has, in the command's order.
_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "text": (".txt",),
    "concise": (".txt",),
    "jax": (".txt",),
    "github": (".txt",),
    "json": (".json",),
    "sarif": (".sarif", ".json"),
    "gitlab": (".json",),
    "rdjson": (".json",),
    "lsp": (".json",),
    "json-lines": (".jsonl", ".ndjson"),
    "junit": (".xml",),
    "markdown": (".md",),
    "svg": (".svg",),
    "html": (".html", ".htm"),
    "pprof": (".pb.gz", ".pprof"),
    "perfetto": (".pftrace", ".perfetto-trace"),
}
_KNOWN = frozenset(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes)
# These are no text.
_BINARY = frozenset({"pprof", "perfetto"})


color_option = option(
    "--color",
    type=click.Choice(("auto", "always", "never")),
    default="auto",
    group=Group.OUTPUT,
    help="Whether to use colours.  [default: auto, on a terminal unless NO_COLOR is set]",
)
# The command line itself obeys it.
traceback_option = option(
    "--traceback",
    is_flag=True,
    expose_value=False,
    group=Group.GENERAL,
    help="Show the tracebacks of errors.",
)


class Output(NamedTuple):
    """How an answer is shown; a file of None or `-` is stdout, `quiet` leaves errors on stderr."""

    format: str
    file: str | None
    color: str
    quiet: bool

    @property
    def encoding(self) -> str:
        """The encoding of what the answer goes to."""
        return encoding_of(self.file)

    def show(self, result: Any, render: Callable[[], RenderableType], *picture: Any) -> None:
        """Write a result in the format; `render` makes text, `picture` says what svg draws."""
        match self.format:
            case "json":
                self.write(result.to_json())
            case "html":
                self.write(result.to_page(), verbatim=True)
            case "svg":
                try:
                    self.write(result.to_svg(*picture))
                except ValueError as e:  # there is nothing to draw
                    raise InputsError(str(e)) from e
            case "pprof":
                self.write_binary(result.to_pprof())
            case "perfetto":
                self.write_binary(result.to_perfetto())
            case _:
                self.write(self.rendered(render()))

    def rendered(self, renderable: RenderableType) -> str:
        """Return a rich renderable as text, coloured where colours are wanted."""
        return rendered(renderable, self.file, self.color)

    def write(self, text: str, *, verbatim: bool = False) -> None:
        """Write the finished text, as `jaxresid.cli.main.write` does."""
        write(text, self.file, verbatim=verbatim)

    def write_binary(self, data: bytes) -> None:
        """Write finished bytes, as `jaxresid.cli.main.write_binary` does."""
        write_binary(data, self.file)


def output_options(formats: Sequence[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds -f, -o, --color, -q and --traceback.

    The command receives them as one `Output`, `output`.

    Args:
      formats: the formats of the command, its default first.
    """
    add = options(
        format_option(
            "format_",
            formats=formats,
            help=f"The format.  [default: by the suffix of -o, else {formats[0]}]",
        ),
        output_option(callback=_checked),
        color_option,
        option(
            *("-q", "--quiet"),
            is_flag=True,
            group=Group.OUTPUT,
            help="Print no progress and no remarks on stderr, only errors.",
        ),
        traceback_option,
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(
            *args: Any,
            format_: str | None,
            output: str | None,
            color: str,
            quiet: bool,
            **others: Any,
        ) -> Any:
            chosen = format_ or format_of(output, formats, formats[0])
            if chosen in _BINARY and output in (None, "-") and sys.stdout.isatty():
                raise click.UsageError(
                    f"-f {chosen} is no text for a terminal: write it to a file with -o, or to a"
                    " pipe"
                )
            return command(*args, output=Output(chosen, output, color, quiet), **others)

        return add(wrapped)

    return decorate


def format_option(*names: str, formats: Sequence[str], **attributes: Any) -> Callable[..., Any]:
    """Return a decorator that adds --format, with further names and the name of its parameter."""
    return option(
        *("-f", "--format", *names), type=click.Choice(formats), group=Group.OUTPUT, **attributes
    )


def output_option(*names: str, **attributes: Any) -> Callable[..., Any]:
    """Return a decorator that adds --output, with further names."""
    return option(
        *("-o", "--output", *names),
        type=click.Path(allow_dash=True),
        metavar="FILE",
        group=Group.OUTPUT,
        help="Write to this file instead of stdout.",
        **attributes,
    )


def format_of(file: str | None, formats: Sequence[str], default: str) -> str:
    """Return the format that the suffix of a file stands for, else the default.

    The default is also taken where files of it may have a suffix that stands for several formats.
    """
    name = PurePath(file or "").name.lower()
    suffix = next((suffix for suffix in _KNOWN if name.endswith(suffix)), "")
    if not suffix or suffix in _SUFFIXES.get(default, ()):
        return default
    format_ = next((name for name in formats if suffix in _SUFFIXES.get(name, ())), None)
    if format_ is None:
        raise click.UsageError(
            f"-o {file}: {suffix} is none of this command's formats; write which is meant:"
            f" -f {', '.join(formats)}"
        )
    return format_


def _checked(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    check_output(value)  # what goes there may take minutes to make
    return value
