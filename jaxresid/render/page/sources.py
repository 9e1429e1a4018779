"""The code around the lines that a page names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# So many lines before and after a line that is named.
_AROUND = 3
_LARGEST = 4 << 20


def code_around(places: Sequence[Sequence[Any]]) -> dict[str, dict[str, str]]:
    """Return the lines of each file that are named, by their number, with those around them.

    A file is read only where it still has what the trace saw at each line: else it is another one,
    and only the lines that are known are there.

    Args:
      places: file, line, function and code of each place.
    """
    named: dict[str, dict[int, str]] = defaultdict(dict)
    for file, line, _, code in places:
        if code:
            named[file][line] = code
    return {file: _lines(file, lines) for file, lines in named.items()}


def _lines(file: str, traced: dict[int, str]) -> dict[str, str]:
    text = _read(file)
    shown = {line: code.strip() for line, code in traced.items()}
    if text is not None and all(
        line <= len(text) and text[line - 1].strip() == code.strip()
        for line, code in traced.items()
    ):
        for line in traced:
            for near in range(max(line - _AROUND, 1), min(line + _AROUND, len(text)) + 1):
                shown[near] = text[near - 1]
    return {str(line): shown[line] for line in sorted(shown)}


def _read(file: str) -> list[str] | None:
    try:
        path = Path(file)
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        return path.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return None
