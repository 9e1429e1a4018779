"""Handle meshes: what a user gives, what a report says, and how the compiler splits residuals."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.call.arguments import Arguments
from jaxresid.inspector.call.leaves import is_array
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
from jaxresid.inspector.jaxpr.primitives import SHARDINGS
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.jitted import with_sharding
from jaxresid.jax_compat.jaxpr_types import Jaxpr, Var
from jaxresid.results import Mesh

if TYPE_CHECKING:
    from jaxresid.xla.processes.cache import CompileCache

# What splits values in a program, whatever its arguments are.
_SPLITTING = SHARDINGS | {"shard_map", "reshard"}
# Of the bytes of all arguments.
_WORTH_SAYING = 0.01


def as_mesh(mesh: Any) -> Any | None:
    """Return what is traced over: a Mesh, an AbstractMesh whose axes are explicit, or None.

    Args:
      mesh: one of these, an AbstractMesh, or names and sizes of axes, for which as many CPU devices
        are taken.

    Raises:
      InputsError: it is something else, or there are too few CPU devices.
    """
    if mesh is None:
        return None
    if isinstance(mesh, Mapping):
        return jax_compat.new_mesh(mesh, explicit=False)
    if not hasattr(mesh, "axis_types") or not hasattr(mesh, "shape"):
        raise InputsError(
            f"mesh must be a jax.sharding.Mesh, an AbstractMesh or a dict of axes and their sizes,"
            f" not {type(mesh).__name__}"
        )
    if (
        mesh.empty
        or isinstance(mesh, jax_compat.import_jax().sharding.Mesh)
        or jax_compat.is_explicit(mesh)
    ):
        return None if mesh.empty else mesh
    return jax_compat.new_mesh(jax_compat.axes_of(mesh), explicit=False)


def with_own_mesh(call: Arguments, jaxpr: Jaxpr) -> Arguments:
    """Return the arguments split over the mesh that a program brings along, where they have none.

    That is the mesh of a `shard_map`, as which JAX traces `pmap`, of shardings that a function was
    jitted with, or of a constraint. An argument is split as the first of these that reads it asks.
    A program of several meshes, and one whose types say how values are split, is left as it is.

    Args:
      call: the arguments.
      jaxpr: the program, whose last invars are the traced arguments.
    """
    if call.mesh is not None or call.context is not None:
        return call
    asked: dict[Var, Any] = {}
    meshes: list[Any] = []
    _read_shardings(jaxpr, asked, meshes)
    meshes = [mesh for mesh in meshes if mesh.size > 1]
    if not meshes or any(mesh.shape != meshes[0].shape for mesh in meshes):
        return call
    mesh = meshes[0]
    if jax_compat.is_explicit(mesh):
        return call
    sharding = jax_compat.import_jax().sharding
    leaves = list(call.leaves)
    for var, i in zip(reversed(jaxpr.invars), reversed(call.dynamic), strict=False):
        leaf = leaves[i]
        if is_array(leaf) and getattr(leaf, "sharding", None) is None:
            spec = asked.get(var, sharding.PartitionSpec())
            leaves[i] = with_sharding(leaf, sharding.NamedSharding(mesh, spec))
    return replace(call, leaves=tuple(leaves), mesh=mesh)


def _read_shardings(jaxpr: Jaxpr, asked: dict[Var, Any], meshes: list[Any]) -> None:
    """Note the PartitionSpecs that the variables of a jaxpr are asked to have, and the meshes."""
    named = jax_compat.import_jax().sharding.NamedSharding
    for eqn in jaxpr.eqns:
        name, params = jax_compat.primitive_name(eqn), jax_compat.params(eqn)
        if name == "shard_map":
            meshes.append(params["mesh"])
            for var, spec in zip(eqn.invars, params["in_specs"], strict=True):
                if not jax_compat.is_literal(var):
                    asked.setdefault(var, spec)
            continue
        shardings = params.get("in_shardings", (params.get("sharding"),))
        for var, sharding in zip(eqn.invars, shardings, strict=False):
            if isinstance(sharding, named):
                meshes.append(sharding.mesh)
                if not jax_compat.is_literal(var):
                    asked.setdefault(var, sharding.spec)
        for nest in nests(eqn):
            _read_shardings(nest.jaxpr, asked, meshes)
            if nest.kind != "call":
                continue
            for inner, i in zip(nest.jaxpr.invars, nest.operands, strict=True):
                if inner in asked and not jax_compat.is_literal(eqn.invars[i]):
                    asked.setdefault(eqn.invars[i], asked[inner])


def mesh_for_report(mesh: Any) -> Mesh | None:
    """Return a mesh as reports show it, before any compiler was asked."""
    if mesh is None:
        return None
    axes = tuple(jax_compat.axes_of(mesh).items())
    if jax_compat.is_explicit(mesh):
        return Mesh(axes, "explicit", "types")
    return Mesh(axes, "auto", "propagated")


def unsharded_warning(call: Arguments, leaves: Sequence[Any]) -> str | None:
    """Return a warning where some arguments have a sharding and others none.

    The latter may be an optimizer's state that `jax.eval_shape` made of split parameters. None if
    the arguments without a sharding are at most 1% of the bytes of all arguments, if there is no
    mesh, and if the mesh's axes are explicit.

    Args:
      call: the arguments, abstract.
      leaves: the leaves of the call as they were given.
    """
    if call.mesh is None or jax_compat.is_explicit(call.mesh):
        return None
    sizes = {call.paths[i]: _nbytes(call.leaves[i]) for i in call.dynamic}
    bare = sorted(call.paths[i] for i in call.dynamic if _split(leaves[i]) is None)
    nbytes = sum(sizes[path] for path in bare)
    if nbytes <= _WORTH_SAYING * sum(sizes.values()):
        return None
    largest = max(bare, key=sizes.__getitem__)
    which = largest if len(bare) == 1 else f"{len(bare)} leaves, the largest {largest}"
    return (
        f"{format_bytes(nbytes)} of the arguments have no sharding ({which}) and are counted whole"
        " on each device; jax.jit leaves their split to the compiler"
    )


def unused_mesh_warning(
    call: Arguments, leaves: Sequence[Any], jaxpr: Callable[[], Jaxpr], words: Sequence[str]
) -> str | None:
    """Return a warning where a mesh splits nothing: no argument, and no value in the program.

    What a `shard_map` or a constraint in the program splits is enough.

    Args:
      call: the arguments, abstract.
      leaves: the leaves of the call as they were given.
      jaxpr: returns the program.
      words: those of the command line, whose SPECs the warning takes up.
    """
    if call.mesh is None:
        return None
    sizes = {axis: size for axis, size in jax_compat.axes_of(call.mesh).items() if size > 1}
    splits = (split for leaf in leaves for split in (_split(leaf) or ()))
    if not sizes or any(split is not None for split in splits):
        return None
    if any(jax_compat.primitive_name(eqn) in _SPLITTING for eqn in eqns_in(jaxpr())):
        return None
    axis, size = next(iter(sizes.items()))
    axes = ",".join(f"{name}={n}" for name, n in sizes.items())
    typed = (spec for flag, spec in itertools.pairwise(words) if flag == "--arg")
    spec = next((spec for spec in typed if _divides(size, spec)), None)
    write = f"f32[{8 * size},128]@{axis}" if spec is None else f"--arg '{spec}@{axis}'"
    return (
        f"the mesh {axes} splits nothing: each device has every array whole. Write behind an @ what"
        f" is split, such as {write}, or give the inputs a NamedSharding"
    )


def _divides(size: int, spec: str) -> bool:
    """Return whether a SPEC is that of an array whose first dimension can be split so."""
    first = re.fullmatch(r"\w+\[(\d{1,18})(?:,[\d,]*)?\]", spec.replace(" ", ""))
    return first is not None and int(first[1]) % size == 0


def _split(leaf: Any) -> Any:
    return getattr(getattr(leaf, "sharding", None), "spec", None)


def _nbytes(leaf: Any) -> int:
    dtype = getattr(leaf, "dtype", None)
    return 0 if dtype is None else math.prod(leaf.shape) * int(dtype.itemsize)


def split_by_compiler(traced: Trace, cache: CompileCache | None) -> tuple[Trace, str | None]:
    """Return the trace with the shapes of its residuals that one device holds.

    They are the output shardings of the compiled forward pass. Where they cannot be had, the trace
    is returned as it is, with the reason.

    The compile is XLA:CPU's, for as many CPU devices, in a process of its own. What splits the
    program is the same for all of its backends.
    """
    # Without a mesh nothing is compiled, and the compilers' module imports this package.
    from jaxresid.inspector.trace.lowering import lowered_forward
    from jaxresid.xla.job import Job
    from jaxresid.xla.places import parse_place
    from jaxresid.xla.processes.pool import compile_jobs

    try:
        job = Job(lowered_forward(traced, "cpu"), parse_place("cpu"), label="the forward pass")
    except JaxresidError as e:
        return traced, _unsplit(e)
    ((_, found),) = compile_jobs([job], cache=cache)
    shards = found.output_shards
    if found.error is not None or shards is None:
        return traced, _unsplit(found.error or "the compiler does not report it")
    kept = zip(traced.kept, shards[traced.num_outputs :], strict=False)
    # To the compiler a PRNG key is an array of integers, with a dim more than its aval.
    pieces = tuple(piece and piece[: len(getattr(v.aval, "shape", ()))] for v, piece in kept)
    return replace(traced, pieces=pieces), None


def _unsplit(reason: object) -> str:
    return (
        "how the compiler splits the residuals over the mesh is not known; their splits are derived"
        f" from those of the arguments: {' '.join(str(reason).split())}"
    )
