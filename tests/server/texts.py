"""Positions and edits as the protocol defines them, in each encoding."""

import re

CODECS = {"utf-8": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}
UNIT = {"utf-8": 1, "utf-16": 2, "utf-32": 4}


def position(text, offset, encoding):
    """The line and the units in front of an offset."""
    line = len(re.findall(r"\r\n|\r|\n", text[:offset]))
    before = re.split(r"\r\n|\r|\n", text[:offset])[-1]
    return line, len(before.encode(CODECS[encoding])) // UNIT[encoding]


def offset(text, line, character, encoding):
    """The offset of a position."""
    starts = [0, *(m.end() for m in re.finditer(r"\r\n|\r|\n", text))]
    if line >= len(starts):
        return len(text)
    row = re.match(r"[^\r\n]*", text[starts[line] :])[0]
    units = row.encode(CODECS[encoding])[: character * UNIT[encoding]]
    return starts[line] + len(units.decode(CODECS[encoding]))


def applied(text, edits, encoding="utf-16"):
    """The text after edits of the protocol, which are all of the text as it is."""

    def span(edit):
        ends = edit.range.start, edit.range.end
        return [offset(text, p.line, p.character, encoding) for p in ends]

    for edit in sorted(edits, key=span, reverse=True):
        start, end = span(edit)
        text = text[:start] + edit.new_text + text[end:]
    return text
