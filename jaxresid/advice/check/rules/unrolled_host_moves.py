"""The rule `unrolled-host-moves` (JXR809)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_START = """import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def memory(kind):
    return NamedSharding(Mesh(jax.devices()[:1], "x"), PartitionSpec(), memory_kind=kind)


{loss}


def loss_inputs():
    host = memory("pinned_host")
{inputs}
    return ws, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
"""

_LOOP = """def loss(ws, x):
    for w in ws:
        w = jax.device_put(w, memory("device")){mark}
        x = jnp.sin(x @ w)
    return jnp.sum(x)"""

_SCAN = """@jax.checkpoint
def layer(x, w):
    return jnp.sin(x @ jax.device_put(w, memory("device"))), None


def loss(ws, x):
    x, _ = lax.scan(layer, x, ws)
    return jnp.sum(x)"""

_MANY = "    ws = [jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=host)] * 8"
_STACKED = "    ws = jax.ShapeDtypeStruct((8, 256, 256), jnp.float32, sharding=host)"


class UnrolledHostMoves(TracedRule):
    """Arguments in host memory are moved to the device one by one in straight-line code.

    ## What it does
    Finds lines that move arguments from host memory to the device in three steps or more, with work
    in between: above all a Python loop over the layers. A checkpoint around each step does not
    change that.

    ## Why is this bad?
    Code that looks like one layer at a time is one program in which nothing waits: the compiler
    starts the moves as early as memory allows, so the arguments fill the device memory that they
    were meant to spare. Compiled for a TPU v5e (libtpu 0.0.52), 14 of 16 weights of 1 GiB are on
    the device at once, and also 14 of 32; in a scan only one is.

    ## Use instead
    Stack the arguments and scan over them, with the move inside the body, and the body checkpointed
    so that the copies are not kept for the backward pass.

    ## When is this fine?
    Where the device has room for all of them anyway, and the moves should overlap with the work.
    """

    bad = (Example(_START.format(loss=_LOOP.format(mark="  # !"), inputs=_MANY)),)
    good = (
        Example(_START.format(loss=_SCAN, inputs=_STACKED)),
        Example(
            _START.format(
                loss=_LOOP.format(mark="")
                .replace("    for", '    ws = jax.device_put(ws, memory("device"))\n    for')
                .replace('        w = jax.device_put(w, memory("device"))\n', ""),
                inputs=_MANY,
            )
        ),
    )
