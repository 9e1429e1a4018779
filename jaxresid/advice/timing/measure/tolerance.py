"""Tell whether two runs of the same mathematics agree, in numpy and in pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

_PIECE = 1 << 20
_NOISE = 3.0


def greatest(array: np.ndarray) -> float:
    """Return the greatest absolute value of the finite elements, 0 where there are none."""
    most = 0.0
    for (piece,) in _pieces(array):
        sizes = np.abs(piece)
        most = max(most, float(np.max(sizes, where=np.isfinite(sizes), initial=0.0)))
    return most


def gap(array: np.ndarray, reference: np.ndarray) -> float:
    """Return the greatest absolute difference between two arrays.

    NaNs and equal infinities in the same places differ by 0, others from anything by infinity.
    """
    widest = 0.0
    for a, b in _pieces(array, reference):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            differences = np.where(same, 0.0, np.abs(a - b))
        differences[np.isnan(differences)] = math.inf
        widest = max(widest, float(np.max(differences, initial=0.0)))
    return widest


def is_unknown(array: np.ndarray, reference: np.ndarray) -> bool:
    """Return whether both are NaN at the same place, where nothing tells whether they agree."""
    return any(bool(np.any(np.isnan(a) & np.isnan(b))) for a, b in _pieces(array, reference))


def error(
    arrays: Sequence[np.ndarray],
    references: Sequence[np.ndarray],
    noise: Sequence[float],
    tolerance: float,
) -> float | None:
    """Return the greatest relative difference of any array, see `Timing.gradient_error`.

    None where it cannot be told: no array has a finite value other than 0, or those that differ by
    no more than the tolerance have NaNs in the same places.

    Args:
      noise: For each array how far it moves when the inputs change in their last bit. Some are all
        rounding, as the gradient of a bias in front of a softmax is, 0 but for that; so a
        difference of 3 times the noise is always within the tolerance. (In a small transformer in
        float32, plain against checkpointed, differences came to 1.6 times the noise.)
    """
    errors: list[float] = []
    is_known = True
    for array, reference, moved in zip(arrays, references, noise, strict=True):
        scale = greatest(reference)
        difference = gap(array, reference)
        is_known = is_known and not is_unknown(array, reference)
        if difference == 0:
            errors += [0.0] * (scale > 0)
        elif math.isinf(moved):
            continue  # on the verge of an overflow: a last bit decides
        elif math.isinf(difference):
            errors.append(1.0)  # finite in one of them alone
        else:
            least_scale = max(scale, _NOISE * moved / tolerance)
            errors.append(difference / (least_scale or greatest(array)))
    greatest_error = max(errors, default=None)
    if greatest_error is not None and greatest_error <= tolerance and not is_known:
        return None
    return greatest_error


def _pieces(*arrays: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Yield equal pieces of arrays of one shape, in double precision."""
    flat = [array.reshape(-1) for array in arrays]
    wide = np.complex128 if any(array.dtype.kind == "c" for array in flat) else np.float64
    for start in range(0, flat[0].size, _PIECE):
        yield [array[start : start + _PIECE].astype(wide) for array in flat]
