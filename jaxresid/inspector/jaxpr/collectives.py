"""Name the primitives by which devices exchange values."""

from __future__ import annotations

COLLECTIVES = frozenset(
    f"{name}{end}"
    for name in (
        *("all_gather", "all_gather_invariant", "all_gather_reduced", "all_to_all", "pmax", "pmin"),
        *("ppermute", "psum", "psum_invariant", "ragged_all_to_all", "reduce_scatter"),
        *("pbroadcast", "psum2", "unreduced_psum", "unreduced_reduce_scatter"),
    )
    for end in ("", "_start")
)
