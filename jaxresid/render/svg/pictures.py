"""The pictures of a report."""

from __future__ import annotations

from typing import get_args

from jaxresid.base.option_types import PictureView
from jaxresid.render.svg.icicle import icicle
from jaxresid.render.svg.timeline import timeline
from jaxresid.results import Report


def report_svg(report: Report, view: PictureView) -> str:
    """Return a picture of a report as SVG.

    Raises:
      ValueError: there is no such view, or nothing to draw; the message is for the user.
    """
    if view not in get_args(PictureView):
        raise ValueError(f"view must be one of {', '.join(get_args(PictureView))}, not {view!r}")
    return timeline(report) if view == "timeline" else icicle(report)
