"""Bytes that a compiled program of value and gradients takes."""

from __future__ import annotations

import os

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
# Another process may have libtpu at the same time.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

import jax
import jax.numpy as jnp


def compiled_nbytes(fun, args):
    """Argument + output + temporaries - aliased by libtpu, for one v5p chip; None: it does not fit.

    Args:
      args: abstract; pytrees whose leaves are either all floating, to be differentiated, or none.
    """
    chip = _one_v5p()
    args = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=chip), args)
    floats = tuple(
        i
        for i, a in enumerate(args)
        if all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(a))
    )
    lowered = jax.jit(jax.value_and_grad(fun, argnums=floats)).lower(*args)
    try:
        found = lowered.compile().memory_analysis()
    except jax.errors.JaxRuntimeError as e:
        if "RESOURCE_EXHAUSTED" in str(e):
            return None
        raise
    return (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        + found.temp_size_in_bytes
        - found.alias_size_in_bytes
    )


def _one_v5p():
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5p:2x2x1")
    return jax.sharding.SingleDeviceSharding(topology.devices[0])
