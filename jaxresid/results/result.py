"""What results have in common: they show, are saved, and become tables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from jaxresid.base.text.short_repr import Shown
from jaxresid.results.display import (
    render,
    save,
    show,
    to_dataframe,
    to_html,
    to_json,
    to_page,
    to_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas


class Displayed(Shown):
    """A value with a text of its own, which rich, IPython and notebooks show.

    Inside other values they show its `repr`.
    """

    __slots__ = ()

    # Here and in no child: IPython takes the first of `__repr__` and `_repr_pretty_` that it meets.
    def __repr__(self) -> str:
        return self._headline()

    def _headline(self) -> str:
        return Shown.__repr__(self)

    def print(self) -> None:
        """Print the text to stdout."""
        show(self)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        yield render(self, console.encoding)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        is_inside = cycle or len(getattr(printer, "stack", ())) > 1
        printer.text(repr(self) if is_inside else to_text(self, printer.max_width))

    def _repr_html_(self) -> str:
        return to_html(self)


class Result(Displayed):
    """What a command finds out."""

    __slots__ = ()

    def to_json(self) -> str:
        """Return the result as JSON text; the schemas are in `jaxresid/schema/`."""
        return to_json(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result to a file as JSON, which `jaxresid.load` reads.

        Raises:
          JaxresidError: the file cannot be written.
        """
        save(self, path)

    def to_page(self) -> str:
        """Return the result as a page of HTML, as `-f html` does: one file that needs no network.

        Raises:
          TypeError: there is no page for such a result: a sweep or an out-of-memory report.
        """
        return to_page(self)

    def to_dataframe(self) -> pandas.DataFrame:
        """Return the rows of the result as a DataFrame.

        That is a row for each residual of a report, policy of a comparison, program of a sweep or
        of a compiled report, line of a difference, buffer of an out-of-memory report, and plan that
        no other beats, in a plan. Columns are the fields of the rows; those that end in `nbytes`
        are bytes.

        Raises:
          JaxresidError: pandas is not installed.
        """
        return to_dataframe(self)
