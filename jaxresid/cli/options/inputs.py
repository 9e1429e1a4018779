"""Define the options that say what to inspect, shared by every command that traces."""

from __future__ import annotations

import functools
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import click

from jaxresid.base.errors import InputsError, SpecError
from jaxresid.base.interrupts import deferring_interrupts
from jaxresid.base.option_types import MeshMode, Mode
from jaxresid.cli.completion.values import references
from jaxresid.cli.help import Group, option
from jaxresid.cli.main import tell
from jaxresid.cli.options import batches, chosen_target, named_targets
from jaxresid.cli.options.places import place_of, place_options
from jaxresid.cli.options.words import words_of
from jaxresid.targets.specs import parse_axes, parse_spec

if TYPE_CHECKING:
    from jaxresid.inspector.call.question import Question
    from jaxresid.inspector.subject.base import Inspection, Subject
    from jaxresid.targets.inputs import Inputs


TargetOptions = chosen_target.TargetOptions


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --mode, how the target is judged, the options of places and of `function_options`."""
    return function_options(place_options(mode_option(command)))


def mode_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --mode."""
    return option(
        "--mode",
        group=Group.INPUTS,
        type=click.Choice(get_args(Mode)),
        default="auto",
        show_default=True,
        help="loss: differentiate TARGET. program: take TARGET as it is, with the gradients that it"
        " takes itself, if any. auto: loss if TARGET returns one real scalar (and auxiliary data)"
        " of float arguments that it does not update, else program.",
    )(command)


def trips_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --trips, for commands that say what the program costs."""
    return option(
        "--trips",
        group=Group.INPUTS,
        type=click.IntRange(min=1),
        metavar="N",
        help="How often a while loop runs whose number of trips the program decides, such as the"
        " steps of a solver: FLOPs and times are then those of N trips.  [default: the bound that"
        " its condition has, such as max_steps; 1 without one]",
    )(command)


def function_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add TARGET and its options; the command receives them as one `TargetOptions`."""

    @functools.wraps(command)
    def wrapped(**options: Any) -> Any:
        chosen, others = own_options(click.get_current_context(), options)
        return command(chosen, **others)

    return named_targets.target_argument(input_options(wrapped))


class _ToStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell(f"jaxresid: {record.levelname.lower()}: {self.format(record)}")


