"""Count the FLOPs and transcendental evaluations of one plain eqn, with a rule per primitive.

The conventions are those of XLA's own counter on HLO as JAX lowers it, so that totals can be
compared with it: a multiply-add is two FLOPs, an elementwise operation one per element of its
result (integer and complex ones too), a conversion one, a selection none, a reduction one per
element that it folds away, and a convolution only what its window reads of the image and not of the
padding. Where JAX lowers a function to a formula of its own (erfc, logistic), the operations of
that formula are counted as XLA counts them on f32.

Where we do not follow XLA: a matrix decomposition takes its textbook FLOPs (XLA sees a custom
call), a cumulative sum one operation per element (XLA: a window as long as the axis), a ragged dot
what each row's own group takes (XLA: all groups), random bits what the TPU's unrolled lowering
takes (XLA:CPU counts one trip of a loop), and a sort the logarithm of the axis that it sorts.
"""

from __future__ import annotations

import functools
import math

from jaxresid.inspector.cost import contractions, decompositions
from jaxresid.inspector.cost.registry import Rules
from jaxresid.inspector.jaxpr.extents import shape, size
from jaxresid.inspector.jaxpr.primitives import (
    ARG_REDUCTIONS,
    PRIMITIVES,
    REDUCTIONS,
    SCATTERS,
    of_kind,
)
from jaxresid.jax_compat.jaxpr_types import Eqn
from jaxresid.results import Cost

rule = Rules()

_FREE = Cost()

# FLOPs and transcendental evaluations per element of the result.
_PER_ELEMENT = {
    row.name: (row.flops, row.transcendentals)
    for row in PRIMITIVES.values()
    if row.flops is not None
}
_MOVES = frozenset(name for name, counts in _PER_ELEMENT.items() if not any(counts))
# What loops until it converges or accepts: one trip each, as XLA counted on 0.7.0.
_ITERATIVE = frozenset(row.name for row in PRIMITIVES.values() if row.iterates)


@rule(*_MOVES)
def _move(eqn: Eqn) -> Cost:
    """Count nothing: values are moved, viewed, marked, or chosen."""
    return _FREE


@rule(*(_PER_ELEMENT.keys() - _MOVES - _ITERATIVE))
def _elementwise(eqn: Eqn) -> Cost:
    flops, transcendentals = _PER_ELEMENT[eqn.primitive.name]
    n = size(eqn.outvars[-1])  # of a random generator: the first result is its state
    return _per_element(flops * n, transcendentals * n)


@functools.lru_cache(maxsize=4096)
def _per_element(flops: int, transcendentals: int) -> Cost:
    return Cost(elementwise_flops=flops, transcendentals=transcendentals)


@rule(*_ITERATIVE)
def _iterative(eqn: Eqn) -> Cost:
    name = eqn.primitive.name
    flops, transcendentals = _PER_ELEMENT[name]
    n = size(eqn.outvars[0])
    return Cost(
        elementwise_flops=flops * n,
        transcendentals=transcendentals * n,
        notes=(f"{name}: iterations unknown, counted once",),
    )


@rule("integer_pow")
def _integer_pow(eqn: Eqn) -> Cost:
    """Count repeated squaring: a multiplication per bit but the first, and another per set bit.

    A negative exponent adds a division.
    """
    exponent = int(eqn.params["y"])
    n = abs(exponent)
    multiplications = n.bit_length() + n.bit_count() - 2 if n else 0
    return Cost(elementwise_flops=(multiplications + (exponent < 0)) * size(eqn.outvars[0]))


@rule("polynomial")
def _polynomial(eqn: Eqn) -> Cost:
    """Count Horner's scheme: a multiply-add per coefficient but the first.

    JAX 0.12 has it in the derivative of erf.
    """
    return Cost(elementwise_flops=2 * (len(eqn.invars) - 2) * size(eqn.outvars[0]))


# Reductions, windows and order.


@rule(*REDUCTIONS, "unvmap_all", "unvmap_any", "unvmap_max")
def _reduction(eqn: Eqn) -> Cost:
    return Cost(elementwise_flops=size(eqn.invars[0]) - size(eqn.outvars[0]))


@rule(*ARG_REDUCTIONS)
def _arg_reduction(eqn: Eqn) -> Cost:
    """Count nine FLOPs per element folded away: values, indices, ties and NaNs are compared."""
    return Cost(elementwise_flops=9 * (size(eqn.invars[0]) - size(eqn.outvars[0])))


@rule(*of_kind("exchange_reduction"))
def _collective_reduction(eqn: Eqn) -> Cost:
    """Count one FLOP per element that a device contributes."""
    return Cost(elementwise_flops=sum(size(v) for v in eqn.invars))


@rule("cummax", "cummin", "cumprod", "cumsum")
def _cumulative(eqn: Eqn) -> Cost:
    return Cost(elementwise_flops=_steps(eqn))


