"""Show the code that a plan asks for as text: the lines that its edit changes."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jaxresid.results import PlannedPart

if TYPE_CHECKING:
    from jaxresid.advice.plan.source.file_edits import FileEdit


def code(edits: Sequence[FileEdit]) -> tuple[str, ...]:
    """Return what to write as text, a block for each stretch of lines that changes.

    A block holds the lines as they are to be, and where they go:
    `x = jax.checkpoint(block)(p, x)  # model.py:42`. Lines that are only removed are shown as such.
    """
    return tuple(block for edit in edits for block in _blocks(edit))


def _blocks(edit: FileEdit) -> Iterator[str]:
    old, new = (raw.decode("utf-8-sig", "replace").split("\n") for raw in (edit.old, edit.new))
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for what, start, stop, new_start, new_stop in matcher.get_opcodes():
        if what == "equal":
            continue
        gone, lines = old[start:stop], new[new_start:new_stop]
        where = f"{edit.display_path}:{start + 1}"
        if not lines:
            shown = " ".join(" ".join(gone).split())
            yield f"# without  {shown}  # {where}"
        elif len(gone) == len(lines):
            for at, line in enumerate(lines, start + 1):
                if line != old[at - 1]:
                    yield _block([line], f"{edit.display_path}:{at}")
        elif gone:
            yield _block(lines, where + (f"-{stop}" if stop > start + 1 else ""))
        else:
            following = " ".join("".join(old[start : start + 1]).split())
            yield _block(lines, f"{where}, new" + (f", before  {following}" if following else ""))


def _block(lines: Sequence[str], where: str) -> str:
    stripped = [line.rstrip() for line in lines]
    while len(stripped) > 1 and not stripped[-1]:
        stripped.pop()
    while len(stripped) > 1 and not stripped[0]:
        del stripped[0]
    indent = min((len(t) - len(t.lstrip()) for t in stripped if t), default=0)
    first, *rest = (text[indent:] for text in stripped)
    if not rest:
        return f"{first}  # {where}"
    return "\n".join([f"# {where}", first, *rest])


def merged(parts: Sequence[PlannedPart]) -> tuple[PlannedPart, ...]:
    """Return the parts, with neighbours that are treated alike merged into one."""
    found: list[PlannedPart] = []
    for part in parts:
        last = found[-1] if found else None
        if last is not None and treatment(last) == treatment(part):
            calls = last.calls + part.calls
            found[-1] = PlannedPart(calls, part.checkpointed, part.policy, last.values)
        else:
            found.append(part)
    return tuple(found)


def treatment(part: PlannedPart) -> tuple[bool, str | None]:
    """Return whether a part's calls are checkpointed, and under which policy."""
    return part.checkpointed, part.policy if part.checkpointed else None
