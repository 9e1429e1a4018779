"""Load what a target names, with its inputs: a function, or a framework's model as one."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from jaxresid import jax_compat
from jaxresid.adapters.configurations import Configuration, configuration_of
from jaxresid.adapters.losses import LOSSES, PROGRAM, loss_of
from jaxresid.adapters.optimizers import optimizer_of
from jaxresid.adapters.registry import (
    CONFIGURED,
    HOMES,
    adapted_by,
    framework_of_class,
    home_of,
    prepare,
)
from jaxresid.adapters.request import ModelRequest
from jaxresid.base.errors import InputsError, TargetError
from jaxresid.base.text.short_repr import printable
from jaxresid.cli.options import batches
from jaxresid.cli.options.places import place_of
from jaxresid.inspector.call import inputs as abstract
from jaxresid.inspector.trace.failures import devices_wanted, user_lines
from jaxresid.targets.expressions import Expression, expression_of
from jaxresid.targets.targets import (
    Loaded,
    default_inputs,
    function_name,
    load,
    load_module,
    load_reference,
)
from jaxresid.xla.chosen import choose

if TYPE_CHECKING:
    from jaxresid.cli.options.chosen_target import TargetOptions
    from jaxresid.targets.inputs import Inputs
    from jaxresid.targets.references import Reference
    from jaxresid.xla.places import Place


@dataclass(frozen=True, slots=True)
class TargetCall:
    """A function and its abstract inputs; the rest as `Question` and `TargetRequest` have it."""

    fun: Callable[..., Any]
    inputs: Inputs
    argnums: tuple[int, ...] | None
    has_aux: bool
    warnings: Sequence[str] = ()
    make: Callable[[], Any] | None = None


def of_function(
    options: TargetOptions, args: Sequence[Any], kwargs: Mapping[str, Any], mesh: Any
) -> TargetCall:
    """Return the function that the target names, with its inputs.

    Args:
      options: the options.
      args: the parsed SPECs of --arg.
      kwargs: those of --kwarg.
      mesh: the mesh of --mesh.

    Raises:
      JaxresidError: it cannot be loaded, or has no inputs.
    """
    for flag, value in (
        ("--loss", options.loss),
        ("--optimizer", options.optimizer),
        ("--method", options.method),
        ("--init-arg", options.init_arg or None),
    ):
        if value is not None:
            raise click.UsageError(
                f"{flag} is for a framework's model, such as nnx:train/model.py:Decoder(512);"
                f" {options.target} is a function"
            )
    with _with_device_advice():
        loaded = load(options.target, options.folder)
    fun: Callable[..., Any] = loaded.fun
    framework = None if options.build else framework_of_class(fun)
    if framework is not None:
        raise TargetError(
            f"{options.target} is a model, not a function; write"
            f" '{framework}:{options.target}()', with what the class takes in the brackets"
        )
    warnings: list[str] = []
    with _with_device_advice(), jax_compat.in_mesh(mesh):
        if options.build:
            make = batches.sized(fun, options.batch)
            fun, inputs = abstract.from_build(make, options.target)
        elif args or kwargs:
            make = None
            inputs, warnings = abstract.from_specs(args, kwargs, mesh)
        else:
            make = _inputs_function(options, loaded)
            if make is not None:
                make = batches.sized(make, options.batch)
                inputs = _from_reference(options, make)
            elif _required(fun) or _signature(fun) is None:
                raise InputsError(_missing(loaded))
            elif options.batch:
                raise InputsError(f"--batch: {options.target} takes no inputs")
            else:
                inputs, warnings = abstract.from_specs((), {})
    return TargetCall(fun, inputs, options.argnums, options.has_aux, warnings, make)


def of_model(
    options: TargetOptions,
    reference: Reference,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    init: Sequence[Any],
    mesh: Any,
) -> TargetCall:
    """Return the loss, the training step or the call of a framework's model, with its inputs.

    Args:
      options: the options.
      reference: the model.
      args: the parsed SPECs of --arg.
      kwargs: those of --kwarg.
      init: those of --init-arg.
      mesh: the mesh of --mesh.

    Raises:
      JaxresidError: the model, its loss, optimizer or inputs are not as they must be.
    """
    if options.build:
        raise click.UsageError(
            f"--build is for a function; {options.target} is a model, which is built anyway"
        )
    if options.has_aux and options.loss is None:
        raise click.UsageError("--has-aux needs --loss module:function, which returns (loss, aux)")
    if options.optimizer is not None and options.argnums is not None:
        raise click.UsageError(
            "--argnums is for functions: the training step of --optimizer takes its own gradients"
        )
    is_configured = reference.framework in CONFIGURED
    is_program = options.mode == "program" and not is_configured
    _check_model_options(options, str(reference.framework), is_program)
    if is_configured and options.batch:
        raise InputsError(
            f"--batch is for inputs; the batch of {options.target} is among its settings"
        )
    place = _place(options) if is_configured else None
    with _with_device_advice():
        model = _model_of(options, reference)
        loss = PROGRAM if is_program else loss_of(options.loss or "mean", options.folder)
        loss = replace(loss, method=options.method)
        optimizer = options.optimizer and optimizer_of(options.optimizer, options.folder)
        with jax_compat.in_mesh(mesh):
            inputs, warnings = _model_inputs(options, model, args, kwargs, mesh)
            made = adapted_by(
                ModelRequest(
                    str(reference.framework),
                    options.target,
                    model,
                    inputs,
                    loss,
                    optimizer or None,
                    options.has_aux,
                    options.loss is not None or is_program,
                    mesh,
                    tuple(abstract.from_specs(init, {}, mesh)[0].args) if init else (),
                    "" if place is None else place.kind,
                    1 if place is None else place.devices or 1,
                )
            )
    is_step = options.optimizer is not None or is_configured or is_program
    return TargetCall(
        made.fun,
        made.inputs,
        options.argnums if options.argnums is not None or is_step else made.argnums,
        options.has_aux and not is_step,
        warnings,
    )


def _check_model_options(options: TargetOptions, framework: str, is_program: bool) -> None:
    """Refuse what does not go together.

    Raises:
      UsageError: naming the options.
    """
    if is_program and (options.loss is not None or options.optimizer is not None):
        flag = "--optimizer" if options.loss is None else "--loss"
        raise click.UsageError(
            f"--mode program takes {options.target} as it is called, so {flag} does not go with"
            " it: leave one of them out"
        )
    if is_program and options.argnums is not None:
        raise click.UsageError("--argnums is for what is differentiated: leave out --mode program")
    if options.method is not None and framework in CONFIGURED:
        raise click.UsageError(f"--method is for a model; {options.target} is a configuration")
    if options.method is not None and options.loss not in (None, *LOSSES):
        raise click.UsageError(
            f"--method does not go with --loss {options.loss}, which calls what it likes"
        )
    if options.init_arg and framework != "linen":
        raise click.UsageError(f"--init-arg is for linen: modules; {options.target} is none")


def _place(options: TargetOptions) -> Place:
    """Return the place that the answer is for, or the first of them."""
    return place_of(options, options.on[0]) if options.on else choose(None)


def _model_of(options: TargetOptions, reference: Reference) -> Expression:
    framework = str(reference.framework)
    prepare(framework)
    if framework in CONFIGURED:
        found = configuration_of(reference.place, reference.expression)
        return Expression(options.target, home_of(framework), found, None)
    if reference.place == HOMES.get(framework):
        module = home_of(framework)
    else:
        module = load_module(reference.place, options.folder)
    return expression_of(reference.expression, module, reference.place)


def _model_inputs(
    options: TargetOptions,
    model: Expression,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    mesh: Any,
) -> tuple[Inputs, list[str]]:
    """Return what the model, or a loss of the user's, is called with, and warnings.

    Raises:
      InputsError: there is nothing.
    """
    if args or kwargs:
        return abstract.from_specs(args, kwargs, mesh)
    if isinstance(model.value, Configuration) and not options.inputs:
        return abstract.from_specs((), {})
    name = getattr(model.value, "__name__", "")
    make = _inputs_function(options, Loaded(model.value, model.module, name))
    if make is None:
        raise InputsError(
            f"no inputs for {options.target}: give one SPEC per argument of the model's call,"
            f" --arg 'f32[8,128]', or a function that returns them, --inputs make_inputs"
        )
    sized = batches.sized(make, options.batch)
    return _from_reference(options, sized), []


def _inputs_function(options: TargetOptions, loaded: Loaded) -> Callable[[], Any] | None:
    """Return the function that makes the inputs: that of --inputs, or the default; None: none."""
    if options.inputs:
        return load_reference(options.inputs, loaded.module)
    return default_inputs(loaded)


@contextlib.contextmanager
def _with_device_advice() -> Iterator[None]:
    """Add advice to an error about a mesh of more devices than there are.

    It is raised in the context by a module, or by what makes the inputs.
    """
    try:
        yield
    except (TargetError, InputsError) as e:
        count = devices_wanted("\n".join([str(e), *user_lines(e.__cause__ or e)]))
        if count is None:
            raise
        what, *_ = str(e).split("\n  --concrete-inputs")  # which would fail as well
        raise type(e)(
            f"{what}\n  devices need not be present: add --mesh data=4,model=2, or set"
            f" JAX_PLATFORMS=cpu and JAX_NUM_CPU_DEVICES={count}"
        ) from e


def _from_reference(options: TargetOptions, make: Callable[[], Any]) -> Any:
    name = str(options.inputs or function_name(make) or "inputs")
    parameters = _required(make)
    if parameters:
        raise InputsError(
            f"{name} is called with no arguments to make the inputs, but needs"
            f" {', '.join(parameters)}"
        )
    if options.concrete_inputs:
        return abstract.from_concrete(make, name)
    return abstract.from_function(make, name)


def _signature(fun: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(fun)
    except Exception:  # TypeError, ValueError, or what the attributes of a callable object raise
        return None


def _required(fun: Callable[..., Any]) -> list[str]:
    signature = _signature(fun)
    return [
        p.name
        for p in (signature.parameters.values() if signature else ())
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


class _Default:
    """A default as one writes it: a function or a class by its name, other objects as `...`."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        if self._value is None or isinstance(self._value, str | int | float | complex | bytes):
            return printable(repr(self._value))
        return str(getattr(self._value, "__name__", "..."))


def _call_of(loaded: Loaded) -> str:
    """Return how a function is called, without the annotations and without addresses."""
    signature = _signature(loaded.fun)
    if signature is None:
        return f"{loaded.attribute}(...)"
    parameters = [
        p.replace(
            annotation=p.empty, default=p.empty if p.default is p.empty else _Default(p.default)
        )
        for p in signature.parameters.values()
    ]
    return f"{loaded.attribute}{inspect.Signature(parameters)}"


def _missing(loaded: Loaded) -> str:
    shown = _call_of(loaded)
    each = " ".join("--arg 'f32[...]'" for _ in _required(loaded.fun)) or "--arg 'f32[...]'"
    name = loaded.attribute.rpartition(".")[2]
    return (
        f"no inputs for {shown}\n"
        f"  give one SPEC per argument:  {each}\n"
        f"  or name a function that returns them:  --inputs make_inputs\n"
        f"  or define {name}_inputs() or example_inputs() in {loaded.module.__name__}"
    )
