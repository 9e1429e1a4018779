"""Terminal text: colours, widths and wrapping, without a library that takes time to import."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

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
# Besides control characters: marks that reorder what follows them, so that a line of source could
# show as another one than it is.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def painter(color: bool) -> Paint:
    """A function (style, text) -> text, which leaves text alone without colour."""

    def paint(style: str, text: str) -> str:
        return f"\x1b[{_ANSI[style]}m{text}\x1b[0m" if color and text else text

    return paint


def visible(text: str) -> str:
    """The text with a picture in the place of each character that would act on the terminal."""
    return _UNSEEN.sub(_picture, text)


def one_line(text: str) -> str:
    """The text visible, its line ends made spaces."""
    return visible(" ".join(text.splitlines()))


def _picture(match: re.Match[str]) -> str:
    code = ord(match.group())
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def char_width(char: str) -> int:
    """Terminal columns that a visible character takes."""
    if char.isascii():
        return 1
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def text_width(text: str) -> int:
    return sum(map(char_width, text))


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, broken at spaces; a longer word keeps a line of its own."""
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
    """`label: text`, wrapped, further lines under the first one's text."""
    indent = " " * (len(label) + 2)
    first, *rest = wrap(text, max(20, width - len(indent))) or [""]
    return [f"{paint('label', f'{label}:')} {first}", *(indent + line for line in rest)]
