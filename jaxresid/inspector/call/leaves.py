"""Tell what a leaf of the arguments is, and make it abstract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxresid import jax_compat


def is_array(leaf: Any) -> bool:
    """Return whether a leaf has a shape and a dtype; False if asking a user's object raises."""
    try:
        return hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    except Exception:
        return False


def is_number(leaf: Any) -> bool:
    """Return whether a leaf is a number of Python's, a weakly typed scalar to `jax.jit`."""
    if type(leaf) in (bool, int):
        return True
    return isinstance(leaf, float | complex) and not hasattr(leaf, "dtype")


def struct(leaf: Any, mesh: Any = None) -> Any:
    """Return an array's ShapeDtypeStruct, on all of the mesh where there is one."""
    jax = jax_compat.import_jax()
    sharding = _named_sharding(leaf, mesh)
    own = getattr(leaf, "sharding", None)
    if isinstance(leaf, jax.ShapeDtypeStruct) and (sharding is own or sharding == own):
        return leaf
    return jax.ShapeDtypeStruct(
        leaf.shape,
        leaf.dtype,
        sharding=sharding,
        weak_type=bool(getattr(leaf, "weak_type", False)),
    )


def _named_sharding(leaf: Any, mesh: Any) -> Any | None:
    """Return the sharding that a leaf is traced with.

    That is its own over several devices; on a mesh, one on all of it; and one for a leaf in host
    memory, since an aval knows that of a NamedSharding alone. None in all other cases.
    """
    jax = jax_compat.import_jax()
    named, whole = jax.sharding.NamedSharding, jax.sharding.PartitionSpec()
    sharding: Any = getattr(leaf, "sharding", None)
    kind = getattr(sharding, "memory_kind", None)
    if isinstance(sharding, named):
        is_hosted = kind == "pinned_host" and mesh is None
        if sharding.mesh.size > 1 or is_hosted:
            return sharding
    host = kind if kind == "pinned_host" else None
    if mesh is not None:
        return named(mesh, whole, memory_kind=host)
    if host is None:
        return None
    own = jax.sharding.Mesh(sorted(sharding.device_set, key=lambda d: d.id)[:1], "device")
    return named(own, whole, memory_kind=kind)


def mesh_of(leaves: Sequence[Any]) -> Any | None:
    """Return the mesh of several devices that the first leaf on one is split over."""
    for leaf in filter(is_array, leaves):
        mesh = getattr(getattr(leaf, "sharding", None), "mesh", None)
        if mesh is not None and mesh.size > 1:
            return mesh
    return None


def is_inexact(leaf: Any) -> bool:
    """Return whether a leaf is a float or complex array or number."""
    jnp = jax_compat.import_jax().numpy
    if not hasattr(leaf, "dtype"):
        return isinstance(leaf, float | complex)
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def float0(leaf: Any) -> Any:
    """Return the cotangent of an output that has none."""
    import numpy as np

    return np.zeros(leaf.shape, jax_compat.import_jax().dtypes.float0)


def split_over_devices(leaf: Any) -> Any | None:
    """Return the sharding of an argument over several devices; None without one.

    It is for a compiler that may choose others: explicit axes are in the types.
    """
    jax = jax_compat.import_jax()
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, jax.sharding.NamedSharding) or sharding.mesh.size == 1:
        return None
    if not isinstance(sharding.mesh, jax.sharding.Mesh):
        return None
    return sharding


def like(leaf: Any, shape: Sequence[int], dtype: Any = None, sharding: Any = None) -> Any:
    jax = jax_compat.import_jax()
    return jax.ShapeDtypeStruct(
        tuple(shape),
        leaf.dtype if dtype is None else jax.numpy.dtype(dtype),
        sharding=getattr(leaf, "sharding", None) if sharding is None else sharding,
        weak_type=bool(getattr(leaf, "weak_type", False)),
    )
