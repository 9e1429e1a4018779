"""Say which functions a file has where TARGET names only the file, and how to ask about one."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path

from jaxresid.targets.listing import Candidate, candidates_of, file_of

_WIDTH = 79
# How many functions of a file are listed.
_MOST = 12


def function_list(command: str, text: str, folder: str | None = None) -> str | None:
    """Return the functions of the file or module that is all that TARGET names, as a message.

    None where the text names neither a file nor a module without a function.
    """
    place = text.rstrip(":")
    path = file_of(place, (".",) if folder is None else (folder, "."))
    if path is None:
        return None
    return message(command, place, path, candidates_of(path))


def message(command: str, place: str, path: Path, candidates: Sequence[Candidate]) -> str:
    """Return the message that lists functions, that to show how to call first."""
    if not candidates:
        return (
            f"{place} names no function, and {path} defines none with parameters; write"
            f" module:function, e.g. {place}:loss"
        )
    width = max(len(candidate.name) for candidate in candidates[:_MOST])
    lines = [f"{place} names no function; there are (the file was read, not run):"]
    lines += [_row(candidate, width) for candidate in candidates[:_MOST]]
    if len(candidates) > _MOST:
        lines.append(f"  and {len(candidates) - _MOST} more")
    first = candidates[0]
    target = f"{place}:{first.name}"
    if first.builds or first.inputs is not None:
        words = ["jaxresid", command, target, *["--build"] * first.builds]
        return "\n".join([*lines, "write, for example:", f"  {shlex.join(words)}"])
    specs = " --arg SPEC" * max(len(first.required), 1)
    lines += textwrap.wrap(
        f"write, for example, {target}{specs}, with a SPEC such as f32[64,512] for each argument,"
        f" or define {first.name}_inputs(), which returns them",
        _WIDTH,
    )
    return "\n".join(lines)


def _row(candidate: Candidate, width: int) -> str:
    what = candidate.signature
    if candidate.builds:
        what = "returns a function and its arguments: --build"
    elif candidate.inputs:
        what += f", inputs from {candidate.inputs}()"
    row = f"  {candidate.name:{width}}  {what}"
    return row if len(row) <= _WIDTH else f"{row[: _WIDTH - 3]}..."
