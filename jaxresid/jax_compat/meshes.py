"""Meshes, and how values are split over their axes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

from jaxresid.base.errors import InputsError
from jaxresid.jax_compat.jaxpr_types import Aval
from jaxresid.jax_compat.version import import_jax


def is_in_shard_map() -> bool:
    """Return whether what is called now runs in a `shard_map`.

    There JAX keeps a number that is an array, and what `jnp` makes of a number is one where no
    jaxpr is traced; in a jaxpr it is written where it is read, and the two cannot be told apart.
    """
    return bool(import_jax().sharding.get_abstract_mesh().manual_axes)


def axes_of(mesh: Any) -> dict[str, int]:
    """Return the axes of a Mesh or an AbstractMesh with their sizes, in order."""
    return {str(name): int(size) for name, size in mesh.shape.items()}


def is_explicit(mesh: Any) -> bool:
    """Return whether the types say over every axis of a mesh how each value is split."""
    return all(str(kind).endswith("Explicit") for kind in mesh.axis_types)


def new_mesh(axes: Mapping[str, int], *, explicit: bool) -> Any:
    """Return a mesh of as many CPU devices as its axes take.

    If there are too few and no backend has started yet, JAX is asked for more.

    Args:
      axes: the size of each axis.
      explicit: whether the axes are explicit; else they are automatic.

    Raises:
      InputsError: there are too few.
    """
    import numpy as np

    jax = import_jax()
    count = math.prod(axes.values())
    if jax.config.jax_num_cpu_devices < count:
        with contextlib.suppress(RuntimeError):  # a backend has started
            jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise InputsError(
            f"a mesh of {count} devices needs {count} CPU devices to trace on, and JAX started with"
            f" {len(devices)}; set JAX_NUM_CPU_DEVICES={count} before JAX is imported"
        )
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    shaped = np.array(devices[:count]).reshape(tuple(axes.values()))
    return jax.sharding.Mesh(shaped, tuple(axes), axis_types=(kind,) * len(axes))


def new_abstract_mesh(axes: Mapping[str, int]) -> Any:
    """Return an AbstractMesh of automatic axes with these sizes, which takes no devices."""
    sharding = import_jax().sharding
    kinds = (sharding.AxisType.Auto,) * len(axes)
    return sharding.AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=kinds)


def in_mesh(mesh: Any) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which PartitionSpecs refer to a mesh.

    Without a mesh (None) nothing changes.
    """
    jax = import_jax()
    if mesh is None:
        return contextlib.nullcontext()
    if not isinstance(mesh, jax.sharding.Mesh):
        use = getattr(jax.sharding, "use_abstract_mesh", None)  # 0.7.2
        return contextlib.nullcontext() if use is None else use(mesh)
    use = getattr(jax, "set_mesh", None) or jax.sharding.use_mesh  # the former since 0.7.1
    return use(mesh)  # type: ignore[no-any-return]


def split_of(sharding: Any, rank: int) -> tuple[tuple[str, ...], ...] | None:
    """Return the mesh axes that a NamedSharding splits each dim over.

    None for another kind of sharding, and for one that leaves dims to the compiler.
    """
    spec = getattr(sharding, "spec", None)
    if spec is None or import_jax().sharding.PartitionSpec.UNCONSTRAINED in tuple(spec):
        return None
    return spec_split(spec, rank)


def spec_split(spec: Any, rank: int) -> tuple[tuple[str, ...], ...]:
    """Return the mesh axes that a PartitionSpec splits each dim over, as `split_of` does."""
    entries = [_entry(e) for e in tuple(spec)]
    return tuple((*entries, *[()] * rank)[:rank])


def _entry(entry: Any) -> tuple[str, ...]:
    if isinstance(entry, str):
        return (entry,)
    # None, or UNCONSTRAINED.
    return tuple(str(name) for name in entry) if isinstance(entry, tuple) else ()


def open_dims(spec: Any) -> frozenset[int]:
    """Return the dims that a PartitionSpec leaves to the compiler, as those that `vmap` adds."""
    free = import_jax().sharding.PartitionSpec.UNCONSTRAINED
    return frozenset(d for d, entry in enumerate(spec) if entry is free)


def typed_split(aval: Aval) -> tuple[tuple[str, ...], ...] | None:
    """Return how an aval's type says that it is split.

    None where the type does not say, which it does over explicit axes only.
    """
    sharding = getattr(aval, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or mesh.empty or not is_explicit(mesh):
        return None
    return split_of(sharding, len(aval.shape))


def mesh_that_says(mesh: Any, platform: str) -> Any:
    """Return an equal mesh whose devices, looked up one by one, say that they are of a platform.

    Libraries choose kernels by `mesh.devices[0, 0].platform` or `mesh.devices.flat[0].platform`.
    What goes through all devices, as JAX does, gets the devices themselves.
    """
    import numpy as np

    class Device:
        def __init__(self, device: Any) -> None:
            self._device = device

        def __getattr__(self, name: str) -> Any:
            return platform if name == "platform" else getattr(self._device, name)

    class Flat:
        def __init__(self, devices: Any) -> None:
            self._devices = devices

        def __iter__(self) -> Any:
            return iter(self._devices.flat)

        def __len__(self) -> int:
            return int(self._devices.size)

        def __getitem__(self, key: Any) -> Any:
            found = self._devices.flat[key]
            return found if isinstance(found, np.ndarray) else Device(found)

    class Devices(np.ndarray):
        def __getitem__(self, key: Any) -> Any:
            found = super().__getitem__(key)
            return found if isinstance(found, np.ndarray) else Device(found)

        @property
        def flat(self) -> Any:
            return Flat(self.view(np.ndarray))

    mesh.abstract_mesh  # noqa: B018  # computed from the devices, and kept
    # A Mesh of the same devices is the same object, which others hold.
    made = object.__new__(type(mesh))
    vars(made).update(vars(mesh), devices=mesh.devices.view(Devices))
    return made
