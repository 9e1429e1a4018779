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

import math
from typing import Any

from jaxresid.inspector.cost import contractions, decompositions
from jaxresid.inspector.cost.registry import Rules
from jaxresid.inspector.jaxpr.extents import shape, size
from jaxresid.model import Cost

rule = Rules()

_FREE = Cost()

# Nothing is computed: values are moved, viewed, marked, or chosen.
_MOVES = """
    add_dependency after_all all_gather all_gather_done all_gather_invariant all_gather_reduced
    all_gather_reduced_start all_gather_start all_to_all all_to_all_done all_to_all_start
    axis_index bitcast broadcast_in_dim broadcast_to concatenate copy create_token dce_sink
    debug_callback debug_print device_put dynamic_slice dynamic_update_slice empty empty2
    empty_ref free_ref freeze from_edtype full_to_shard gather get inspect_sharding iota
    iota_2x32_shape layout_constraint lu_pivots_to_permutation mesh_cast mutable_array name
    new_ref optimization_barrier pad pbroadcast pin platform_index ppermute ppermute_done
    ppermute_start preduced psum_done pvary ragged_all_to_all random_clone random_unwrap
    random_wrap reduce_scatter_done reduced_vary_cast remove_memory_space reshape reshard rev
    scatter select_n shard_alike shard_to_full sharding_constraint slice split squeeze stack
    stop_gradient swap tie tile to_edtype transpose unpin unstack vary_unreduced_cast
    with_memory_space_constraint xla_metadata_value zeros_like
"""

# FLOPs and transcendental evaluations per element of the result, as XLA counts them on f32.
_PER_ELEMENT = {
    **dict.fromkeys(
        """
        abs add add_any and bitcast_convert_type ceil clamp clz complex convert_element_type div eq
        eq_to floor ge gt imag is_finite le le_to lt lt_to max min mul mulhi ne neg not or
        population_count real reciprocal reduce_precision rem round shift_left
        shift_right_arithmetic shift_right_logical sign square sub xor
        """.split(),
        (1, 0),
    ),
    **dict.fromkeys(
        """
        atan atan2 cbrt cos erf exp expm1 log log1p pow rng_bit_generator rng_uniform rsqrt sin
        sqrt tan tanh
        """.split(),
        (0, 1),
    ),
    "acos": (3, 2),
    "acosh": (7, 4),
    "asin": (3, 2),
    "asinh": (11, 3),
    "atanh": (6, 2),
    "bessel_i0e": (83, 1),
    "bessel_i1e": (83, 1),
    "conj": (4, 0),
    "cosh": (3, 2),
    "digamma": (73, 3),
    "erf_inv": (37, 2),
    "erfc": (62, 1),
    "exp2": (1, 1),
    "lgamma": (53, 4),
    "log2": (1, 1),
    "logistic": (3, 1),
    "nextafter": (24, 0),
    "one_minus_square": (2, 0),  # 0.11.2, in the derivative of tanh
    "polygamma": (260, 19),
    "sinh": (10, 3),
    "zeta": (121, 11),
}

# The same for what loops until it converges or accepts: one trip each, as XLA counted on 0.7.0.
_PER_ELEMENT_ONCE = {
    "igamma": (183, 6),
    "igammac": (183, 6),
    "igamma_grad_a": (335, 14),
    "random_gamma": (1414, 8),
    "regularized_incomplete_beta": (293, 17),
}


@rule(*_MOVES.split())
def _move(eqn: Any) -> Cost:
    return _FREE


@rule(*_PER_ELEMENT)
def _elementwise(eqn: Any) -> Cost:
    flops, transcendentals = _PER_ELEMENT[eqn.primitive.name]
    n = size(eqn.outvars[-1])  # of a random generator: the first result is its state
    return Cost(elementwise_flops=flops * n, transcendentals=transcendentals * n)


@rule(*_PER_ELEMENT_ONCE)
def _iterative(eqn: Any) -> Cost:
    name = eqn.primitive.name
    flops, transcendentals = _PER_ELEMENT_ONCE[name]
    n = size(eqn.outvars[0])
    return Cost(
        elementwise_flops=flops * n,
        transcendentals=transcendentals * n,
        notes=(f"{name}: iterations unknown, counted once",),
    )


@rule("integer_pow")
def _integer_pow(eqn: Any) -> Cost:
    """Count repeated squaring: a multiplication per bit but the first, and another per set bit.

    A negative exponent adds a division.
    """
    exponent = int(eqn.params["y"])
    n = abs(exponent)
    multiplications = n.bit_length() + n.bit_count() - 2 if n else 0
    return Cost(elementwise_flops=(multiplications + (exponent < 0)) * size(eqn.outvars[0]))


@rule("polynomial")
def _polynomial(eqn: Any) -> Cost:
    """Count Horner's scheme: a multiply-add per coefficient but the first.

    JAX 0.12 has it in the derivative of erf.
    """
    return Cost(elementwise_flops=2 * (len(eqn.invars) - 2) * size(eqn.outvars[0]))


# Reductions, windows and order.


@rule(
    *"reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor".split(),
)
def _reduction(eqn: Any) -> Cost:
    return Cost(elementwise_flops=size(eqn.invars[0]) - size(eqn.outvars[0]))


