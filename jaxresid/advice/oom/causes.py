"""Tell what filled the memory, from the figures of a log."""

from __future__ import annotations

from collections.abc import Sequence

from jaxresid.results import OomBuffer, OomCause, OomParts
from jaxresid.xla.logs.failure import Failure

# A program that needs less than the first does not fill an accelerator; one that needs less than
# the second is not likely to. No device has as much as the third.
_SMALL_NBYTES = 2**30
_MODEST_NBYTES = 4 * 2**30
_IMPOSSIBLE_NBYTES = 320 * 2**30
# Allocators round what is asked for, and logs what they say.
_ROUNDING = 1.02
# XLA:GPU aims at 95 % of what is left of 80 % of the device beside arguments and outputs; JAX gives
# a program no more than 95 %.
_ROOM_FOR_TEMPORARIES = 1.25
# Of BFC's bar: below the first nothing but this program's allocation is large, above the second
# little is free.
_EMPTY_FRACTION, _FULL_FRACTION = 0.1, 0.5
# Padding is the cause where it is this share of what the program needs, and more than its excess or
# this share.
_PADDED, _MOSTLY_PADDED = 0.2, 0.5


def cause_of(
    failure: Failure, parts: OomParts, buffers: Sequence[OomBuffer]
) -> tuple[OomCause, bool]:
    """Return what filled the memory, and whether the figures leave no other cause.

    Args:
      failure: what the log says.
      parts: what the program's memory is made of.
      buffers: its largest buffers.
    """
    if failure.memory != "device":
        return failure.memory, True
    if failure.before_start:
        return "other-program", True
    pool = failure.pool
    if failure.phase == "start":
        return "preallocation", pool.limit_nbytes is not None
    need, asked = failure.required_nbytes, failure.requested_nbytes
    # A TPU's program is allocated as it is loaded: what it asks for as it runs is for arrays.
    is_array = failure.phase in ("load", "transfer") or (failure.platform == "tpu" and need is None)
    if is_array and pool.free_nbytes is not None:
        return _without_room(failure), True
    ceiling = failure.capacity_nbytes or pool.limit_nbytes
    size = _of_size(failure, parts, buffers)
    largest = max((n for n in (need, asked) if n is not None), default=None)
    if largest is None:
        known = bool(buffers) or parts.temp_nbytes is not None
        return (size, size == "padding") if known else ("unknown", False)
    if (ceiling is not None and largest > ceiling) or largest > _IMPOSSIBLE_NBYTES:
        return size, True
    smallest = failure.rematerialized
    if smallest is not None and asked is not None and asked > smallest.limit_nbytes:
        # What XLA computes twice are temporaries alone, and a GPU's are one allocation.
        return "temporaries", asked > _ROOM_FOR_TEMPORARIES * smallest.limit_nbytes
    if asked is not None and _is_in_pieces(failure, asked):
        return "fragmentation", True
    if ceiling is not None:
        is_told = failure.phase in ("", "run")
        return ("held", failure.phase == "run") if is_told else (size, False)
    return _without_ceiling(failure, largest, size)


def _without_room(failure: Failure) -> OomCause:
    """Return the cause where an allocator says how much was free and how much was asked for."""
    pool, asked = failure.pool, failure.requested_nbytes
    free = pool.free_nbytes or 0
    return "held" if asked is None or free < asked else "fragmentation"


def _is_in_pieces(failure: Failure, asked: int) -> bool:
    """Return whether as much was free as was asked for, but not in one piece."""
    pool = failure.pool
    free, largest = pool.free_nbytes, pool.largest_free_nbytes
    if free is None or free < asked * _ROUNDING:
        return False
    return largest is None or largest < asked


def _without_ceiling(failure: Failure, largest: int, size: OomCause) -> tuple[OomCause, bool]:
    """Return the cause where a log does not say how much a program can have."""
    used = failure.pool.used_fraction
    if used is not None and used <= _EMPTY_FRACTION:
        return size, True
    if largest < _SMALL_NBYTES:
        is_sure = failure.required_nbytes is not None or used is not None
        return "held", is_sure
    if failure.required_nbytes is None and failure.phase != "run":
        return size, False
    if used is not None and used >= _FULL_FRACTION:
        return "held", False
    return ("held" if largest < _MODEST_NBYTES else size), False


def _of_size(failure: Failure, parts: OomParts, buffers: Sequence[OomBuffer]) -> OomCause:
    """Return what a program that is too large is made of."""
    need, ceiling = failure.required_nbytes, failure.capacity_nbytes or failure.pool.limit_nbytes
    whole = need or sum(buffer.nbytes for buffer in buffers) or parts.temp_nbytes or 0
    padding = padding_of(parts, buffers)
    excess = need - ceiling if need is not None and ceiling is not None else None
    if whole and padding >= _PADDED * whole:
        removes_it = excess is not None and padding >= excess
        if removes_it or padding >= _MOSTLY_PADDED * whole:
            return "padding"
    shares: dict[OomCause, int] = {
        "temporaries": parts.temp_nbytes or 0,
        "arguments": parts.argument_nbytes or 0,
        "outputs": parts.output_nbytes or 0,
    }
    if not any(shares.values()):
        shares = {
            "temporaries": _of_kind(buffers, "temporary"),
            "arguments": _of_kind(buffers, "argument"),
            "outputs": _of_kind(buffers, "output"),
        }
    if not any(shares.values()):
        return "too-large"
    return max(shares, key=lambda name: shares[name])


def padding_of(parts: OomParts, buffers: Sequence[OomBuffer]) -> int:
    """Return how many bytes of a program are padding, as far as it is known."""
    if parts.padding_nbytes is not None:
        return parts.padding_nbytes
    return sum(buffer.padding_nbytes for buffer in buffers)


def _of_kind(buffers: Sequence[OomBuffer], kind: str) -> int:
    return sum(buffer.nbytes for buffer in buffers if buffer.kind == kind)