def _logged(context: click.Context, parameter: click.Parameter, level: str | None) -> None:
    """Show what is logged while the command runs, from a level on."""
    if level is None:
        return
    logger, handler = logging.getLogger("jaxresid"), _ToStderr()
    before = logger.level
    logger.setLevel(level.upper())
    logger.addHandler(handler)

    def undo() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)

    context.call_on_close(undo)


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what TARGET is called with; the command receives each of them.

    --log-level is with them, as what is logged is what becomes of the target.
    """

    @option(
        "--log-level",
        group=Group.GENERAL,
        type=click.Choice(("debug", "info", "warning", "error")),
        expose_value=False,
        callback=_logged,
        help="Say on stderr what is tried and what is left out, and why: error has bugs of jaxresid"
        " with their tracebacks, warning also programs that JAX could not trace again, info also"
        " the findings that were looked for, debug each rewrite.",
    )
    @option(
        "--arg",
        group=Group.INPUTS,
        multiple=True,
        metavar="SPEC",
        help="One positional argument: f32[64,512], key[], '{\"w\": f32[4,4]}', or a Python"
        " literal, which is static; with --mesh f32[64,512]@data,model. Repeat for more.",
    )
    @option(
        "--kwarg",
        group=Group.INPUTS,
        multiple=True,
        metavar="NAME=SPEC",
        help="One keyword argument. Repeat for more.",
    )
    @option(
        "--inputs",
        group=Group.INPUTS,
        shell_complete=references,
        metavar="REF",
        help="The function that returns the inputs: module:attr, or a name in the target's module."
        " It is called under jax.eval_shape.  [default: <fn>_inputs or example_inputs, if it"
        " exists]",
    )
    @option(
        "--concrete-inputs",
        group=Group.INPUTS,
        is_flag=True,
        help="Call the --inputs function without tracing it, if it cannot be traced.",
    )
    @option(
        "--build",
        group=Group.INPUTS,
        is_flag=True,
        help="TARGET takes no arguments and returns (fun, args) or (fun, args, kwargs).",
    )
    @option(
        "--loss",
        group=Group.INPUTS,
        metavar="LOSS",
        help="Of a framework's model (nnx:train.py:Decoder(512), linen:...): mean of what it"
        " returns, cross-entropy or squared-error with the last --arg, or module:function, called"
        " with the model and the inputs.  [default: mean]",
    )
    @option(
        "--optimizer",
        group=Group.INPUTS,
        metavar="OPTAX",
        help="Of a framework's model: ask about the training step with this optimizer, an"
        " expression of optax such as 'adamw(1e-3)', or module:function.",
    )
    @option(
        "--method",
        group=Group.INPUTS,
        metavar="NAME",
        help="Of a framework's model: call this method in the place of the model itself, such as"
        " decode. With --mode program it is taken as it is, without a loss.",
    )
    @option(
        "--init-arg",
        group=Group.INPUTS,
        multiple=True,
        metavar="SPEC",
        help="Of a Linen module: an argument that it is initialised with, where it is called with"
        " another shape, in order. A cache is as long as these.",
    )
    @option(
        "--batch",
        group=Group.INPUTS,
        callback=batches.parsed,
        metavar="[NAME=]N",
        help="The batch size: it replaces the word batch in a SPEC, such as f32[batch,2048], or is"
        " passed as batch (or batch_size) to the function that makes the inputs; context=4096 is a"
        " size of that name. Several for plan and sweep: N,... or 8..64, which doubles.",
    )
    @option(
        "--mesh",
        group=Group.INPUTS,
        multiple=True,
        metavar="AXIS=SIZE,...",
        help="Split the arrays over a mesh of devices, which need not be present: data=4,model=2."
        " Bytes are then those of one device. plan takes several to choose from: repeat it.",
    )
    @option(
        "--mesh-mode",
        group=Group.INPUTS,
        type=click.Choice(get_args(MeshMode)),
        help="auto: the compiler decides how computed values are split. explicit: their types do,"
        " as with axes of jax.sharding.AxisType.Explicit.  [default: auto]",
    )
    @option(
        "--argnums",
        group=Group.INPUTS,
        metavar="N,...",
        callback=_argnums,
        help="The positional arguments to differentiate.  [default: every float or complex leaf]",
    )
    @option(
        "--has-aux", is_flag=True, group=Group.INPUTS, help="The function returns (output, aux)."
    )
    @functools.wraps(command)
    def added(**options: Any) -> Any:
        return command(**options)

    return added


def own_options(
    context: click.Context, options: Mapping[str, Any]
) -> tuple[TargetOptions | None, dict[str, Any]]:
    """Return the target with its options, and the command's other options.

    The target is None where the command takes none for all that the configuration names, and none
    is given.

    Args:
      context: The context that the options were read in.
      options: All options of the command, by name.
    """
    others = named_targets.without_replaced(context, options)
    target = others.pop("target")
    names = [name for name in TargetOptions.__dataclass_fields__ if name in others]
    own = {name: others.pop(name) for name in names}
    if target is None:
        return None, others
    if origin := named_targets.place_origin(context):
        own["on_origin"] = origin
    chosen = TargetOptions(target.text, folder=target.folder, name=target.name, **own)
    # Not all of the commands that are named next count trips.
    shared = [name for name in names if name != "trips"]
    words = (chosen.name or chosen.target, *words_of(context, shared, own))
    return replace(chosen, words=words), others


@dataclass(frozen=True, slots=True)
class TargetRequest:
    """The target with its abstract inputs.

    Attributes:
      question: The question about the target.
      make: A function that, called plainly, returns the inputs themselves (a `--build` factory the
        function too); None where they were given as SPECs.
    """

    question: Question
    make: Callable[[], Any] | None


def inspected(options: TargetOptions, *, lifetimes: bool = False) -> Inspection:
    """Load the target, make its arguments abstract, and return its inspection.

    Args:
      options: The target with its options.
      lifetimes: Whether the report is to have the lifetimes of all values.

    Raises:
      JaxresidError: Something is wrong with the target, its inputs or its trace.
    """
    return inspection_of(requested(options), lifetimes=lifetimes)


def inspection_of(request: TargetRequest, *, lifetimes: bool = False) -> Inspection:
    """Return the inspection of what is requested; see `inspected`."""
    asked = replace(request.question, lifetimes=lifetimes)
    from jaxresid.inspector.report import inspection
    from jaxresid.xla.processes.cache import CompileCache, default_directory

    # Only a mesh has something compiled.
    cache = CompileCache(default_directory())
    found = inspection(asked, cache=cache)
    warnings = (*found.report.warnings, *cache.warnings)
    return replace(found, report=replace(found.report, warnings=warnings))


def subject_of(options: TargetOptions) -> tuple[Subject, TargetRequest]:
    """Load the target, make its arguments abstract, and return its trace with the request.

    Raises:
      JaxresidError: As `inspected`.
    """
    request = requested(options)
    from jaxresid.inspector.report import subject

    return subject(request.question), request


def requested(options: TargetOptions) -> TargetRequest:
    """Load the target, make its arguments abstract, and return both as a request.

    Raises:
      JaxresidError: Something is wrong with the target or its inputs.
    """
    # Tracing needs no memory of a GPU that another process may be using.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    _check_combination(options)
    # Parsed first: a typo in a SPEC is found without importing anything.
    axes = _axes(options.mesh)
    sizes = options.batch
    batches.check_specs((*options.arg, *options.kwarg, *options.init_arg), sizes)
    args = [_spec("--arg", batches.sized_spec(text, sizes), axes) for text in options.arg]
    init = [_spec("--init-arg", batches.sized_spec(text, sizes), axes) for text in options.init_arg]
    kwargs: dict[str, Any] = {}
    for text in options.kwarg:
        keyword, value = _kwarg(batches.sized_spec(text, sizes), axes)
        if keyword in kwargs:
            raise InputsError(f"--kwarg gives {keyword} twice")
        kwargs[keyword] = value
    if axes is not None:
        _provide_cpu_devices(axes)
    with deferring_interrupts():
        from jaxresid import jax_compat
        from jaxresid.xla.chosen import may_have_accelerator

        jax_compat.import_jax()
        if not may_have_accelerator():
            jax_compat.skip_cuda_plugin()
        from jaxresid.adapters.registry import framework_reference
        from jaxresid.cli.options.calls import of_function, of_model
        from jaxresid.inspector.call.question import Question

    mesh = (
        None
        if axes is None
        else jax_compat.new_mesh(axes, explicit=options.mesh_mode == "explicit")
    )

    reference = framework_reference(options.target)
    called = (
        of_function(options, args, kwargs, mesh)
        if reference is None
        else of_model(options, reference, args, kwargs, init, mesh)
    )
    question = Question(
        called.fun,
        called.inputs.args,
        called.inputs.kwargs,
        argnums=called.argnums,
        has_aux=called.has_aux,
        mode=options.mode,
        on=place_of(options, options.on[0]) if options.on else None,
        mesh=_as_given(mesh, called.inputs, options),
        name=options.target,
        warnings=called.warnings,
        words=options.words,
        trips=options.trips,
    )
    return TargetRequest(question, called.make)


def _axes(meshes: Sequence[str]) -> dict[str, int] | None:
    """Return the axes of the one mesh that a program has; None without one.

    Raises:
      InputsError: There are several, or it is no mesh.
    """
    if len(meshes) > 1:
        raise InputsError(
            f"--mesh: only plan takes several ({'; '.join(meshes)}); choose one: --mesh {meshes[0]}"
        )
    return parse_axes(meshes[0]) if meshes else None


def provide_devices(meshes: Sequence[str]) -> None:
    """Set the environment to as many CPU devices as the largest of some meshes has.

    It is for a process that makes several, one after the other, before it loads JAX.

    Raises:
      InputsError: One of them is no mesh.
    """
    for axes in map(parse_axes, meshes):
        _provide_cpu_devices(axes)


def _as_given(mesh: Any, inputs: Inputs, options: TargetOptions) -> Any:
    """Return the mesh that the question is asked with: that of --mesh, or that of the inputs.

    The mesh of the inputs' own shardings is taken where it has the axes of --mesh and --mesh-mode
    is not given.

    Raises:
      InputsError: The inputs are split over a mesh with other axes.
    """
    from jaxresid import jax_compat
    from jaxresid.inspector.call.leaves import mesh_of

    own = mesh_of(jax_compat.import_jax().tree.leaves((inputs.args, inputs.kwargs)))
    if mesh is None or own is None:
        return mesh
    if jax_compat.axes_of(own) != jax_compat.axes_of(mesh):
        axes = ",".join(f"{name}={size}" for name, size in jax_compat.axes_of(own).items())
        raise InputsError(
            f"--mesh {options.mesh[0]} differs from the mesh of the inputs, {axes}; leave --mesh"
            " out, or give the same one"
        )
    return own if options.mesh_mode is None else mesh


def _provide_cpu_devices(axes: Mapping[str, int]) -> None:
    """Set the environment to as many CPU devices as a mesh has, for a JAX that is not loaded."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    known = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    count = max(math.prod(axes.values()), int(known) if known.isdigit() else 1)
    os.environ["JAX_NUM_CPU_DEVICES"] = str(count)


def _check_combination(options: TargetOptions) -> None:
    given = [
        name
        for name, value in (
            ("--build", options.build),
            ("--inputs", options.inputs),
            ("--arg/--kwarg", options.arg or options.kwarg),
        )
        if value
    ]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} cannot be combined: use one of them")
    if options.mesh_mode is not None and not options.mesh:
        raise click.UsageError("--mesh-mode needs --mesh")
    if options.concrete_inputs and given not in ([], ["--inputs"]):
        raise click.UsageError(
            f"--concrete-inputs cannot be combined with {given[0]}; use --inputs"
        )


def _argnums(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of positions; write e.g. 0,2") from None


def _spec(option: str, text: str, axes: Mapping[str, int] | None) -> Any:
    try:
        return parse_spec(text, axes)
    except SpecError as e:
        raise InputsError(f"{option}: {e}") from e


def _kwarg(text: str, axes: Mapping[str, int] | None) -> tuple[str, Any]:
    name, found, spec = text.partition("=")
    if not found or not name.isidentifier():
        raise InputsError(f"--kwarg {text!r} is not NAME=SPEC; write e.g. mask=bool[64]")
    return name, _spec(f"--kwarg {name}", spec, axes)
