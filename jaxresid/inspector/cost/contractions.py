"""Count the FLOPs of dots and convolutions."""

from __future__ import annotations

import functools
import math

from jaxresid.inspector.cost.registry import Rules
from jaxresid.inspector.jaxpr.extents import extent, shape, size
from jaxresid.jax_compat.jaxpr_types import Eqn
from jaxresid.results import Cost

rule = Rules()


@rule("dot_general")
def _dot_general(eqn: Eqn) -> Cost:
    """Count two FLOPs for each pair of an element of the result and one of the contracted axes."""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    return Cost(matmul_flops=2 * size(eqn.outvars[0]) * extent(eqn.invars[0], contracted))


@rule("ragged_dot_general")
def _ragged_dot(eqn: Eqn) -> Cost:
    """Count a dot in which every row meets only its own group, whatever the groups' sizes."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    flops = 2 * size(eqn.outvars[0]) * extent(eqn.invars[0], contracted)
    if set(numbers.lhs_ragged_dimensions) <= set(contracted):
        # The result has an axis of groups, and each contracted index belongs to one of them.
        flops //= max(1, size(eqn.invars[2]))
    return Cost(matmul_flops=flops)


@rule("scaled_matmul", "scaled_matmul_wrapper")
def _scaled_matmul(eqn: Eqn) -> Cost:
    """Count a batched matrix product of operands `(batch, m, k)` and `(batch, n, k)`."""
    return Cost(matmul_flops=2 * size(eqn.outvars[0]) * shape(eqn.invars[0])[-1])


@rule("conv_general_dilated")
def _convolution(eqn: Eqn) -> Cost:
    """Count two FLOPs per tap that reads the image.

    Taps in the padding or between dilated elements are free.

    Along each spatial axis the (output, kernel) index pairs that read the image are counted; with
    batch n, o output features and i input features per group the product is the following, as in
    XLA's HloCostAnalysis::HandleConvolution:

        2 × n × o × i × pairs₁ × pairs₂ × …
    """
    params = eqn.params
    numbers = params["dimension_numbers"]
    image, kernel, out = shape(eqn.invars[0]), shape(eqn.invars[1]), shape(eqn.outvars[0])
    taps = 1
    for axis, (low, _) in enumerate(params["padding"]):
        taps *= _valid_taps(
            image[numbers.lhs_spec[2 + axis]],
            kernel[numbers.rhs_spec[2 + axis]],
            out[numbers.out_spec[2 + axis]],
            params["window_strides"][axis],
            int(low),  # numpy's, of "SAME" on 0.7
            params["lhs_dilation"][axis],
            params["rhs_dilation"][axis],
        )
    batch, features = out[numbers.out_spec[0]], out[numbers.out_spec[1]]
    return Cost(conv_flops=2 * batch * features * kernel[numbers.rhs_spec[1]] * taps)


@functools.lru_cache(4096)
def _valid_taps(
    image: int, kernel: int, out: int, stride: int, low: int, dilation: int, spread: int
) -> int:
    """Count the pairs of output and kernel index along one axis that read an element of the image.

    Pair (o, k) reads position o × stride + k × spread - low of the image dilated by `dilation`.
    """
    span = (image - 1) * dilation  # the last position
    steps = (kernel, spread, out, stride) if kernel <= out else (out, stride, kernel, spread)
    few, few_step, many, many_step = steps
    common = math.gcd(many_step, dilation)
    period = dilation // common
    inverse = pow(many_step // common, -1, period) if period > 1 else 0
    count = 0
    for i in range(few):
        offset = i * few_step - low
        if offset % common:
            continue
        first = max(0, -(offset // many_step))
        last = min(many - 1, (span - offset) // many_step)
        if last < first:
            continue
        # j × many_step + offset is a multiple of the dilation for one j in each period.
        phase = (-(offset // common) * inverse) % period
        first += (phase - first) % period
        count += max(0, (last - first) // period + 1)
    return count