@rule("argmax", "argmin")
def _arg_reduction(eqn: Any) -> Cost:
    """Count nine FLOPs per element folded away: values, indices, ties and NaNs are compared."""
    return Cost(elementwise_flops=9 * (size(eqn.invars[0]) - size(eqn.outvars[0])))


@rule(
    *"pmax pmin psum psum_invariant psum_invariant_start psum_start".split(),
    *"reduce_scatter reduce_scatter_start".split(),
    *"unreduced_pmax unreduced_pmin unreduced_psum unreduced_reduce_scatter".split(),
)
def _collective_reduction(eqn: Any) -> Cost:
    """Count one FLOP per element that a device contributes."""
    return Cost(elementwise_flops=sum(size(v) for v in eqn.invars))


@rule("cummax", "cummin", "cumprod", "cumsum")
def _cumulative(eqn: Any) -> Cost:
    return Cost(elementwise_flops=_steps(eqn))


@rule("cumlogsumexp")
def _cumulative_logsumexp(eqn: Any) -> Cost:
    steps = _steps(eqn)
    return Cost(elementwise_flops=8 * steps, transcendentals=2 * steps)


def _steps(eqn: Any) -> int:
    n, axis = size(eqn.invars[0]), shape(eqn.invars[0])[eqn.params["axis"]]
    return n - n // axis if axis else 0


@rule("reduce_window_max", "reduce_window_min", "reduce_window_sum")
def _window(eqn: Any) -> Cost:
    """Count one FLOP for each element of a window but the first, padding included."""
    window = math.prod(map(int, eqn.params["window_dimensions"]))
    return Cost(elementwise_flops=size(eqn.outvars[0]) * (window - 1))


@rule("select_and_gather_add")
def _select_and_gather(eqn: Any) -> Cost:
    """Count the derivative of a window's maximum: each step compares, and selects twice."""
    window = math.prod(map(int, eqn.params["window_dimensions"]))
    return Cost(elementwise_flops=3 * size(eqn.outvars[0]) * (window - 1))


@rule("select_and_scatter_add")
def _select_and_scatter(eqn: Any) -> Cost:
    """Count the transpose of `select_and_gather_add`.

    Each window is compared, and the source is added to what was selected.
    """
    window = math.prod(map(int, eqn.params["window_dimensions"]))
    return Cost(elementwise_flops=size(eqn.invars[0]) * window)


@rule("scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub")
def _scatter(eqn: Any) -> Cost:
    return Cost(elementwise_flops=size(eqn.invars[2]))


@rule("addupdate", "accum_grad_in_ref")
def _addupdate(eqn: Any) -> Cost:
    """Count the addition of the second operand to what a ref holds."""
    return Cost(elementwise_flops=size(eqn.invars[1]))


@rule("sort")
def _sort(eqn: Any) -> Cost:
    """Count a comparison per element and halving of the sorted axis."""
    axis = shape(eqn.invars[0])[eqn.params["dimension"]]
    return Cost(elementwise_flops=size(eqn.invars[0]) * _halvings(axis))


@rule("top_k", "approx_top_k")
def _top_k(eqn: Any) -> Cost:
    """Count a heap of k elements: a comparison per element and level of the heap."""
    levels = max(1, _halvings(eqn.params["k"]))
    return Cost(elementwise_flops=size(eqn.invars[0]) * levels)


def _halvings(n: int) -> int:
    return max(0, n - 1).bit_length()


@rule("fft")
def _fft(eqn: Any) -> Cost:
    """Count eight FLOPs per element and halving of each transformed axis.

    For one axis this is XLA's HloCostAnalysis::HandleFft.
    """
    halvings = sum(max(0, n.bit_length() - 1) for n in eqn.params["fft_lengths"])
    return Cost(elementwise_flops=8 * size(eqn.invars[0]) * halvings)


# Random numbers: Threefry-2x32, 20 rounds of 5 integer operations, 5 key injections of 3.

_THREEFRY = 117


@rule("threefry2x32")
def _threefry(eqn: Any) -> Cost:
    return Cost(elementwise_flops=_THREEFRY * size(eqn.outvars[0]))


@rule("random_bits")
def _random_bits(eqn: Any) -> Cost:
    """Count a hash per word of at most 64 bits, with its counters and the folding of its halves.

    For a key of another generator than Threefry it is one transcendental evaluation per word, as
    for `rng_bit_generator`.
    """
    n = size(eqn.outvars[0])
    if "fry" not in str(eqn.invars[0].aval.dtype):
        return Cost(transcendentals=n)
    return Cost(elementwise_flops=(_THREEFRY + (4 if eqn.params["bit_width"] >= 32 else 5)) * n)


@rule("random_split", "random_fold_in")
def _random_keys(eqn: Any) -> Cost:
    return Cost(elementwise_flops=(_THREEFRY + 3) * size(eqn.outvars[0]))


@rule("random_seed")
def _random_seed(eqn: Any) -> Cost:
    return Cost(elementwise_flops=2 * size(eqn.outvars[0]))


@rule("pallas_call")
def _pallas_call(eqn: Any) -> Cost:
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
