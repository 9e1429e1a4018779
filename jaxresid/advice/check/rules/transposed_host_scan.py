"""The rule `transposed-host-scan` (JXR810)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_SOURCE = """import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def memory(kind):
    return NamedSharding(Mesh(jax.devices()[:1], "x"), PartitionSpec(), memory_kind=kind)


def layer(x, w):
    return jnp.sin(x @ jax.device_put(w, memory("device"))), None


def loss(ws, x):
    {scanned}
    checkpointed = jax.checkpoint(layer, prevent_cse=False)
    x, _ = lax.scan(checkpointed, x, ws)
    return jnp.sum(x)


def loss_inputs():
    host = memory("pinned_host")
    ws = jax.ShapeDtypeStruct({shape}, jnp.float32, sharding=host)
    return ws, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
"""


class TransposedHostScan(TracedRule):
    """A loop scans over an axis other than the first of an argument in host memory.

    ## What it does
    Finds scans over arguments in host memory that are transposed first: by `jnp.moveaxis`, or by a
    library whose scan takes an axis other than the first.

    ## Why is this bad?
    Each trip moves a slice to the device, and after the transpose that slice is not contiguous.
    XLA:CPU writes a transposed copy of the whole array first: 38 MiB of temporaries where the
    leading axis takes 6, for 32 MiB of weights. The TPU compiler (libtpu 0.0.52) makes the
    transpose a view, and each trip gathers its slice from all over host memory.

    ## Use instead
    Keep the array in host memory with the axis that the loop slices first.

    ## When is this fine?
    Where another program needs the other axis order, and its transfers matter more.
    """

    bad = (
        Example(_SOURCE.format(scanned="ws = jnp.moveaxis(ws, 1, 0)  # !", shape="(256, 8, 256)")),
    )
    good = (
        Example(_SOURCE.format(scanned="x = jnp.cos(x)", shape="(8, 256, 256)")),
        Example(
            _SOURCE.format(
                scanned='ws = jnp.moveaxis(jax.device_put(ws, memory("device")), 1, 0)',
                shape="(256, 8, 256)",
            )
        ),
    )
