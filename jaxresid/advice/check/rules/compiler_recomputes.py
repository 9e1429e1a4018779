"""The rule `compiler-recomputes` (JXR808)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example


class CompilerRecomputes(TracedRule):
    """A checkpoint recomputes what the compiler would recompute anyway.

    ## What it does
    Finds checkpoints with a policy that saves something, in straight-line code, without which the
    estimated peak would be as low, although they drop residuals.

    ## Why is this bad?
    A TPU's compiler computes cheap elementwise values (gelu, relu, silu, softmax) again where they
    are read, in matmuls too; a GPU's does so outside of matmuls, which read arrays. A checkpoint
    adds its barriers, which keep each layer's inputs too.

    ## Use instead
    No checkpoint there, or one without a policy around more than a layer. Policies pay off around
    the body of a loop, which no compiler recomputes, and for sin, cos and erf, which are kept.

    ## When is this fine?
    Where the passes are compiled apart, or not at all, and on XLA:CPU.
    """

    bad = (
        Example(
            """# With --on tpu:v5e.
import jax
import jax.numpy as jnp

dots = jax.checkpoint_policies.dots_saveable


def net(ws, x):
    for w in ws:
        x = jax.nn.silu(x @ w)
    return jnp.sum(x**2)


def loss(ws, x):
    return jax.checkpoint(net, policy=dots)(ws, x)  # !


def loss_inputs():
    square = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return [square] * 8, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
""",
            on="tpu:v5e",
        ),
    )
    good = (
        Example(
            """import jax
import jax.numpy as jnp

dots = jax.checkpoint_policies.dots_saveable


def net(ws, x):
    for w in ws:
        x = jnp.sin(jnp.cos(jnp.sin(x @ w)))
    return jnp.sum(x**2)


def loss(ws, x):
    return jax.checkpoint(net, policy=dots)(ws, x)


def loss_inputs():
    square = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return [square] * 8, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
"""
        ),
        Example(
            """import jax
import jax.numpy as jnp


def loss(ws, x):
    for w in ws:
        x = jax.nn.silu(x @ w)
    return jnp.sum(x**2)


def loss_inputs():
    square = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return [square] * 8, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
"""
        ),
    )
