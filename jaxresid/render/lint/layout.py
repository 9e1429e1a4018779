"""Terminal text: colours, widths and wrapping, without a library that takes time to import."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

from jaxresid.base.text.safe_text import visible

Paint = Callable[[str, str], str]

_ANSI = {
    "error": "1;31",
    "warning": "1;33",
    "info": "1;36",
    "label": "1;36",
    "gutter": "1;34",
    "bold": "1",
    "dim": "2",
    "good": "32",
}


def painter(color: bool) -> Paint:
    """Return a function (style, text) -> text, which leaves text alone without colour."""

    def paint(style: str, text: str) -> str:
        return f"\x1b[{_ANSI[style]}m{text}\x1b[0m" if color and text else text

    return paint


def char_width(char: str) -> int:
    """Return the terminal columns that a visible character takes."""
    if char.isascii():
        return 1
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def text_width(text: str) -> int:
    """Return the terminal columns that a visible text takes."""
    return sum(map(char_width, text))


def wrap(text: str, width: int) -> list[str]:
    """Return lines of at most `width` columns, broken at spaces.

    A longer word keeps a line of its own.
    """
    lines: list[str] = []
    for paragraph in text.splitlines():
        line = ""
        for word in map(visible, paragraph.split()):
            if line and text_width(line) + 1 + text_width(word) > width:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}" if line else word
        lines.append(line)
    return lines


def labelled(label: str, text: str, width: int, paint: Paint) -> list[str]:
    """Return `label: text`, wrapped, with further lines under the first one's text."""
    indent = " " * (len(label) + 2)
    first, *rest = wrap(text, max(20, width - len(indent))) or [""]
    return [f"{paint('label', f'{label}:')} {first}", *(indent + line for line in rest)]