@rule("cumlogsumexp")
def _cumulative_logsumexp(eqn: Eqn) -> Cost:
    steps = _steps(eqn)
    return Cost(elementwise_flops=8 * steps, transcendentals=2 * steps)


def _steps(eqn: Eqn) -> int:
    n, axis = size(eqn.invars[0]), shape(eqn.invars[0])[eqn.params["axis"]]
    return n - n // axis if axis else 0


@rule("reduce_window_max", "reduce_window_min", "reduce_window_sum")
def _window(eqn: Eqn) -> Cost:
    """Count one FLOP for each element of a window but the first, padding included."""
    window = math.prod(map(int, eqn.params["window_dimensions"]))
    return Cost(elementwise_flops=size(eqn.outvars[0]) * (window - 1))


@rule("select_and_gather_add")
def _select_and_gather(eqn: Eqn) -> Cost:
    """Count the derivative of a window's maximum: each step compares, and selects twice."""
    window = math.prod(map(int, eqn.params["window_dimensions"]))
    return Cost(elementwise_flops=3 * size(eqn.outvars[0]) * (window - 1))


@rule("select_and_scatter_add")
def _select_and_scatter(eqn: Eqn) -> Cost:
    """Count the transpose of `select_and_gather_add`.

    Each window is compared, and the source is added to what was selected.
    """
    window = math.prod(map(int, eqn.params["window_dimensions"]))
    return Cost(elementwise_flops=size(eqn.invars[0]) * window)


@rule(*(SCATTERS - {"scatter"}))
def _scatter(eqn: Eqn) -> Cost:
    return Cost(elementwise_flops=size(eqn.invars[2]))


@rule("addupdate", "accum_grad_in_ref")
def _addupdate(eqn: Eqn) -> Cost:
    """Count the addition of the second operand to what a ref holds."""
    return Cost(elementwise_flops=size(eqn.invars[1]))


@rule("sort")
def _sort(eqn: Eqn) -> Cost:
    """Count a comparison per element and halving of the sorted axis."""
    axis = shape(eqn.invars[0])[eqn.params["dimension"]]
    return Cost(elementwise_flops=size(eqn.invars[0]) * _halvings(axis))


@rule("top_k", "approx_top_k")
def _top_k(eqn: Eqn) -> Cost:
    """Count a heap of k elements: a comparison per element and level of the heap."""
    levels = max(1, _halvings(eqn.params["k"]))
    return Cost(elementwise_flops=size(eqn.invars[0]) * levels)


def _halvings(n: int) -> int:
    return max(0, n - 1).bit_length()


@rule("fft")
def _fft(eqn: Eqn) -> Cost:
    """Count eight FLOPs per element and halving of each transformed axis.

    For one axis this is XLA's HloCostAnalysis::HandleFft.
    """
    halvings = sum(max(0, n.bit_length() - 1) for n in eqn.params["fft_lengths"])
    return Cost(elementwise_flops=8 * size(eqn.invars[0]) * halvings)


# Random numbers: Threefry-2x32, 20 rounds of 5 integer operations, 5 key injections of 3.

_THREEFRY = 117


@rule("threefry2x32")
def _threefry(eqn: Eqn) -> Cost:
    return Cost(elementwise_flops=_THREEFRY * size(eqn.outvars[0]))


@rule("random_bits")
def _random_bits(eqn: Eqn) -> Cost:
    """Count a hash per word of at most 64 bits, with its counters and the folding of its halves.

    For a key of another generator than Threefry it is one transcendental evaluation per word, as
    for `rng_bit_generator`.
    """
    n = size(eqn.outvars[0])
    if "fry" not in str(eqn.invars[0].aval.dtype):
        return Cost(transcendentals=n)
    return Cost(elementwise_flops=(_THREEFRY + (4 if eqn.params["bit_width"] >= 32 else 5)) * n)


@rule("random_split", "random_fold_in")
def _random_keys(eqn: Eqn) -> Cost:
    return Cost(elementwise_flops=(_THREEFRY + 3) * size(eqn.outvars[0]))


@rule("random_seed")
def _random_seed(eqn: Eqn) -> Cost:
    return Cost(elementwise_flops=2 * size(eqn.outvars[0]))


@rule("pallas_call")
def _pallas_call(eqn: Eqn) -> Cost:
    """Return what the kernel's author gave as `cost_estimate`.

    Nothing else tells how often its blocks run.
    """
    estimate = eqn.params.get("cost_estimate")
    if estimate is None:
        return Cost(uncosted=("pallas_call",))
    return Cost(
        matmul_flops=int(estimate.flops),
        transcendentals=int(estimate.transcendentals),
        nbytes=int(estimate.bytes_accessed),
        notes=("pallas_call: its own cost estimate",),
    )


RULES = Rules({**rule, **contractions.rule, **decompositions.rule})
