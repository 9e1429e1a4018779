"""SVG as text: elements, words cut to their room, and the style of every picture."""

from __future__ import annotations

import re
from html import escape

WIDTH = 960
# How wide a letter of a font of one pixel is: on the safe side, so that words are not cut off.
_LETTER = 0.57
_BOLD = 1.1  # as much wider are bold ones
_SMALL = 12
# What XML has no place for: `safe_text` leaves line ends and these.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")

_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", Arial, sans-serif; }
text.title { font-size: 17px; font-weight: 600; }
text.small, text.muted, text.tick { font-size: 12px; }
text.bold { font-weight: 600; }
text.key { font-size: 12px; font-weight: 600; text-anchor: middle; paint-order: stroke;
  stroke-width: 3px; stroke-linejoin: round; }
.paper { fill: #ffffff; } text.key { stroke: #ffffff; } .cell, .band { stroke: #ffffff; }
text { fill: #1f2328; } text.muted, text.tick { fill: #59636e; }
.grid { stroke: #d8dee4; } .axis, .pass { stroke: #818b98; } .mark { stroke: #1f2328; }
.limit { stroke: #cf222e; } text.limit { fill: #cf222e; stroke: none; }
.point { fill: #ffffff; stroke: #59636e; } .front { stroke: #1a7f37; } .point.on { fill: #1a7f37;
  stroke: #1a7f37; }
.band, .cell { stroke-width: 0.7; }
.grid, .axis, .limit, .front, .mark { fill: none; }
.pass { stroke-dasharray: 2 3; } .limit { stroke-dasharray: 7 4; stroke-width: 1.5; }
.front, .point { stroke-width: 2; } .range { stroke: #818b98; }
.all { fill: #8fb4d9; } .residual { fill: #3f8fd0; } .temporary { fill: #e69f00; }
.gradient { fill: #2ba37f; } .output { fill: #d8c927; } .argument, .parameters { fill: #98a2ad; }
.optimizer-state, .state { fill: #c57fae; } .frozen-weights { fill: #7d8fa3; }
.batch { fill: #bcc3ca; } .constant { fill: #9a8468; }
.module { fill: #d5dbe1; } .function { fill: #b5d3ee; } .line { fill: #85bae6; }
.value { fill: #cfe2f3; } .rest { fill: #e8ebee; }
@media (prefers-color-scheme: dark) {
.paper { fill: #0d1117; } text.key { stroke: #0d1117; } .cell, .band { stroke: #0d1117; }
text { fill: #e6edf3; } text.muted, text.tick { fill: #a5adb8; }
.grid { stroke: #2a313a; } .axis, .pass, .range { stroke: #768390; } .mark { stroke: #e6edf3; }
.limit { stroke: #ff7b72; } text.limit { fill: #ff7b72; }
.point { fill: #0d1117; stroke: #a5adb8; } .front { stroke: #3fb950; } .point.on { fill: #3fb950;
  stroke: #3fb950; }
.all { fill: #4d7ba8; } .module { fill: #3a424c; } .function { fill: #24527a; }
.line { fill: #2b6ca5; } .value { fill: #1d3f5e; } .rest { fill: #262c34; }
}
"""


def element(name: str, *children: str, **attributes: str | float | None) -> str:
    """Return an element as text.

    Args:
      attributes: its attributes, `_` for `-`, and `class_` for `class`; None leaves one out.
        Numbers have at most two decimals.
    """
    pairs = (
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(children)
    return f"<{name}{''.join(pairs)}>{inside}</{name}>" if inside else f"<{name}{''.join(pairs)}/>"


def escaped(words: str) -> str:
    """Return words as text of an SVG."""
    return escape(_NOT_XML.sub("\ufffd", words))


def written(
    x: float,
    y: float,
    words: str,
    *,
    kind: str | None = None,
    room: float | None = None,
    anchor: str | None = None,
    keeps_end: bool = False,
) -> str:
    """Return words at a place.

    Args:
      room: how many pixels they may take; what is too long is cut.
      anchor: `middle` or `end`, where they do not begin at `x`.
      keeps_end: whether what is too long loses its beginning, as paths do.
    """
    if room is not None and kind is not None and "bold" in kind.split():
        room /= _BOLD
    shown = words if room is None else cut(words, room, keeps_end=keeps_end)
    if not shown:
        return ""
    return element("text", escaped(shown), x=x, y=y, class_=kind, text_anchor=anchor)


def cut(words: str, room: float, *, keeps_end: bool = False) -> str:
    """Return as much of words as fits into some pixels in a small font, with an ellipsis."""
    most = int(room / (_SMALL * _LETTER))
    if len(words) <= most:
        return words
    if most <= 3:
        return ""
    return f"…{words[1 - most :].lstrip()}" if keeps_end else f"{words[: most - 1].rstrip()}…"


def hint(words: str) -> str:
    """Return what a browser shows of an element under the pointer, and reads aloud."""
    return element("title", escaped(words))


def document(height: float, title: str, description: str, *parts: str) -> str:
    """Return a whole picture."""
    return element(
        "svg",
        element("title", escaped(title), id="title"),
        element("desc", escaped(description), id="desc"),
        element("style", _STYLE),
        element("rect", class_="paper", width=WIDTH, height=height, rx=6),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height:g}",
        width=WIDTH,
        height=height,
        role="img",
        aria_labelledby="title desc",
    )


def _attribute(value: str | float) -> str:
    if isinstance(value, str):
        return escaped(value)
    return f"{value:.2f}".rstrip("0").rstrip(".")
