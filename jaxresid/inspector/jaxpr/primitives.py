"""State what JAX's primitives are: one row for each, and the sets of those of a kind.

What a compiler does with them is in that compiler's room, as a difference from these sets. The
FLOPs of those that do not take so many per element are rules, see `cost.flops`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "elementwise",  # an element of the result is made of the operands' elements in its place
    "special",  # the same, by a series or an iteration
    "cast",  # the operand's elements in another type, or rounded
    "view",  # the operand's elements in another shape or order, or its bits as another type
    "copy",  # the operand as it is, in a place, layout or memory of its own
    "mark",  # the operand itself; the mark is for JAX alone
    "sharding",  # the operand itself, and how devices share it
    "dependency",  # the operands themselves, one after or along with another
    "key",  # the operand itself: random keys, and their bits
    "fill",  # made of nothing, or of a value that is repeated
    "part",  # some of the operand's elements, side by side in it
    "move",  # the operands' elements in other places
    "scatter",  # the operand, with other elements written to, or added up in, places of it
    "contraction",  # sums of products
    "reduction",  # the elements along axes as one
    "arg_reduction",  # the index of one of them
    "cumulative",  # the elements along an axis, each as one with those before it
    "window",  # the elements in windows as one
    "axis",  # what else goes along an axis
    "decomposition",  # linear algebra
    "random",
    "exchange",  # what devices send to each other
    "exchange_reduction",  # the same, added up
    "exchange_end",  # where the result of an exchange that began before is waited for
    "reference",  # of mutable arrays
    "call",  # runs a jaxpr; differentiated as what is in it
    "checkpoint",
    "rule",  # runs a jaxpr; has a derivative of its own
    "control",  # loops and branches
    "map",  # runs a jaxpr on each device
    "foreign",  # a kernel that JAX does not see into
    "callback",  # into Python
    "bookkeeping",  # no numbers: tokens, places, messages
]


Nesting = Literal["call", "scan", "while", "branch", "solve"]


@dataclass(frozen=True, slots=True)
class Primitive:
    """One primitive.

    Attributes:
      name: its name, as `jax_compat.primitive_name` returns it.
      kind: what it does with its operands.
      flops: the FLOPs per element of the result, as XLA counts them on f32; None where they do not
        go by that.
      transcendentals: the transcendental evaluations per element of the result, where `flops` is
        given.
      iterates: whether it runs until it converges or accepts; `flops` are those of one trip.
      body: the param with the jaxpr that it runs.
      nesting: how the inside of that lines up with operands and results, see `nesting`; a `call`
        runs it on its operands, one to one, for its results.
      applied: the params with jaxprs that it applies to single elements.
      runs: of several jaxprs that it holds, the param with the one that counts.
    """

    name: str
    kind: Kind
    flops: int | None = None
    transcendentals: int = 0
    iterates: bool = False
    body: str | None = None
    nesting: Nesting = "call"
    applied: tuple[str, ...] = ()
    runs: str | None = None


_ROWS = (
    # An element of the result is made of the operands' elements in its place: one HLO instruction,
    # or a short formula of them.
    Primitive("abs", "elementwise", 1),
    Primitive("add", "elementwise", 1),
    Primitive("add_any", "elementwise", 1),
    Primitive("and", "elementwise", 1),
    Primitive("ceil", "elementwise", 1),
    Primitive("clamp", "elementwise", 1),
    Primitive("clz", "elementwise", 1),
    Primitive("complex", "elementwise", 1),
    Primitive("conj", "elementwise", 4),
    Primitive("div", "elementwise", 1),
    Primitive("eq", "elementwise", 1),
    Primitive("eq_to", "elementwise", 1),
    Primitive("floor", "elementwise", 1),
    Primitive("ge", "elementwise", 1),
    Primitive("gt", "elementwise", 1),
    Primitive("imag", "elementwise", 1),
    Primitive("integer_pow", "elementwise"),
    Primitive("is_finite", "elementwise", 1),
    Primitive("le", "elementwise", 1),
    Primitive("le_to", "elementwise", 1),
    Primitive("lt", "elementwise", 1),
    Primitive("lt_to", "elementwise", 1),
    Primitive("max", "elementwise", 1),
    Primitive("min", "elementwise", 1),
    Primitive("mul", "elementwise", 1),
    Primitive("mulhi", "elementwise", 1),
    Primitive("ne", "elementwise", 1),
    Primitive("neg", "elementwise", 1),
    Primitive("nextafter", "elementwise", 24),
    Primitive("not", "elementwise", 1),
    Primitive("one_minus_square", "elementwise", 2),  # 0.11, in the derivative of tanh
    Primitive("or", "elementwise", 1),
    Primitive("polynomial", "elementwise"),  # 0.12, in the derivative of erf
    Primitive("population_count", "elementwise", 1),
    Primitive("real", "elementwise", 1),
    Primitive("reciprocal", "elementwise", 1),
    Primitive("rem", "elementwise", 1),
    Primitive("round", "elementwise", 1),
    Primitive("select_n", "elementwise", 0),
    Primitive("shift_left", "elementwise", 1),
    Primitive("shift_right_arithmetic", "elementwise", 1),
    Primitive("shift_right_logical", "elementwise", 1),
    Primitive("sign", "elementwise", 1),
    Primitive("square", "elementwise", 1),
    Primitive("sub", "elementwise", 1),
    Primitive("xor", "elementwise", 1),
    # The same, transcendental.
    Primitive("acos", "elementwise", 3, 2),
    Primitive("acosh", "elementwise", 7, 4),
    Primitive("asin", "elementwise", 3, 2),
    Primitive("asinh", "elementwise", 11, 3),
    Primitive("atan", "elementwise", 0, 1),
    Primitive("atan2", "elementwise", 0, 1),
    Primitive("atanh", "elementwise", 6, 2),
    Primitive("cbrt", "elementwise", 0, 1),
    Primitive("cos", "elementwise", 0, 1),
    Primitive("cosh", "elementwise", 3, 2),
    Primitive("erf", "elementwise", 0, 1),
    Primitive("erf_inv", "elementwise", 37, 2),
    Primitive("erfc", "elementwise", 62, 1),
    Primitive("exp", "elementwise", 0, 1),
    Primitive("exp2", "elementwise", 1, 1),
    Primitive("expm1", "elementwise", 0, 1),
    Primitive("log", "elementwise", 0, 1),
    Primitive("log1p", "elementwise", 0, 1),
    Primitive("log2", "elementwise", 1, 1),  # 0.11
    Primitive("logistic", "elementwise", 3, 1),
    Primitive("pow", "elementwise", 0, 1),
    Primitive("rsqrt", "elementwise", 0, 1),
    Primitive("sin", "elementwise", 0, 1),
    Primitive("sinh", "elementwise", 10, 3),
    Primitive("sqrt", "elementwise", 0, 1),
    Primitive("tan", "elementwise", 0, 1),
    Primitive("tanh", "elementwise", 0, 1),
    # The same, as a series or an iteration: too long for a kernel of other things.
    Primitive("bessel_i0e", "special", 83, 1),
    Primitive("bessel_i1e", "special", 83, 1),
    Primitive("digamma", "special", 73, 3),
    Primitive("igamma", "special", 183, 6, iterates=True),
    Primitive("igamma_grad_a", "special", 335, 14, iterates=True),
    Primitive("igammac", "special", 183, 6, iterates=True),
    Primitive("lgamma", "special", 53, 4),
    Primitive("polygamma", "special", 260, 19),
    Primitive("regularized_incomplete_beta", "special", 293, 17, iterates=True),
    Primitive("zeta", "special", 121, 11),
    # The operand in another form: of another type, of other axes, elsewhere, or under another name.
    Primitive("convert_element_type", "cast", 1),
    Primitive("reduce_precision", "cast", 1),
    Primitive("bitcast", "view", 0),
    Primitive("bitcast_convert_type", "view", 1),
    Primitive("reshape", "view", 0),
    Primitive("squeeze", "view", 0),
    Primitive("transpose", "view", 0),
    Primitive("copy", "copy", 0),
    Primitive("device_put", "copy", 0),
    Primitive("layout_constraint", "copy", 0),
    Primitive("reshard", "copy", 0),
    Primitive("name", "mark", 0),
    Primitive("stop_gradient", "mark", 0),
    Primitive("mesh_cast", "sharding", 0),  # 0.7
    Primitive("preduced", "sharding", 0),
    Primitive("pvary", "sharding", 0),
    Primitive("reduced_vary_cast", "sharding", 0),
    Primitive("reduced_vary_cast_p", "sharding", 0),  # until 0.11
    Primitive("sharding_constraint", "sharding", 0),
    Primitive("vary_unreduced_cast", "sharding", 0),
    Primitive("vary_unreduced_cast_p", "sharding", 0),  # until 0.11
    Primitive("add_dependency", "dependency", 0),
    Primitive("optimization_barrier", "dependency", 0),
    Primitive("shard_alike", "dependency", 0),
    Primitive("tie", "dependency", 0),
    Primitive("random_clone", "key", 0),
    Primitive("random_unwrap", "key", 0),
    Primitive("random_wrap", "key", 0),
    # Values made of nothing, or of a smaller value; parts of a value; values put side by side.
    Primitive("broadcast_in_dim", "fill", 0),
    Primitive("empty", "fill", 0),
    Primitive("empty2", "fill", 0),
    Primitive("iota", "fill", 0),
    Primitive("zeros_like", "fill", 0),
    Primitive("dynamic_slice", "part", 0),
    Primitive("slice", "part", 0),
    Primitive("split", "part", 0),
    Primitive("unstack", "part", 0),
    Primitive("broadcast_to", "move", 0),
    Primitive("concatenate", "move", 0),
    Primitive("dynamic_update_slice", "move", 0),
    Primitive("gather", "move", 0),
    Primitive("lu_pivots_to_permutation", "move", 0),
    Primitive("pad", "move", 0),
    Primitive("rev", "move", 0),
    Primitive("stack", "move", 0),  # 0.10
    Primitive("tile", "move", 0),
    Primitive("scatter", "scatter", 0),
    Primitive("scatter-add", "scatter"),
    Primitive("scatter-max", "scatter"),
    Primitive("scatter-min", "scatter"),
    Primitive("scatter-mul", "scatter"),
    Primitive("scatter-sub", "scatter"),
    # Sums of products, sums, and what else reads along an axis.
    Primitive("conv_general_dilated", "contraction"),
    Primitive("dot_general", "contraction"),
    Primitive("ragged_dot_general", "contraction"),
    Primitive("scaled_matmul", "contraction"),
    Primitive("scaled_matmul_wrapper", "contraction"),
    Primitive("reduce_and", "reduction"),
    Primitive("reduce_max", "reduction"),
    Primitive("reduce_min", "reduction"),
    Primitive("reduce_or", "reduction"),
    Primitive("reduce_prod", "reduction"),
    Primitive("reduce_sum", "reduction"),
    Primitive("reduce_xor", "reduction"),
    Primitive("argmax", "arg_reduction"),
    Primitive("argmin", "arg_reduction"),
    Primitive("cumlogsumexp", "cumulative"),
    Primitive("cummax", "cumulative"),
    Primitive("cummin", "cumulative"),
    Primitive("cumprod", "cumulative"),
    Primitive("cumsum", "cumulative"),
    Primitive("reduce", "window", applied=("jaxpr",)),
    Primitive("reduce_window", "window", applied=("jaxpr",)),
    Primitive("reduce_window_max", "window"),
    Primitive("reduce_window_min", "window"),
    Primitive("reduce_window_sum", "window"),
    Primitive("select_and_gather_add", "window"),
    Primitive("select_and_scatter", "window", applied=("select_jaxpr", "scatter_jaxpr")),
    Primitive("select_and_scatter_add", "window"),
    Primitive("approx_top_k", "axis"),
    Primitive("fft", "axis"),
    Primitive("sort", "axis"),
    Primitive("top_k", "axis"),
    Primitive("cholesky", "decomposition"),
    Primitive("cholesky_update", "decomposition"),
    Primitive("eig", "decomposition"),
    Primitive("eigh", "decomposition"),
    Primitive("hessenberg", "decomposition"),
    Primitive("householder_product", "decomposition"),
    Primitive("lu", "decomposition"),
    Primitive("ormqr", "decomposition"),
    Primitive("qr", "decomposition"),
    Primitive("schur", "decomposition"),
    Primitive("svd", "decomposition"),
    Primitive("symmetric_product", "decomposition"),
    Primitive("triangular_solve", "decomposition"),
    Primitive("tridiagonal", "decomposition"),
    Primitive("tridiagonal_solve", "decomposition"),
    # Random numbers.
    Primitive("random_bits", "random"),
    Primitive("random_fold_in", "random"),
    Primitive("random_gamma", "random", 1414, 8, iterates=True),
    Primitive("random_seed", "random"),
    Primitive("random_split", "random"),
    Primitive("rng_bit_generator", "random", 0, 1),
    Primitive("rng_uniform", "random", 0, 1),
    Primitive("threefry2x32", "random"),
    # What devices exchange; from 0.10 on some begin in one eqn and end in another.
    Primitive("all_gather", "exchange", 0),
    Primitive("all_gather_invariant", "exchange", 0),
    Primitive("all_gather_reduced", "exchange", 0),
    Primitive("all_gather_reduced_start", "exchange", 0),
    Primitive("all_gather_start", "exchange", 0),
    Primitive("all_to_all", "exchange", 0),
    Primitive("all_to_all_start", "exchange", 0),
    Primitive("pbroadcast", "exchange", 0),
    Primitive("pbroadcast_start", "exchange", 0),
    Primitive("ppermute", "exchange", 0),
    Primitive("ppermute_start", "exchange", 0),
    Primitive("ragged_all_to_all", "exchange", 0),
    Primitive("pmax", "exchange_reduction"),
    Primitive("pmin", "exchange_reduction"),
    Primitive("psum", "exchange_reduction"),
    Primitive("psum_invariant", "exchange_reduction"),
    Primitive("psum_invariant_start", "exchange_reduction"),
    Primitive("psum_start", "exchange_reduction"),
    Primitive("reduce_scatter", "exchange_reduction"),
    Primitive("reduce_scatter_start", "exchange_reduction"),
    Primitive("unreduced_pmax", "exchange_reduction"),
    Primitive("unreduced_pmin", "exchange_reduction"),
    Primitive("unreduced_psum", "exchange_reduction"),
    Primitive("unreduced_psum_start", "exchange_reduction"),
    Primitive("unreduced_reduce_scatter", "exchange_reduction"),
    Primitive("unreduced_reduce_scatter_start", "exchange_reduction"),
    Primitive("all_gather_done", "exchange_end", 0),
    Primitive("all_to_all_done", "exchange_end", 0),
    Primitive("pbroadcast_done", "exchange_end", 0),
    Primitive("ppermute_done", "exchange_end", 0),
    Primitive("psum_done", "exchange_end", 0),
    Primitive("reduce_scatter_done", "exchange_end", 0),
    # Mutable arrays.
    Primitive("accum_grad_in_ref", "reference"),
    Primitive("addupdate", "reference"),
    Primitive("empty_ref", "reference", 0),
    Primitive("free_ref", "reference", 0),
    Primitive("freeze", "reference", 0),
    Primitive("get", "reference", 0),
    Primitive("mutable_array", "reference", 0),  # 0.7
    Primitive("new_ref", "reference", 0),
    Primitive("swap", "reference", 0),
    # What holds jaxprs.
    Primitive("closed_call", "call", body="call_jaxpr"),  # until 0.10
    Primitive("eval_jaxpr", "call", body="jaxpr"),  # 0.12, in place of closed_call
    Primitive("jit", "call", body="jaxpr"),
    Primitive("remat", "checkpoint", body="jaxpr"),
    Primitive("custom_jvp_call", "rule", body="call_jaxpr"),
    Primitive("custom_lin", "rule", body="call_jaxpr"),
    Primitive("custom_vjp_call", "rule", body="call_jaxpr"),
    Primitive("custom_linear_solve", "rule", body="jaxprs", nesting="solve"),
    Primitive("linear_call", "rule", runs="callee"),
    Primitive("remat_opt", "rule", runs="fwd_jaxpr"),
    Primitive("cond", "control", body="branches", nesting="branch"),
    Primitive("scan", "control", body="jaxpr", nesting="scan"),
    Primitive("while", "control", body="body_jaxpr", nesting="while"),
    Primitive("shard_map", "map", body="jaxpr"),
    Primitive("xla_pmap", "map", body="call_jaxpr"),  # until pmap became jit of shard_map
    # Code that JAX does not see.
    Primitive("dot_product_attention_bwd_wrapper", "foreign"),  # cuDNN's
    Primitive("dot_product_attention_fp8_bwd_wrapper", "foreign"),
    Primitive("dot_product_attention_fp8_fwd_wrapper", "foreign"),
    Primitive("dot_product_attention_fwd_wrapper", "foreign"),
    Primitive("ffi_call", "foreign"),
    Primitive("pallas_call", "foreign"),
    Primitive("tpu_custom_call", "foreign"),
    Primitive("io_callback", "callback"),
    Primitive("pure_callback", "callback"),
    # No numbers: tokens, places, messages, memories.
    Primitive("after_all", "bookkeeping", 0),
    Primitive("axis_index", "bookkeeping", 0),
    Primitive("create_token", "bookkeeping", 0),
    Primitive("dce_sink", "bookkeeping", 0),
    Primitive("debug_callback", "bookkeeping", 0),
    Primitive("debug_print", "bookkeeping", 0),
    Primitive("from_edtype", "bookkeeping", 0),
    Primitive("full_to_shard", "bookkeeping", 0),
    Primitive("inspect_sharding", "bookkeeping", 0),
    Primitive("iota_2x32_shape", "bookkeeping", 0),
    Primitive("pin", "bookkeeping", 0),
    Primitive("platform_index", "bookkeeping", 0),
    Primitive("remove_memory_space", "bookkeeping", 0),
    Primitive("shard_to_full", "bookkeeping", 0),
    Primitive("to_edtype", "bookkeeping", 0),
    Primitive("unpin", "bookkeeping", 0),
    Primitive("with_memory_space_constraint", "bookkeeping", 0),
    Primitive("xla_metadata_value", "bookkeeping", 0),
    # Equinox'. The selection takes its first case where it is of no batch.
    Primitive("maybe_set", "move", 0),
    Primitive("nonbatchable", "mark", 0),
    Primitive("nondifferentiable_backward", "mark", 0),
    Primitive("select_if_vmap", "elementwise", 0),
    Primitive("unvmap_all", "axis"),
    Primitive("unvmap_any", "axis"),
    Primitive("unvmap_max", "axis"),
    Primitive("vprim", "move", 0),  # `maybe_set` of a batch
)

PRIMITIVES = {row.name: row for row in _ROWS}


def of_kind(*kinds: Kind) -> frozenset[str]:
    """Return the names of the primitives that are of one of these kinds."""
    return frozenset(row.name for row in _ROWS if row.kind in kinds)


ELEMENTWISE = of_kind("elementwise")
CASTS = of_kind("cast")
VIEWS = of_kind("view")
COPIES = of_kind("copy")
MARKS = of_kind("mark")
SHARDINGS = of_kind("sharding")
FILLS = of_kind("fill")
PARTS = of_kind("part")
SCATTERS = of_kind("scatter")
CONTRACTIONS = of_kind("contraction")
REDUCTIONS = of_kind("reduction")
ARG_REDUCTIONS = of_kind("arg_reduction")
CALLS = of_kind("call")
RULES = of_kind("rule")
CONTROL = of_kind("control")
COLLECTIVES = of_kind("exchange", "exchange_reduction")

# Of several operands at once each result is its own: a tree that is moved is one eqn.
SIDE_BY_SIDE = frozenset({"device_put", "optimization_barrier"})

# What such an eqn makes is its operand in another shape, type or memory. A name is more: it is
# what a policy sees.
TRANSPARENT = CASTS | VIEWS | COPIES | SHARDINGS | MARKS - {"name"} | {"broadcast_in_dim"}
