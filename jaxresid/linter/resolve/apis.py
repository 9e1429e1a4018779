"""Define the checkpoint, loop, derivative and policy families, by qualified name.

Facts on versions and signatures: each was run on jax 0.10.2 and 0.12 or read from the release.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Library = Literal["jax", "linen", "partitioning", "nnx", "haiku", "equinox", "haliax", "keras"]


class CheckpointApi(NamedTuple):
    """One spelling of checkpoint.

    Attributes:
      target: name of the parameter that takes the function.
      keywords: what it accepts by keyword.
      positional: how many positional arguments it accepts.
      factory: whether calling it without a function gives a decorator.
      implicit: arguments of a method before the ones that `static_argnums` counts from 0:
        0 where `self` (or the module) is counted as 0, 1 where it is not counted.
      loop: whether the checkpointed function runs in a loop that the API makes itself.
      removed: the first jax version that no longer has it; None where it still exists.
      private: whether the name is in a private module of jax.
    """

    library: Library
    target: str = "fun"
    keywords: frozenset[str] = frozenset()
    positional: int = 1
    factory: bool = False
    implicit: int = 0
    loop: bool = False
    removed: tuple[int, int] | None = None
    private: bool = False


_JAX = frozenset({"fun", "prevent_cse", "policy", "static_argnums", "static_argnames", "concrete"})
_LINEN = frozenset(
    "target variables rngs concrete prevent_cse static_argnums policy methods".split()
)
_NNX = frozenset("f prevent_cse static_argnums policy graph graph_updates".split())
_EQUINOX = frozenset({"fun", "prevent_cse", "policy"})
_plain = CheckpointApi("jax", keywords=_JAX)
_removed = CheckpointApi("jax", keywords=_JAX, removed=(0, 10))
_private = CheckpointApi("jax", keywords=_JAX, private=True)
_linen = CheckpointApi("linen", "target", _LINEN, positional=8)
_remat_scan = CheckpointApi(
    "linen",
    "target",
    frozenset("target lengths policy variable_broadcast variable_carry variable_axes".split())
    | {"split_rngs"},
    positional=7,
    loop=True,
)
_equinox = CheckpointApi("equinox", keywords=_EQUINOX, factory=True)

CHECKPOINTS: dict[str, CheckpointApi] = {
    "jax.checkpoint": _plain,
    "jax.remat": _plain,
    "jax.ad_checkpoint.checkpoint": _removed,
    "jax.ad_checkpoint.remat": _removed,
    "jax.new_checkpoint": _removed,
    "jax.new_remat": _removed,
    "jax.api.checkpoint": _removed,
    "jax.api.remat": _removed,
    "jax._src.ad_checkpoint.checkpoint": _private,
    "jax._src.ad_checkpoint.remat": _private,
    "jax._src.api.checkpoint": _private,
    "jax._src.api.remat": _private,
    "flax.linen.remat": _linen,
    "flax.linen.checkpoint": _linen,
    "flax.linen.transforms.remat": _linen,
    "flax.linen.transforms.checkpoint": _linen,
    "flax.linen.remat_scan": _remat_scan,
    "flax.linen.transforms.remat_scan": _remat_scan,
    "flax.linen.partitioning.remat": CheckpointApi(
        "partitioning", "target", _LINEN, positional=8, implicit=1
    ),
    "flax.core.lift.checkpoint": CheckpointApi("linen", "fn", _LINEN | {"fn"}, positional=8),
    "flax.core.lift.remat": CheckpointApi("linen", "fn", _LINEN | {"fn"}, positional=8),
    "flax.nnx.remat": CheckpointApi("nnx", "f", _NNX, factory=True),
    "haiku.remat": CheckpointApi("haiku", "fun", frozenset({"prevent_cse", "policy"}) | _JAX),
    "equinox.filter_checkpoint": _equinox,
    "haliax.filter_checkpoint": CheckpointApi("haliax", keywords=_EQUINOX),
    "haliax.jax_utils.filter_checkpoint": CheckpointApi("haliax", keywords=_EQUINOX),
    "keras.remat": CheckpointApi("keras", "f", frozenset({"f"})),
    "keras.src.backend.remat": CheckpointApi("keras", "f", frozenset({"f"})),
    "keras.src.backend.common.remat.remat": CheckpointApi("keras", "f", frozenset({"f"})),
}


class LoopApi(NamedTuple):
    """A primitive that stages a function it is given.

    Attributes:
      bodies: (position, keyword) of each function argument.
      kind: `loop` runs the body many times; `map` likewise, without a carry; `while` has no
        reverse mode; `branch` runs it at most once but is a boundary for common-subexpression
        elimination as well.
      curried: takes the function alone and returns one that loops: `nn.scan(Body)(xs)`.
      factory: whether it takes only options, and what it returns takes the function:
        `hk.layer_stack(3)(block)`.
    """

    bodies: tuple[tuple[int, str], ...]
    kind: Literal["loop", "map", "while", "branch"] = "loop"
    curried: bool = False
    factory: bool = False


_SCAN = LoopApi(((0, "f"),))
_FORI = LoopApi(((2, "body_fun"),))
_WHILE = LoopApi(((0, "cond_fun"), (1, "body_fun")), "while")
_LAYER_STACK = LoopApi((), curried=True, factory=True)
LOOPS: dict[str, LoopApi] = {
    "jax.lax.scan": _SCAN,
    "jax.lax.map": LoopApi(((0, "f"),), "map"),
    "jax.lax.fori_loop": _FORI,
    "jax.lax.while_loop": _WHILE,
    "jax.lax.associative_scan": LoopApi(((0, "fn"),)),
    "jax.lax.cond": LoopApi(((1, "true_fun"), (2, "false_fun")), "branch"),
    "jax.lax.switch": LoopApi(((1, "branches"),), "branch"),
    "flax.linen.scan": LoopApi(((0, "target"),), curried=True),
    "flax.linen.transforms.scan": LoopApi(((0, "target"),), curried=True),
    "flax.linen.partitioning.scan_with_axes": LoopApi(((0, "target"),), curried=True),
    "flax.linen.while_loop": LoopApi(((0, "cond_fn"), (1, "body_fn")), "while"),
    "flax.linen.cond": LoopApi(((1, "true_fun"), (2, "false_fun")), "branch"),
    "flax.linen.switch": LoopApi(((1, "branches"),), "branch"),
    "flax.nnx.scan": LoopApi(((0, "f"),), curried=True),
    "flax.nnx.fori_loop": _FORI,
    "flax.nnx.while_loop": _WHILE,
    "flax.nnx.cond": LoopApi(((1, "true_fun"), (2, "false_fun")), "branch"),
    "flax.nnx.switch": LoopApi(((1, "branches"),), "branch"),
    "flax.jax_utils.scan_in_dim": LoopApi(((0, "body_fn"),)),
    "haiku.scan": _SCAN,
    "haiku.map": LoopApi(((0, "f"),), "map"),
    "haiku.fori_loop": _FORI,
    "haiku.while_loop": _WHILE,
    "haiku.cond": LoopApi(((1, "true_fun"), (2, "false_fun")), "branch"),
    "haiku.switch": LoopApi(((1, "branches"),), "branch"),
    "haiku.layer_stack": _LAYER_STACK,
    "haiku.experimental.layer_stack": _LAYER_STACK,
    "equinox.internal.while_loop": LoopApi(((0, "cond_fun"), (1, "body_fun"))),
    "equinox.internal.scan": _SCAN,
    "haliax.scan": LoopApi(((0, "f"),), curried=True),
    "haliax.fold": LoopApi(((0, "fn"),), curried=True),
    "haliax.map": LoopApi(((0, "fn"),), "map", curried=True),
}

# How the copies of Haiku's layer stack end that AlphaFold and its descendants have.
_LAYER_STACK_COPY = ".model.layer_stack.layer_stack"


def loop(qualname: str) -> LoopApi | None:
    """Return the member of the loop family that a qualified name is, None if it is none."""
    return _LAYER_STACK if qualname.endswith(_LAYER_STACK_COPY) else LOOPS.get(qualname)


Mode = Literal["reverse", "forward"]
_REVERSE = """
jax.grad jax.value_and_grad jax.vjp jax.linearize jax.jacrev jax.jacobian jax.hessian
flax.linen.grad flax.linen.value_and_grad flax.linen.vjp flax.nnx.grad flax.nnx.value_and_grad
flax.nnx.vjp haiku.grad haiku.value_and_grad
equinox.filter_grad equinox.filter_value_and_grad equinox.filter_vjp equinox.filter_jacrev
equinox.filter_hessian haliax.grad haliax.value_and_grad
optax.value_and_grad_from_state
""".split()
_FORWARD = """
jax.jvp jax.jacfwd flax.linen.jvp flax.nnx.jvp equinox.filter_jvp equinox.filter_jacfwd
jax.experimental.jet.jet
""".split()
DERIVATIVES: dict[str, Mode] = {
    **dict.fromkeys(_REVERSE, "reverse"),
    **dict.fromkeys(_FORWARD, "forward"),
}

# name -> whether what the function keeps for the backward pass is the same with and without it.
TRANSFORMS: dict[str, str] = {
    "functools.partial": "partial",
    "jax.tree_util.Partial": "partial",
    **dict.fromkeys(
        """
        jax.jit jax.experimental.pjit.pjit flax.linen.jit flax.nnx.jit equinox.filter_jit haiku.jit
        flax.nnx.pjit haliax.named_jit jax.named_call flax.linen.named_call haiku.named_call
        functools.wraps jax.experimental.checkify.checkify chex.assert_max_traces
        """.split(),
        "jit",
    ),
    **dict.fromkeys(
        # `.apply` of what they return calls the function.
        "haiku.transform haiku.transform_with_state haiku.without_apply_rng".split(),
        "instance",
    ),
    **dict.fromkeys(
        """
        jax.vmap jax.pmap flax.linen.vmap flax.nnx.vmap flax.nnx.pmap equinox.filter_vmap
        equinox.filter_pmap haiku.vmap haliax.vmap jax.shard_map
        jax.experimental.shard_map.shard_map jax.experimental.maps.xmap
        """.split(),
        "vmap",
    ),
}
CUSTOM_RULES = frozenset(
    """
    jax.custom_vjp jax.custom_jvp jax.custom_gradient jax.custom_derivatives.custom_vjp
    jax.custom_derivatives.custom_jvp flax.linen.custom_vjp flax.nnx.custom_vjp
    equinox.filter_custom_vjp equinox.filter_custom_jvp
    """.split()
)

PLAIN_POLICIES = frozenset(
    """
    everything_saveable nothing_saveable dots_saveable checkpoint_dots
    dots_with_no_batch_dims_saveable checkpoint_dots_with_no_batch_dims
    """.split()
)
NAME_FACTORIES = frozenset(
    "save_only_these_names save_any_names_but_these save_anything_except_these_names".split()
)
OFFLOAD_FACTORIES = frozenset(
    "save_and_offload_only_these_names offload_dot_with_no_batch_dims".split()
)
FACTORIES = NAME_FACTORIES | OFFLOAD_FACTORIES | {"save_from_both_policies"}
POLICIES = PLAIN_POLICIES | FACTORIES
POLICIES_MODULE = "checkpoint_policies"
POLICY_MODULES = tuple(
    f"{parent}.{POLICIES_MODULE}."
    for parent in ("jax", "jax.ad_checkpoint", "jax._src.ad_checkpoint")
)
CHECKPOINT_NAMES = frozenset(
    {
        "jax.ad_checkpoint.checkpoint_name",
        "jax._src.ad_checkpoint.checkpoint_name",
    }
)


def policy_name(qualname: str) -> str | None:
    """Return the name of a policy in its module, None if a qualified name is not a policy's.

    For example, `jax.checkpoint_policies.dots_saveable` gives `dots_saveable`.
    """
    for module in POLICY_MODULES:
        if qualname.startswith(module):
            rest = qualname[len(module) :]
            return rest if "." not in rest else None
    return None


MODULE_BASES = {
    "flax.linen.Module": "linen",
    "flax.nnx.Module": "nnx",
    "equinox.Module": "equinox",
    "haiku.Module": "haiku",
}
