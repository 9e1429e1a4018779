"""Split a model's parameters over the mesh of `--mesh`, as the model's own metadata says."""

from __future__ import annotations

from typing import Any

from jaxresid import jax_compat
from jaxresid.adapters.libraries import imported


def split(leaf: Any, names: Any, mesh: Any) -> Any:
    """Return an abstract array that is split as a `PartitionSpec` says.

    Args:
      leaf: the array; one that has a sharding keeps it.
      names: the spec. Of its names those that the mesh does not have are left out, as logical
        names are that no rule maps to an axis.
    """
    jax = jax_compat.import_jax()
    if mesh is None or getattr(leaf, "sharding", None) is not None:
        return leaf
    spec = jax.sharding.PartitionSpec(*(_of_mesh(name, mesh) for name in names or ()))
    sharding = jax.sharding.NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def like_parameters(optimizer: Any, opt_state: Any, params: Any) -> Any:
    """Return an optimizer's abstract state, what is there for each parameter split as that is."""
    jax = jax_compat.import_jax()
    if all(getattr(leaf, "sharding", None) is None for leaf in jax.tree.leaves(params)):
        return opt_state
    optax = imported("optax", "a training step")
    return optax.tree_map_params(
        optimizer,
        lambda leaf, param: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=param.sharding),
        opt_state,
        params,
    )


def _of_mesh(names: Any, mesh: Any) -> Any:
    if isinstance(names, tuple):
        return tuple(name for name in names if name in mesh.axis_names)
    return names if names in mesh.axis_names else None
