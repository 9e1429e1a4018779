"""Shares of a figure from which something is said of it."""

from __future__ import annotations

# Of the peak, or of the FLOPs where those are what falls: what a change has to gain.
WORTH_SAYING = 0.03
# The same over a mesh, where estimates are off by 7 to 14 % in the median, and less is not told
# apart.
WORTH_SAYING_ON_MESH = 0.1
# Of what it is a part of, such as the peak, what is kept, what grows or all arguments.
NEGLIGIBLE = 0.01
# Of all FLOPs: shares are shown with one digit after the point, and less of them rounds to none.
NEGLIGIBLE_FLOPS = 0.0005
