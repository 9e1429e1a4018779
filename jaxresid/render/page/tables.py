"""Write each text, place and shape of a page once, and refer to it by its number."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from jaxresid.render.style.words import aval_text
from jaxresid.results import Aval, Location, Source

# The number of what is not there.
NONE = -1


class Table:
    """Rows that are each there once, in the order in which they were first asked for."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, row: Any) -> int:
        """Return the number of a row, which is added where its key is new."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.rows)
            self.rows.append(row)
        return found


class Tables:
    """The tables of a page: texts, places in source, and shapes with their dtype."""

    def __init__(self) -> None:
        self._texts = Table()
        self._places = Table()
        self._avals = Table()

    def text(self, text: str | None) -> int:
        """Return the number of a text; `NONE` for None and ''."""
        return self._texts.number(text, text) if text else NONE

    def place(self, location: Location | None) -> int:
        """Return the number of a place in source; `NONE` for None."""
        if location is None:
            return NONE
        parts = (location.file, location.line, location.function, location.code)
        if location.is_of_loss:  # it has no line of the user's
            parts = (location.place, 0, "", "")
        return self._places.number(parts, list(parts))

    def source(self, source: Source | None) -> tuple[int, int]:
        """Return the numbers of the user's line and of the library's."""
        if source is None:
            return NONE, NONE
        return self.place(source.location), self.place(source.library)

    def aval(self, aval: Aval | None) -> int:
        """Return the number of a shape with its dtype; `NONE` for None."""
        if aval is None:
            return NONE
        text = aval_text(aval)
        return self._avals.number(text, text)

    def rows(self) -> dict[str, list[Any]]:
        """Return the tables."""
        return {
            "texts": self._texts.rows,
            "places": self._places.rows,
            "avals": self._avals.rows,
        }
