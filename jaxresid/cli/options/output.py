"""Define the options of how an answer is shown, shared by every command."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from jaxresid.base.errors import InputsError
from jaxresid.cli.help import Group, option
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


class Output(NamedTuple):
    """How an answer is shown.

    Attributes:
      format: the format, one of the command's.
      file: the file to write to; None or `-` means stdout.
      color: when to colour text: `auto`, `always` or `never`.
      quiet: whether stderr has errors only: no progress, no remarks.
    """

    format: str
    file: str | None
    color: str
    quiet: bool

    @property
    def encoding(self) -> str:
        """The encoding of what the answer goes to."""
        return encoding_of(self.file)

    def rendered(self, renderable: RenderableType) -> str:
        """Return a rich renderable as text, coloured where colours are wanted."""
        return rendered(renderable, self.file, self.color)

    def write(self, text: str, *, verbatim: bool = False) -> None:
        """Write the finished text, as `jaxresid.cli.main.write` does.

        Raises:
          JaxresidError: The file cannot be written.
        """
        write(text, self.file, verbatim=verbatim)

    def write_binary(self, data: bytes) -> None:
        """Write finished bytes, as `jaxresid.cli.main.write_binary` does.

        Raises:
          JaxresidError: The file cannot be written.
        """
        write_binary(data, self.file)


def picture_of(draw: Callable[[], str]) -> str:
    """Return a picture.

    Args:
      draw: a method of a result that returns it, or raises ValueError where there is nothing to
        draw.

    Raises:
      InputsError: There is nothing to draw.
    """
    try:
        return draw()
    except ValueError as e:
        raise InputsError(str(e)) from e


def output_options(formats: Sequence[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds -f, -o, --color, -q and --traceback.

    The command receives them as one `Output`, `output`.

    Args:
      formats: the formats of the command, its default first.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @output_option(callback=_checked)
        @color_option
        @option(
            *("-q", "--quiet"),
            is_flag=True,
            group=Group.OUTPUT,
            help="Print no progress and no remarks on stderr, only errors.",
        )
        @traceback_option
        @functools.wraps(command)
        def wrapped(
            *args: Any,
            format_: str | None,
            output: str | None,
            color: str,
            quiet: bool,
            **options: Any,
        ) -> Any:
            chosen = format_ or format_of(output, formats, formats[0])
            if chosen in _BINARY and output in (None, "-") and sys.stdout.isatty():
                raise click.UsageError(
                    f"-f {chosen} is no text for a terminal: write it to a file with -o, or to a"
                    " pipe"
                )
            return command(*args, output=Output(chosen, output, color, quiet), **options)

        added: Callable[..., Any] = format_option(
            "format_",
            formats=formats,
            help=f"The format.  [default: by the suffix of -o, else {formats[0]}]",
        )(wrapped)
        return added

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


def color_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --color."""
    return option(
        "--color",
        type=click.Choice(("auto", "always", "never")),
        default="auto",
        group=Group.OUTPUT,
        help="Whether to use colours.  [default: auto, on a terminal unless NO_COLOR is set]",
    )(command)


def traceback_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --traceback, which the command line itself obeys."""
    return option(
        "--traceback",
        is_flag=True,
        expose_value=False,
        group=Group.GENERAL,
        help="Show the tracebacks of errors.",
    )(command)


def format_of(file: str | None, formats: Sequence[str], default: str) -> str:
    """Return the format that the suffix of a file stands for.

    Args:
      file: the file; None or `-`: stdout.
      formats: the formats that there are.
      default: the format where the suffix tells none. It is also taken where files of it may have
        the suffix, which then stands for several formats.

    Raises:
      click.UsageError: The suffix is that of a format, but of none of these.
    """
    name = PurePath(file or "").name.lower()
    suffix = next((each for each in _KNOWN if name.endswith(each)), "")
    if not suffix or suffix in _SUFFIXES.get(default, ()):
        return default
    found = next((each for each in formats if suffix in _SUFFIXES.get(each, ())), None)
    if found is None:
        raise click.UsageError(
            f"-o {file}: {suffix} is none of this command's formats; write which is meant:"
            f" -f {', '.join(formats)}"
        )
    return found


def _checked(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    check_output(value)  # what goes there may take minutes to make
    return value


__all__ = [
    "Output",
    "color_option",
    "format_of",
    "format_option",
    "output_option",
    "output_options",
    "picture_of",
    "traceback_option",
]
