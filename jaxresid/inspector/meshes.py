"""Meshes: what a user gives, what a report says, and what the compiler makes of a forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxresid.errors import InputsError, JaxresidError
from jaxresid.inspector import _jax
from jaxresid.inspector.tracing import Trace
from jaxresid.model import Mesh

if TYPE_CHECKING:
    from jaxresid.xla.cache import Cache


def meshed(mesh: Any) -> Any | None:
    """What is traced over: a Mesh, an AbstractMesh whose axes are explicit, or None.

    Args:
      mesh: of these one, an AbstractMesh, or names and sizes of axes, for which as many CPU
        devices are taken.

    Raises:
      InputsError: it is something else, or there are too few CPU devices.
    """
    if mesh is None:
        return None
    if isinstance(mesh, Mapping):
        return _jax.new_mesh(mesh, explicit=False)
    if not hasattr(mesh, "axis_types") or not hasattr(mesh, "shape"):
        raise InputsError(
            f"mesh must be a jax.sharding.Mesh, an AbstractMesh or a dict of axes and their sizes,"
            f" not {type(mesh).__name__}"
        )
    if mesh.empty or isinstance(mesh, _jax.import_jax().sharding.Mesh) or _jax.is_explicit(mesh):
        return None if mesh.empty else mesh
    return _jax.new_mesh(_jax.axes_of(mesh), explicit=False)


def described(mesh: Any) -> Mesh | None:
    """A mesh as reports say it, before any compiler was asked."""
    if mesh is None:
        return None
    axes = tuple(_jax.axes_of(mesh).items())
    if _jax.is_explicit(mesh):
        return Mesh(axes, "explicit", "types")
    return Mesh(axes, "auto", "propagated")


def split_by_compiler(traced: Trace, cache: Cache | None) -> tuple[Trace, str | None]:
    """The trace with what one device holds of its residuals, by the output shardings of the
    compiled forward pass; or as it is, with the reason.

    The compile is XLA:CPU's, for as many CPU devices, in a process of its own. What splits the
    program is the same for all of its backends.
    """
    # Without a mesh nothing is compiled, and the compilers' module imports this package.
    from jaxresid.inspector.lowering import lowered_forward
    from jaxresid.xla.job import Job
    from jaxresid.xla.pool import compiled

    try:
        job = Job(lowered_forward(traced, "cpu"), "cpu", label="the forward pass")
    except JaxresidError as e:
        return traced, _unsplit(e)
    ((_, found),) = compiled([job], cache=cache)
    shards = found.output_shards
    if found.error is not None or shards is None:
        return traced, _unsplit(found.error or "the compiler does not say")
    kept = zip(traced.kept, shards[traced.num_outputs :], strict=False)
    # To the compiler a PRNG key is an array of integers, with a dim more than its aval.
    pieces = tuple(piece and piece[: len(getattr(v.aval, "shape", ()))] for v, piece in kept)
    return replace(traced, pieces=pieces), None


def _unsplit(reason: object) -> str:
    return (
        "how the compiler splits the residuals over the mesh is not known, and was worked out from"
        f" the arguments: {' '.join(str(reason).split())}"
    )
