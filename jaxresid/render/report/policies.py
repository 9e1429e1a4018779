"""Policies as text: their names are long, and break where a reader would break them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

# How a policy reads where its name in JSON would be taken for something else: to JAX a policy of
# None is a checkpoint that saves nothing.
_WORDS = {"none": "no checkpoint", "as-written": "as written"}


def policy_text(policy: str) -> str:
    """Return a policy as text: `no checkpoint`, `as written`, `dots_saveable`."""
    return _WORDS.get(policy, policy)


@dataclass(frozen=True, slots=True)
class BrokenNames:
    """Text with long names in it, broken as by `lines`; a `Text` has a style of its own."""

    text: str | Text
    style: str = ""
    indent: int = 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = Text(self.text, self.style) if isinstance(self.text, str) else self.text
        yield Text("\n").join(lines(text, options.max_width, self.indent))


def lines(text: Text, width: int, indent: int = 2) -> list[Text]:
    """Return lines of at most `width` columns, broken at spaces, in long words after `_(,.:`."""
    broken, rest, before = [], text, ""
    while len(rest) > (room := max(width - len(before), 1)):
        end = _break(rest.plain, room, width - indent)
        line, rest = rest[:end], rest[end:]
        line.rstrip()
        broken.append(Text(before) + line)
        rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
        before = " " * indent
    return [*broken, Text(before) + rest]


def _break(text: str, room: int, whole: int) -> int:
    """Return where to break a text; words of at most `whole` characters are not broken."""
    space = text.rfind(" ", 1, room + 1)
    word = re.match(r"\S*", text[space + 1 :])
    if space > 0 and word is not None and len(word.group()) <= whole:
        return space
    within = [m.end() for m in re.finditer(r"[_(,.:]+", text[:room])]
    return max(within[-1] if within else 0, space) or room
