"""Resolve what the command line asks about: load the target, and make its arguments abstract."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from jaxresid.base.errors import InputsError, SpecError
from jaxresid.base.interrupts import deferring_interrupts
from jaxresid.cli.options import batches
from jaxresid.cli.options.places import place_of, provide_cpu_devices
from jaxresid.cli.options.request import Request, Specs
from jaxresid.targets.specs import parse_axes, parse_spec

if TYPE_CHECKING:
    from jaxresid.inspector.call.question import Question
    from jaxresid.inspector.subject.base import Inspection, Subject
    from jaxresid.targets.inputs import Inputs


def inspected(request: Request, *, lifetimes: bool = False) -> Inspection:
    """Return the inspection of what is requested; `lifetimes` are those of all its values."""
    question = replace(resolve(request), lifetimes=lifetimes)
    from jaxresid.inspector.report import inspection
    from jaxresid.xla.processes.cache import CompileCache, default_directory

    # Only a mesh has something compiled.
    cache = CompileCache(default_directory())
    result = inspection(question, cache=cache)
    warnings = (*result.report.warnings, *cache.warnings)
    return replace(result, report=replace(result.report, warnings=warnings))


def subject_of(request: Request) -> Subject:
    """Return the trace of what is requested."""
    question = resolve(request)
    from jaxresid.inspector.report import subject

    return subject(question)


def resolve(request: Request) -> Question:
    """Return what is requested as a question, with the function and abstract arguments."""
    # Tracing needs no memory of a GPU that another process may be using.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    _check_combination(request)
    # Parsed first: a typo in a SPEC is found without importing anything.
    specs = _specs(request)
    provide_devices(request.mesh)
    with deferring_interrupts():
        from jaxresid import jax_compat
        from jaxresid.xla.chosen import may_have_accelerator

        jax_compat.import_jax()
        if not may_have_accelerator():
            jax_compat.skip_cuda_plugin()
        from jaxresid.adapters.registry import framework_reference
        from jaxresid.cli.calls import of_function, of_model
        from jaxresid.inspector.call.question import Question

    mesh = None
    if specs.axes is not None:
        mesh = jax_compat.new_mesh(specs.axes, explicit=request.mesh_mode == "explicit")
    reference = framework_reference(request.target)
    if reference is None:
        call = of_function(request, specs, mesh)
    else:
        call = of_model(request, reference, specs, mesh)
    return Question(
        call.fun,
        call.inputs.args,
        call.inputs.kwargs,
        argnums=call.argnums,
        has_aux=call.has_aux,
        mode=request.mode,
        on=place_of(request, request.on[0]) if request.on else None,
        mesh=_common_mesh(mesh, call.inputs, request),
        name=request.target,
        warnings=call.warnings,
        words=request.words,
        trips=request.trips,
    )


def _check_combination(request: Request) -> None:
    sources = {
        "--build": request.build,
        "--inputs": request.inputs,
        "--arg/--kwarg": request.arg or request.kwarg,
    }
    chosen = [name for name, value in sources.items() if value]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} cannot be combined: use one of them")
    if request.mesh_mode is not None and not request.mesh:
        raise click.UsageError("--mesh-mode needs --mesh")
    if request.concrete_inputs and chosen not in ([], ["--inputs"]):
        raise click.UsageError(
            f"--concrete-inputs cannot be combined with {chosen[0]}; use --inputs"
        )


def _specs(request: Request) -> Specs:
    if len(request.mesh) > 1:
        raise InputsError(
            f"--mesh: only plan takes several ({'; '.join(request.mesh)}); choose one: --mesh"
            f" {request.mesh[0]}"
        )
    axes = parse_axes(request.mesh[0]) if request.mesh else None
    batches.check_specs((*request.arg, *request.kwarg, *request.init_arg), request.batch)

    def parsed(option: str, text: str) -> Any:
        try:
            return parse_spec(text, axes)
        except SpecError as e:
            raise InputsError(f"{option}: {e}") from e

    def sized(texts: Sequence[str]) -> list[str]:
        return [batches.sized_spec(text, request.batch) for text in texts]

    args = [parsed("--arg", text) for text in sized(request.arg)]
    init = [parsed("--init-arg", text) for text in sized(request.init_arg)]
    kwargs: dict[str, Any] = {}
    for text in sized(request.kwarg):
        name, equals, spec = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputsError(f"--kwarg {text!r} is not NAME=SPEC; write e.g. mask=bool[64]")
        value = parsed(f"--kwarg {name}", spec)
        if name in kwargs:
            raise InputsError(f"--kwarg gives {name} twice")
        kwargs[name] = value
    return Specs(args, kwargs, init, axes)


def provide_devices(meshes: Sequence[str]) -> None:
    """Set the environment to as many CPU devices as the largest of some meshes has.

    It is for a process that makes several, one after the other, before it loads JAX.
    """
    for axes in map(parse_axes, meshes):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        provide_cpu_devices(math.prod(axes.values()))


def _common_mesh(mesh: Any, inputs: Inputs, request: Request) -> Any:
    """Return the mesh that the question is asked with: that of --mesh, or that of the inputs.

    The mesh of the inputs' own shardings is taken where it has the axes of --mesh and --mesh-mode
    is not given.
    """
    from jaxresid import jax_compat
    from jaxresid.inspector.call.leaves import mesh_of

    own = mesh_of(jax_compat.import_jax().tree.leaves((inputs.args, inputs.kwargs)))
    if mesh is None or own is None:
        return mesh
    if jax_compat.axes_of(own) != jax_compat.axes_of(mesh):
        axes = ",".join(f"{name}={size}" for name, size in jax_compat.axes_of(own).items())
        raise InputsError(
            f"--mesh {request.mesh[0]} differs from the mesh of the inputs, {axes}; leave --mesh"
            " out, or give the same one"
        )
    return own if request.mesh_mode is None else mesh
