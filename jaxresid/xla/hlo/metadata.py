"""Read what XLA writes of an instruction in texts: its JAX name and its line."""

from __future__ import annotations

import re
from typing import NamedTuple

from jaxresid.base.text.short_repr import cut

_OP_NAME = re.compile(r'\bop_name="([^"]*)"')
_FILE = re.compile(r'\bsource_file="([^"]*)"')
_LINE = re.compile(r"\bsource_line=(\d{1,9})")
_FRAME = re.compile(r"\bstack_frame_id=(\d{1,9})")
_LENGTH = 300


class Metadata(NamedTuple):
    """The metadata of an instruction; '' and 0 for what its text does not have."""

    op_name: str
    file: str
    line: int
    frame: int


def metadata_of(text: str) -> Metadata:
    return Metadata(
        first(_OP_NAME, text),
        first(_FILE, text),
        int(first(_LINE, text) or 0),
        int(first(_FRAME, text) or 0),
    )


def first(pattern: re.Pattern[str], text: str) -> str:
    """Return the first group of a pattern in a text; '' where it does not match."""
    match = pattern.search(text)
    return "" if match is None else match[1]


def shortened(text: str) -> str:
    """Return what XLA says in one line, cut."""
    return cut(" ".join(text.split()), _LENGTH)
