"""Values in host memory."""

from __future__ import annotations

from typing import Any

from jaxresid.jax_compat.jaxpr_types import Eqn, Var
from jaxresid.jax_compat.reading import open_jaxpr, params
from jaxresid.jax_compat.version import import_jax, jax_version, version_numbers


def tells_memory() -> bool:
    """Return whether avals know their memory, and values can be put into one: since 0.7.2."""
    import_jax()
    return version_numbers(jax_version()) >= (0, 7, 2)


def put_in(value: Any, memory: str) -> Any:
    """Return a traced value put into the memory `device` or `host`; see `tells_memory`."""
    jax = import_jax()
    space = jax.memory.Space
    return jax.device_put(value, space.Host if memory == "host" else space.Device)


def host_sharding() -> Any:
    """Return a sharding in the host memory of one CPU device, so that no other is looked for.

    Raises:
      ValueError: it has none.
    """
    jax = import_jax()
    mesh = jax.sharding.Mesh(jax.devices("cpu")[:1], "device")
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(), memory_kind="pinned_host")


def as_host_put(var: Var, like: Eqn) -> Eqn:
    """Return the eqn that moves a value like a variable to host memory.

    Its input and its output are new variables.

    Args:
      var: the variable.
      like: a jit eqn with a result in host memory, whose host sharding and source line it is given.
    """
    jax = import_jax()
    host = next(
        s for s in params(like)["out_shardings"] if getattr(s, "memory_kind", None) == "pinned_host"
    )
    traced = jax.make_jaxpr(lambda x: jax.device_put(x, host))(var.aval)
    return open_jaxpr(traced).eqns[0].replace(source_info=like.source_info)
