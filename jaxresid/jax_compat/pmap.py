"""`jax.pmap` on a machine that has fewer devices than the mapped axis is long."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from jaxresid.jax_compat.meshes import new_abstract_mesh
from jaxresid.jax_compat.patches import patched
from jaxresid.jax_compat.version import import_jax


class _AbsentDevices(tuple[int, ...]):
    """Stands for as many devices as it is long, which are not here."""

    __slots__ = ()


@contextlib.contextmanager
def mapping_over_absent_devices() -> Iterator[None]:
    """Let `jax.pmap` trace in the context over more devices than there are.

    It makes a `shard_map` of the function, over an abstract mesh where devices are missing. Until
    JAX 0.8 it traces without devices by itself.
    """
    import numpy as np

    sharding = import_jax().sharding
    try:
        from jax._src import pmap
    except ImportError:
        yield
        return
    if not hasattr(pmap, "_get_mesh_devices"):
        yield
        return
    plain_devices, plain_mesh = pmap._get_mesh_devices, pmap.Mesh
    plain_made = pmap._cached_shard_map
    # What is asked of a mesh before it is traced over.
    answers = {
        (sharding.AbstractMesh, "local_mesh"): property(lambda self: self),
        (sharding.AbstractMesh, "devices"): property(lambda self: np.empty(self.size, object)),
    }

    def mesh_devices(
        devices: Any, backend: Any, local_size: int, size: int | None, *args: Any
    ) -> Any:
        found = plain_devices(devices, backend, local_size, size, *args)
        count = size or local_size
        return found if devices is not None or len(found) == count else _AbsentDevices(range(count))

    def mesh(devices: Any, names: Sequence[Any]) -> Any:
        if not isinstance(devices, _AbsentDevices):
            return plain_mesh(devices, names)
        return new_abstract_mesh({names[0]: len(devices)})

    def made(*args: Any) -> Any:
        is_absent = any(isinstance(arg, _AbsentDevices) for arg in args)
        with patched(answers) if is_absent else contextlib.nullcontext():
            return plain_made(*args)

    new = {"_get_mesh_devices": mesh_devices, "Mesh": mesh, "_cached_shard_map": made}
    with patched({(pmap, name): value for name, value in new.items()}):
        yield
