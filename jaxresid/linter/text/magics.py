"""Read a cell as IPython does: without indentation and prompts, its magics replaced by Python."""

from __future__ import annotations

import re
from typing import NamedTuple

from jaxresid.linter.text.lexer import LINE_END, logical_end

# Cell magics whose cell is Python that runs in the kernel: IPython's own, those of profilers, and
# of tools that run a cell where the others run.
_TRANSPARENT = frozenset(
    {
        *("capture", "debug", "prun", "time", "timeit"),
        *("memit", "mprun", "pyinstrument", "scalene", "snakeviz"),
        *("ipytest", "px", "residuals", "wandb"),
    }
)
_CELL_MAGIC = re.compile(r"(?:[ \t]*(?:#[^\r\n]*)?(?:\r\n|\r|\n))*+%%(\w*)")
# No Python statement starts with one of these; `/`, `,` and `;` are IPython's automatic calls.
_LINE_MAGIC = re.compile(r"[ \t]*([%!?/,;])")
_HELP = re.compile(
    r"[ \t]*%{0,2}[\w*][\w.*]*+(?:\[[^\]\r\n]*\][\w.*]*+)*+\?{1,2}[ \t]*(?:#[^\r\n]*)?(?=[\r\n]|\Z)"
)
_ASSIGNED = re.compile(
    r"""(?P<left>(?:[\w.,*:() \t-]|\[(?:[\w.:-]|"[^"\r\n]*"|'[^'\r\n]*')*+\])++=[ \t]*+)[!%]"""
)
# What help is asked for at the end of a line; the whole line is that question.
_ASKED = re.compile(r"[^\r\n'\"#]*[\w*\]]\?{1,2}[ \t]*(?:#[^\r\n]*)?(?=[\r\n]|\Z)")
_INDENT = re.compile(r"[ \t]+")
# Of pasted sessions: the prompt of a first line, and any.
_PROMPTS = (
    (re.compile(r">>>(?: |(?=[\r\n]|\Z))"), re.compile(r"(?:>>>|\.\.\.)(?: |(?=[\r\n]|\Z))")),
    (re.compile(r"In \[\d+\]: "), re.compile(r"(?:In \[\d+\]: |(?<![\s.])\s*+\.{3,}+: ?)")),
)
# Databricks: what the first line of a cell says of its language.
_OTHER_LANGUAGE = re.compile(r"\s*%(?:fs|md(?:-sandbox)?|r|scala|sh|sql)\b")


class MaskedCell(NamedTuple):
    """A cell's text as Python, row for row.

    Attributes:
      text: the text, magics replaced character for character.
      rows: the rows (1-based, of the cell) that hold magics or prompts.
      first: the first row before which text can be inserted.
      cuts: how much of each row's start is left out, its indentation or prompt.
    """

    text: str
    rows: frozenset[int]
    first: int
    cuts: tuple[int, ...]


def masked(text: str, *, of_databricks: bool = False) -> MaskedCell:
    """Return the Python of a cell, which on Databricks may begin with its language, `%sql`."""
    lines, cuts, is_prompted = _cut(text)
    cell = "".join(lines)
    cell_magic = _CELL_MAGIC.match(cell)
    is_other = cell_magic is not None and cell_magic[1] not in _TRANSPARENT
    if is_other or (of_databricks and _OTHER_LANGUAGE.match(cell)):
        return blanked(text)
    first = 1
    if cell_magic is not None:
        # The magic reads the lines below its own as a cell.
        above = len(LINE_END.findall(cell_magic.group())) + 1
        first = above + 1
        below, more, is_prompted = _cut("".join(lines[above:]))
        lines[above:] = below
        cuts[above:] = [cut + n for cut, n in zip(cuts[above:], more, strict=True)]
    replaced, rows = _without_magics("".join(lines))
    if is_prompted:
        rows = frozenset(range(1, len(cuts) + 1))
    return MaskedCell(replaced, rows, first, tuple(cuts))


def blanked(text: str) -> MaskedCell:
    """Return a cell of which nothing is Python."""
    count = len(LINE_END.findall(text))
    blank = re.sub(r"[^\r\n]", " ", text)
    return MaskedCell(blank, frozenset(range(1, count + 1)), count + 2, (0,) * count)


def _cut(text: str) -> tuple[list[str], list[int], bool]:
    """Return lines without indentation and prompts, how much was cut, and if there were prompts."""
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)
    written = [line for line in lines if line.strip()]
    if not written:
        return lines, [0] * len(lines), False
    indent = _INDENT.match(written[0])
    margin = indent.group() if indent else ""
    cuts = [len(margin) if line.startswith(margin) else 0 for line in lines]
    lines = [line[cut:] for line, cut in zip(lines, cuts, strict=True)]
    start = next(line for line in lines if line.strip())
    for initial, prompt in _PROMPTS:
        if initial.match(start):
            prompts = [prompt.match(line) for line in lines]
            widths = [match.end() if match else 0 for match in prompts]
            lines = [line[width:] for line, width in zip(lines, widths, strict=True)]
            return lines, [cut + w for cut, w in zip(cuts, widths, strict=True)], True
    return lines, cuts, False


def _without_magics(text: str) -> tuple[str, frozenset[int]]:
    """Return text with magics replaced, character for character, and the rows that hold them."""
    pos, row = 0, 1
    parts: list[str] = []
    rows: set[int] = set()
    nested = True
    while pos < len(text):
        start = _magic_start(text, pos)
        if start is None:
            end, nested = logical_end(text, pos, nested)
        else:
            end = _magic_end(text, pos)
        count = len(LINE_END.findall(text, pos, end))
        if start is None:
            parts.append(text[pos:end])
        else:
            parts.append(
                text[pos:start] + _placeholder(text[start:end], not text[pos:start].strip())
            )
            rows.update(range(row, row + max(count, 1)))
        pos, row = end, row + count
    return "".join(parts), frozenset(rows)


def _magic_start(text: str, pos: int) -> int | None:
    if match := _LINE_MAGIC.match(text, pos):
        return match.start(1)
    if match := _HELP.match(text, pos):
        return match.end() - len(match.group().lstrip())
    if match := _ASSIGNED.match(text, pos):
        return match.end("left")
    if match := _ASKED.match(text, pos):
        return match.end() - len(match.group().lstrip())
    return None


def _magic_end(text: str, pos: int) -> int:
    """Return where a magic ends, after its line end; a backslash before that continues it."""
    while True:
        after = LINE_END.search(text, pos)
        if after is None:
            return len(text)
        if not text.endswith("\\", pos, after.start()):
            return after.end()
        pos = after.end()


def _placeholder(magic: str, is_statement: bool) -> str:
    width = len(LINE_END.split(magic, 1)[0])
    word = "pass" if is_statement and width >= 4 else "0"
    return word.ljust(width) + re.sub(r"[^\r\n]", " ", magic[width:])
