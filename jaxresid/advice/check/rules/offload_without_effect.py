"""The rule `offload-without-effect` (JXR805)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_SCAN = """import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

offload = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["hidden"],
    offload_src="device",
    offload_dst="pinned_host",
)

{body}

def loss(ws, x):
    checkpointed = jax.checkpoint(layer, policy=offload, prevent_cse=False)
    x, _ = lax.scan(checkpointed, x, ws){mark}
    return jnp.sum(x**2)


def loss_inputs():
    squares = jax.ShapeDtypeStruct((8, 256, 256), jnp.float32)
    return squares, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
"""


class OffloadWithoutEffect(TracedRule):
    """A policy offloads a value to host memory, but the value is not moved there.

    ## What it does
    Finds checkpoints whose policy offloads something, although no residual of the traced function
    is in host memory because of it.

    ## Why is this bad?
    The value stays in device memory. A policy offloads only residuals: a result of the checkpointed
    function (above all the carry of a loop) is not one, nor is a value that the backward pass does
    not need. And since JAX 0.7.1 any `offload_dst` but `'pinned_host'` silently means device
    memory.

    ## Use instead
    Name the carry where it enters the body, and write `offload_dst='pinned_host'`.

    ## When is this fine?
    Where one policy serves many functions and some have nothing to offload.
    """

    bad = (
        Example(
            _SCAN.format(
                body="""
def layer(x, w):
    x = jnp.sin(jnp.cos(x @ w))
    return checkpoint_name(x, "hidden"), None
""",
                mark="  # !",
            )
        ),
    )
    good = (
        Example(
            _SCAN.format(
                body="""
def layer(x, w):
    x = checkpoint_name(x, "hidden")
    return jnp.sin(jnp.cos(x @ w)), None
""",
                mark="",
            )
        ),
    )
