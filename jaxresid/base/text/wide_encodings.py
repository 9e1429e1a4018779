"""Recognise text in encodings of two and four bytes a character, as PowerShell writes it."""

from __future__ import annotations

import codecs

_MARKS = {  # the longer first, as they begin with the shorter
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def wide_encoding(data: bytes) -> str:
    """Return the name of the encoding whose byte order mark some bytes begin with.

    Returns:
      `UTF-16` or `UTF-32`; '' for any other text.
    """
    return next((name for mark, name in _MARKS.items() if data.startswith(mark)), "")
