"""Run the command line, from argv to exit code: errors, interrupts, output."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxresid.base.crashes import raising
from jaxresid.base.errors import JaxresidError
from jaxresid.base.home import FOLDER
from jaxresid.base.interrupts import reraising_interrupts
from jaxresid.base.library_logs import keeping_logs
from jaxresid.base.progress import Done, Progress, Stage
from jaxresid.base.text.safe_text import inert, lines, visible
from jaxresid.base.text_files import is_device, write_bytes, write_text

if TYPE_CHECKING:
    from rich.console import RenderableType

EXIT_FAILED = 2
EXIT_INTERRUPTED = 130
# The variable by which the script of `jaxresid completion` asks.
_COMPLETION = "_JAXRESID_COMPLETE"
_PROGRESS_AFTER_S = 1.0
_PROGRESS_EVERY_S = 0.1
# A disk that is full or read-only, too many open files, no memory left for the kernel.
_OF_THE_MACHINE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO}
)
# What stands for the signs of our texts where the encoding has none of them.
_PLAIN = str.maketrans({"·": "-", "×": "x", "→": ">", "›": ">"})


def run(argv: Sequence[str]) -> int:
    """Run the command line and return its exit code.

    Returns:
      0 if it reported, 2 if it could not (with one clear message on stderr), 130 if it was
      interrupted; a command may return a code of its own.
    """
    try:
        with reraising_interrupts(), keeping_logs():
            return _run(argv)
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED


def _run(argv: Sequence[str]) -> int:
    try:
        with raising("--traceback" in argv):
            code = _called(argv)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.ClickException as e:
        if isinstance(e.message, str):
            e.message = lines(e.message)  # type: ignore[misc]
        e.show()
        return e.exit_code
    except JaxresidError as e:
        if "--traceback" in argv:
            _print_traceback()
        tell(f"jaxresid: error: {e}")
        return EXIT_FAILED
    except (KeyboardInterrupt, click.Abort):
        raise
    except BaseException as e:  # the user's code may raise anything
        if "--traceback" in argv:
            _print_traceback()
        tell(_unexpected(e))
        return EXIT_FAILED


def _called(argv: Sequence[str]) -> object:
    """Return what the command returns."""
    from jaxresid.cli import cli

    if _COMPLETION in os.environ:
        from jaxresid.cli.completion.answer import answer

        sys.stdout.write(answer(cli, argv, os.environ))
        return 0
    return cli.main(args=list(argv), prog_name="jaxresid", standalone_mode=False)


def _print_traceback() -> None:
    import traceback

    tell(traceback.format_exc().rstrip("\n"))


def tell(text: str) -> None:
    """Write a message to stderr."""
    click.echo(lines(text), err=True)


def _unexpected(error: BaseException) -> str:
    """Return the message for an exception that nobody foresaw.

    It is a bug of ours, unless it was raised in a file of the user's.
    """
    import sysconfig
    import traceback

    if isinstance(error, OSError) and (reason := _of_the_machine(error)):
        return f"jaxresid: error: {reason}"
    try:
        first = (str(error).strip().splitlines() or [""])[0]
    except Exception:  # even that is the user's code
        first = ""
    what = f"{type(error).__name__}: {first}" if first else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    ours = FOLDER.rstrip(os.sep)
    others = [ours, *(os.path.abspath(sysconfig.get_path(n)) for n in ("stdlib", "purelib"))]
    if frames and not frames[-1].filename.startswith(
        ("<", *(f"{path}{os.sep}" for path in others))
    ):
        place = frames[-1]
        where = f"{os.path.relpath(place.filename)}, line {place.lineno}, in {place.name}"
        return f"jaxresid: error: the inspected code raises {what} ({where})"
    return (
        f"jaxresid: internal error: {what}\n"
        "  this is a bug in jaxresid; --traceback shows where, please report it"
    )


def _of_the_machine(error: OSError) -> str:
    """Return what is wrong with the machine that an error comes from; '' for any other error."""
    try:
        os.getcwd()
    except OSError as e:
        return f"the working directory cannot be read: {e.strerror}"
    return str(error) if error.errno in _OF_THE_MACHINE else ""


@contextlib.contextmanager
def showing_progress(what: str, *, quiet: bool = False) -> Iterator[Progress]:
    """Show progress on stderr during the context, and send what the user's code prints to stderr.

    `what` is shown with the elapsed time after a second on a terminal; elsewhere what begins
    and what is done is a line each. Libraries' output goes to stderr too, so that stdout holds only
    ours.

    Args:
      what: The words that are shown at first.
      quiet: Whether to show nothing.

    Yields:
      A function that changes the words that are shown.
    """
    shown = _nothing if quiet else _animated if sys.stderr.isatty() else _line_by_line
    with contextlib.redirect_stdout(sys.stderr), _descriptor_to_stderr(), shown(what) as say:
        yield say


@contextlib.contextmanager
def _descriptor_to_stderr() -> Iterator[None]:
    """Send to stderr what is printed past Python as well, during the context.

    HiGHS 1.12 does so, told to be quiet or not (ERGO-Code/HiGHS#2783).
    """
    try:
        os.fstat(2)
        kept = os.dup(1)
    except OSError:  # one of them is closed
        yield
        return
    os.dup2(2, 1)
    try:
        yield
    finally:
        import ctypes

        with contextlib.suppress(OSError, TypeError, AttributeError):
            ctypes.CDLL(None).fflush(None)  # C has a buffer of its own
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def _nothing(what: str) -> Iterator[Progress]:
    yield lambda text: None


@contextlib.contextmanager
def _line_by_line(what: str) -> Iterator[Progress]:
    """Print what begins and what is done, each a line; all else would change too often."""
    begun = set()

    def say(text: str) -> None:
        if isinstance(text, Done) or (isinstance(text, Stage) and text not in begun):
            tell(f"jaxresid: {visible(text)}")
        if isinstance(text, Stage):
            begun.add(text)

    say(Stage(what))
    yield say


@contextlib.contextmanager
def _animated(what: str) -> Iterator[Progress]:
    """Show the last text and the elapsed time, redrawn until the end."""
    said = [what]
    import threading

    done = threading.Event()

    def show() -> None:
        if done.wait(_PROGRESS_AFTER_S):
            return
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        words = TextColumn("{task.description}", markup=False)
        columns = SpinnerColumn(), words, TimeElapsedColumn()
        # A descriptor of its own: libraries' logs are read from that of stderr for a while.
        with (
            open(os.dup(2), "w", encoding=sys.stderr.encoding) as terminal,
            Progress(*columns, console=Console(file=terminal), transient=True) as progress,
        ):
            task = progress.add_task(visible(said[-1]))
            while not done.wait(_PROGRESS_EVERY_S):
                progress.update(task, description=visible(said[-1]))

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield said.append
    finally:
        done.set()
        thread.join()


def write(text: str, output: str | None, *, verbatim: bool = False) -> None:
    """Write the finished text to stdout or, all or nothing, to a file.

    Args:
      text: The text.
      output: The file; None or `-` means stdout.
      verbatim: Whether to keep also lines that a CI service takes for commands, or that are the
        user's source, as they are.

    Raises:
      JaxresidError: The file cannot be written.
    """
    if not text.endswith("\n"):
        text += "\n"
    text = re.sub("[\ud800-\udfff]", "\ufffd", text) if verbatim else inert(text)
    if output is None or output == "-":
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # × in an ASCII locale is no reason to fail
        sys.stdout.write(text if _is_unicode(encoding_of(output)) else text.translate(_PLAIN))
        sys.stdout.flush()
        return
    write_text(output, text)


def write_binary(data: bytes, output: str | None) -> None:
    """Write finished bytes to stdout or, all or nothing, to a file.

    Args:
      data: The bytes.
      output: The file; None or `-` means stdout.

    Raises:
      JaxresidError: The file cannot be written.
    """
    if output is None or output == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    write_bytes(output, data)


def _is_unicode(encoding: str) -> bool:
    try:
        "".join(map(chr, _PLAIN)).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def check_output(output: str | None) -> None:
    """Check that a file can be written, as far as can be told without touching it.

    Raises:
      JaxresidError: As `write`.
    """
    if output in (None, "-"):
        return
    path = Path(os.path.realpath(output))
    if path.is_dir():
        found = errno.EISDIR
    elif not path.parent.is_dir():
        found = errno.ENOTDIR if path.parent.exists() else errno.ENOENT
    elif not os.access(path.parent, os.W_OK) and not is_device(output):
        found = errno.EACCES
    else:
        return
    raise JaxresidError(f"cannot write {output}: {os.strerror(found)}")


def rendered(renderable: RenderableType, output: str | None, color: str = "auto") -> str:
    """Return a rich renderable as text, as wide as the terminal, else $COLUMNS, else 80.

    Args:
      renderable: What to show.
      output: The file that the text is for; None or `-` means stdout.
      color: When to colour: `always`, `never`, or `auto`: on a terminal, not for pipes and files.
    """
    from rich.console import Console

    to_stdout = output is None or output == "-"
    is_terminal = to_stdout and sys.stdout.isatty()
    options: dict[str, Any] = {}
    if color == "always":
        options = {"force_terminal": True, "no_color": False, "color_system": "standard"}
    elif color == "never":
        options = {"force_terminal": False, "color_system": None}
    elif is_terminal:
        options["force_terminal"] = True
    elif not to_stdout:
        options["no_color"] = True
    console = Console(
        file=io.StringIO(), highlight=False, soft_wrap=False, width=_width(is_terminal), **options
    )
    console.print(renderable, crop=False)  # code to copy is not wrapped, and may be longer
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines)


def encoding_of(output: str | None) -> str:
    """Return the encoding of what the text goes to: stdout's, or UTF-8 for a file."""
    return sys.stdout.encoding or "ascii" if output in (None, "-") else "utf-8"


def use_color(choice: str, output: str | None) -> bool:
    """Return whether to colour: `always`, `never`, or `auto` (stdout a terminal, no NO_COLOR)."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return (output is None or output == "-") and sys.stdout.isatty()


def terminal_width(*, to_stdout: bool) -> int:
    """Return the terminal's width in columns, else $COLUMNS, else 80."""
    return _width(to_stdout and sys.stdout.isatty())


def _width(is_terminal: bool) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    if is_terminal:
        with contextlib.suppress(OSError):
            return os.get_terminal_size(sys.stdout.fileno()).columns
    return 80
