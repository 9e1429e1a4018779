"""The rule `useless-checkpoint` (JXR801)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example


class UselessCheckpoint(TracedRule):
    """The peak would be as low, or nearly, without a checkpoint.

    ## What it does
    Takes each checkpoint out of the traced program, by itself, and compares the estimated peak
    with and without it. Reports those that lower the peak by less than a quarter of what they
    drop, and by less than a tenth. Where the checkpoint is around the whole loss, its
    last stage or a loop, the linter's code for that is reported in its place.

    ## Why is this bad?
    The peak is elsewhere, so recomputing what the checkpoint drops costs compute and saves no
    memory.

    ## Use instead
    Checkpoint what is live at the peak, which `jaxresid report` lists with its lines; or nothing.

    ## When is this fine?
    Where the barrier itself is wanted, as it keeps a compiler from sharing gathered weights between
    the passes. Where inputs other than those traced move the peak.
    """

    bad = (
        Example(
            """# With --on tpu:v5e.
import jax
import jax.numpy as jnp

dots = jax.checkpoint_policies.dots_saveable


def net(ws, x):
    for w in ws:
        x = jax.nn.relu(x @ w)
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


def layer(w, x):
    return jnp.sin(jnp.cos(jnp.sin(x @ w)))


def loss(w, x):
    for _ in range(8):
        x = jax.checkpoint(layer)(w, x)
    return jnp.sum(x**2)


def loss_inputs():
    square = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return square, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
"""
        ),
        Example(
            """import jax
import jax.numpy as jnp
from jax import lax


def layer(x, w):
    return jnp.sin(jnp.cos(jnp.sin(x @ w))), None


def loss(ws, x):
    x, _ = lax.scan(jax.checkpoint(layer, prevent_cse=False), x, ws)
    return jnp.sum(x**2)


def loss_inputs():
    squares = jax.ShapeDtypeStruct((8, 256, 256), jnp.float32)
    return squares, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
"""
        ),
    )
