"""Commands to copy, in lines that a shell takes as one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

_CONTINUED = " \\"


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command, broken between words where it is too wide; `before` is beside it if both fit."""

    words: Sequence[str]
    before: Text | None = None
    indent: int = 2
    style: str = "bold"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.before is not None:
            command = " ".join(map(shlex.quote, self.words))
            beside = Text.assemble(self.before, " ", (command, self.style))
            if beside.cell_len <= options.max_width:
                yield beside
                return
            yield self.before
        for line in _lines(self.words, options.max_width, self.indent):
            yield Text(line, style=self.style, no_wrap=True, overflow="ignore")


def _lines(words: Sequence[str], width: int, indent: int) -> list[str]:
    """Return the lines of a command; a line is too wide only where a single word is."""
    quoted: list[str] = []
    for word in words:
        # A value stays with its option.
        if quoted and quoted[-1].startswith("-") and " " not in quoted[-1] and word[:1] != "-":
            quoted[-1] += f" {shlex.quote(word)}"
        else:
            quoted.append(shlex.quote(word))
    lines, line = [], " " * indent + quoted[0]
    for i, word in enumerate(quoted[1:], 2):
        room = width - len(_CONTINUED) * (i < len(quoted))
        if len(line) + 1 + len(word) <= room:
            line += " " + word
        else:
            lines.append(line + _CONTINUED)
            line = " " * (indent + 2) + word
    return [*lines, line]
