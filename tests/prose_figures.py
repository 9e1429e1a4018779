"""Figures and counts in the prose of README and docs/, and what they are taken from.

A figure in prose is one that a command of the same page prints, or one of its section's source,
which a comment below the heading names:

    <!-- figures: jaxresid report fixtures/inspect/gpt.py:loss --on cpu -->

A command is run and must print them; what makes a table of measurements is named by its file; `of
TEXT` says whose they are where nothing here makes them: a publication's, or a definition's.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

_WORDS = "one two three four five six seven eight nine ten eleven twelve".split()
_COUNTED = "findings? warnings? errors? infos?".split()
_FIGURE = re.compile(
    r"(?<![\w.,-])(?P<number>\d[\d,]*(?:\.\d+)?)\s?(?P<unit>%|(?:[KMGT]iB|[KMGTP]?FLOPs?)\b)"
    rf"|\b(?P<count>\d+|{'|'.join(_WORDS)}) (?P<of>{'|'.join(_COUNTED)})\b",
    re.IGNORECASE,
)
# Columns have their unit in the head.
_CELL = re.compile(r"(?<![\w.,])\d[\d,]*\.\d+(?![\w.,])")
_BLOCK = re.compile(r"^( *)(```+)[^\n]*\n.*?^\1\2$", re.MULTILINE | re.DOTALL)
_SOURCE = re.compile(r"<!-- figures: ([^>]*?) -->", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"`[^`]*`")
_HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """What stands between two headings of a page.

    Attributes:
      prose: its text without blocks of code.
      sources: what its comments name as the sources of its figures.
    """

    prose: str
    sources: tuple[str, ...]


def printed(text: str) -> str:
    """Return the blocks of code of a page, which its commands print."""
    return "\n".join(match[0] for match in _BLOCK.finditer(text))


def sections(text: str) -> Iterator[Section]:
    """Yield the sections of a page, the one before its first heading included."""
    prose = _BLOCK.sub(lambda match: "\n" * match[0].count("\n"), text)
    starts = [0, *(match.start() for match in _HEADING.finditer(prose)), len(prose)]
    for start, end in itertools.pairwise(starts):
        part = prose[start:end]
        sources = tuple(" ".join(source.split()) for source in _SOURCE.findall(part))
        yield Section(_CODE.sub(_shown, _COMMENT.sub("", part)), sources)


def missing(prose: str, outputs: str) -> list[str]:
    """Return the figures of a text that no output has, not even with more digits."""
    known = [(_value(match), _unit(match)) for match in _FIGURE.finditer(outputs)]
    cells = [float(match[0].replace(",", "")) for match in _CELL.finditer(outputs)]
    return [
        match[0]
        for match in _FIGURE.finditer(prose)
        if _value(match)
        not in {
            round(value, _digits(match))
            for value in (
                *(cells if _digits(match) else ()),
                *(value for value, unit in known if unit == _unit(match)),
            )
        }
    ]


def _shown(match: re.Match[str]) -> str:
    """Return code in a line if it is of an output, as `12 GiB` is; `12GiB` is of an option."""
    return match[0] if re.search(r"\d\s[KMGT]iB", match[0]) else ""


def _unit(match: re.Match[str]) -> str:
    return (match["unit"] or match["of"]).removesuffix("s").casefold()


def _value(match: re.Match[str]) -> float:
    number = (match["number"] or match["count"]).replace(",", "").casefold()
    return float(_WORDS.index(number) + 1 if number in _WORDS else number)


def _digits(match: re.Match[str]) -> int:
    return len((match["number"] or "").partition(".")[2])
