"""The totals of a report as plain lines."""

from __future__ import annotations

from jaxresid.base.text.units import format_bytes
from jaxresid.results import Report


def totals_lines(report: Report) -> list[str]:
    """Return a line for each total, for those who parse.

    An example is `# computed 12.38 GiB (13295419392 B)`.
    """
    totals = report.totals
    return [
        f"# {name} {format_bytes(nbytes)} ({nbytes} B)"
        for name, nbytes in (
            ("computed", totals.computed_nbytes),
            ("arguments", totals.arguments_nbytes),
            ("host", totals.host_nbytes),
            ("constants", totals.constants_nbytes),
        )
    ]
