"""`jax.pmap` on a machine that has fewer devices than the mapped axis is long."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxresid.jax_compat.meshes import new_abstract_mesh
from jaxresid.jax_compat.patches import patched
from jaxresid.jax_compat.version import import_jax


class _AbsentDevices(tuple[int, ...]):
    """Stands for as many devices as it is long, which are not here."""

    __slots__ = ()


@contextlib.contextmanager
def mapping_over_absent_devices() -> Iterator[None]:
    """Let `jax.pmap` trace in the context as a `shard_map`, over more devices than there are.

    The mesh is abstract where devices are missing.
    """
    import_jax()
    with patched({**_of_primitive(), **_of_shard_map()}):
        yield


def _of_primitive() -> dict[tuple[Any, str], Any]:
    """Return what replaces the primitive of `pmap`, which JAX traces it as until 0.8."""
    from jax._src import core
    from jax._src.interpreters import pxla

    primitive = getattr(pxla, "xla_pmap_p", None)
    if primitive is None:
        return {}
    jax = import_jax()
    spec = jax.sharding.PartitionSpec

    def bind_with_trace(trace: Any, operands: Sequence[Any], params: Mapping[str, Any]) -> Any:
        with core.set_current_trace(trace):
            return bind(*operands, **params)

    def bind(fun: Any, *args: Any, **params: Any) -> Any:
        # Without a name of the user's it is an object that no collective knows.
        named = params["axis_name"]
        axis = named if isinstance(named, str) else "_internal_pmap_axis_name"
        in_axes = params["in_axes"]

        def body(*args: Any) -> Any:
            operands = [
                value if at is None else jax.lax.squeeze(value, [at])
                for value, at in zip(args, in_axes, strict=True)
            ]
            return [jax.lax.expand_dims(value, [0]) for value in fun.call_wrapped(*operands)]

        body.__name__ = str(params.get("name") or "pmap")
        mapped = jax.shard_map(
            body,
            mesh=new_abstract_mesh({axis: params["axis_size"]}),
            in_specs=tuple(spec() if at is None else spec(*[None] * at, axis) for at in in_axes),
            out_specs=spec(axis),
            check_vma=False,
        )
        donated = [i for i, is_given in enumerate(params["donated_invars"]) if is_given]
        results = jax.jit(mapped, donate_argnums=donated)(*args)
        return [
            value[0] if at is None else jax.numpy.moveaxis(value, 0, at)
            for value, at in zip(results, params["out_axes_thunk"](), strict=True)
        ]

    return {(primitive, "bind_with_trace"): bind_with_trace}


def _of_shard_map() -> dict[tuple[Any, str], Any]:
    """Return what replaces the devices and the mesh of the `shard_map` that `pmap` makes."""
    import numpy as np

    try:
        from jax._src import pmap
    except ImportError:
        return {}
    if not hasattr(pmap, "_cached_shard_map"):
        return {}
    plain_mesh, plain_made = pmap.Mesh, pmap._cached_shard_map

    def mesh(devices: Any, names: Sequence[Any]) -> Any:
        if not isinstance(devices, _AbsentDevices):
            return plain_mesh(devices, names)
        return new_abstract_mesh({names[0]: len(devices)})

    if not hasattr(pmap, "_get_mesh_devices"):  # 0.8
        plain = pmap._get_devices

        def all_devices(called: Any, backend: Any) -> Any:
            count = called.local_axis_size
            devices = plain(called, backend)
            is_absent = called.devices is None and len(devices) < count
            return _AbsentDevices(range(count)) if is_absent else devices

        return {(pmap, "_get_devices"): all_devices, (pmap, "Mesh"): mesh}
    sharding = import_jax().sharding
    plain_devices = pmap._get_mesh_devices
    # What is asked of a mesh before it is traced over.
    answers = {
        (sharding.AbstractMesh, "local_mesh"): property(lambda self: self),
        (sharding.AbstractMesh, "devices"): property(lambda self: np.empty(self.size, object)),
    }

    def mesh_devices(
        devices: Any, backend: Any, local_size: int, size: int | None, *args: Any
    ) -> Any:
        chosen = plain_devices(devices, backend, local_size, size, *args)
        count = size or local_size
        return (
            chosen if devices is not None or len(chosen) == count else _AbsentDevices(range(count))
        )

    def made(*args: Any) -> Any:
        is_absent = any(isinstance(arg, _AbsentDevices) for arg in args)
        with patched(answers) if is_absent else contextlib.nullcontext():
            return plain_made(*args)

    new = {"_get_mesh_devices": mesh_devices, "Mesh": mesh, "_cached_shard_map": made}
    return {(pmap, name): value for name, value in new.items()}
