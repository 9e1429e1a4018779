"""The totals of a report as plain lines."""

from __future__ import annotations

from jaxresid.model import Report
from jaxresid.units import format_bytes


def totals_lines(report: Report) -> list[str]:
    """`# computed 12.38 GiB (13295419392 B)`, one line a kind, for those who parse."""
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
