"""Load what a target names, with its inputs: a function, or a framework's model as one."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
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
    framework_reference,
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
    from jaxresid.cli.options.request import Request, Specs
    from jaxresid.targets.inputs import Inputs
    from jaxresid.targets.references import Reference


@dataclass(frozen=True, slots=True)
class TargetCall:
    """A function and its abstract inputs; the rest as `Question` has it."""

    fun: Callable[..., Any]
    inputs: Inputs
    argnums: tuple[int, ...] | None
    has_aux: bool
    warnings: Sequence[str] = ()


def of_function(request: Request, specs: Specs, mesh: Any) -> TargetCall:
    """Return the function that the target names, with its inputs."""
    for flag, value in (
        ("--loss", request.loss),
        ("--optimizer", request.optimizer),
        ("--method", request.method),
        ("--init-arg", request.init_arg or None),
    ):
        if value is not None:
            raise click.UsageError(
                f"{flag} is for a framework's model, such as nnx:train/model.py:Decoder(512);"
                f" {request.target} is a function"
            )
    with _with_device_advice():
        loaded = load(request.target, request.folder)
    fun: Callable[..., Any] = loaded.fun
    framework = None if request.build else framework_of_class(fun)
    if framework is not None:
        raise TargetError(
            f"{request.target} is a model, not a function; write"
            f" '{framework}:{request.target}()', with what the class takes in the brackets"
        )
    warnings: list[str] = []
    with _with_device_advice(), jax_compat.in_mesh(mesh):
        if request.build:
            fun, inputs = abstract.from_build(batches.sized(fun, request.batch), request.target)
        elif specs.args or specs.kwargs:
            inputs, warnings = abstract.from_specs(specs.args, specs.kwargs, mesh)
        elif (make := _inputs_function(request, loaded)) is not None:
            inputs = _from_reference(request, make)
        elif _required(fun) or _signature(fun) is None:
            raise InputsError(_missing(loaded))
        elif request.batch:
            raise InputsError(f"--batch: {request.target} takes no inputs")
        else:
            inputs, warnings = abstract.from_specs((), {})
    return TargetCall(fun, inputs, request.argnums, request.has_aux, warnings)


def of_model(request: Request, reference: Reference, specs: Specs, mesh: Any) -> TargetCall:
    """Return the loss, the training step or the call of a framework's model, with its inputs."""
    framework = str(reference.framework)
    is_configured = framework in CONFIGURED
    is_program = request.mode == "program" and not is_configured
    _check_model_options(request, framework, is_program)
    place = None
    if is_configured:
        place = place_of(request, request.on[0]) if request.on else choose(None)
    with _with_device_advice():
        model = _model_of(request, reference)
        loss = PROGRAM if is_program else loss_of(request.loss or "mean", request.folder)
        loss = replace(loss, method=request.method)
        optimizer = request.optimizer and optimizer_of(request.optimizer, request.folder)
        with jax_compat.in_mesh(mesh):
            inputs, warnings = _model_inputs(request, model, specs, mesh)
            adapted = adapted_by(
                ModelRequest(
                    framework,
                    request.target,
                    model,
                    inputs,
                    loss,
                    optimizer or None,
                    request.has_aux,
                    request.loss is not None or is_program,
                    mesh,
                    tuple(abstract.from_specs(specs.init, {}, mesh)[0].args) if specs.init else (),
                    "" if place is None else place.kind,
                    1 if place is None else place.devices or 1,
                )
            )
    is_step = request.optimizer is not None or is_configured or is_program
    return TargetCall(
        adapted.fun,
        adapted.inputs,
        request.argnums if request.argnums is not None or is_step else adapted.argnums,
        request.has_aux and not is_step,
        warnings,
    )


def maker_of(request: Request) -> Callable[..., Any] | None:
    """Return the function of the user's that makes the inputs of a function.

    It is None where they are typed, for a framework's model, and without one.
    """
    if request.arg or request.kwarg or framework_reference(request.target) is not None:
        return None
    loaded = load(request.target, request.folder)
    return loaded.fun if request.build else _inputs_function(request, loaded)


def _check_model_options(request: Request, framework: str, is_program: bool) -> None:
    if request.build:
        raise click.UsageError(
            f"--build is for a function; {request.target} is a model, which is built anyway"
        )
    if request.has_aux and request.loss is None:
        raise click.UsageError("--has-aux needs --loss module:function, which returns (loss, aux)")
    if request.optimizer is not None and request.argnums is not None:
        raise click.UsageError(
            "--argnums is for functions: the training step of --optimizer takes its own gradients"
        )
    if is_program and (request.loss is not None or request.optimizer is not None):
        flag = "--optimizer" if request.loss is None else "--loss"
        raise click.UsageError(
            f"--mode program takes {request.target} as it is called, so {flag} does not go with"
            " it: leave one of them out"
        )
    if is_program and request.argnums is not None:
        raise click.UsageError("--argnums is for what is differentiated: leave out --mode program")
    if request.method is not None and framework in CONFIGURED:
        raise click.UsageError(f"--method is for a model; {request.target} is a configuration")
    if request.method is not None and request.loss not in (None, *LOSSES):
        raise click.UsageError(
            f"--method does not go with --loss {request.loss}, which calls what it likes"
        )
    if request.init_arg and framework != "linen":
        raise click.UsageError(f"--init-arg is for linen: modules; {request.target} is none")
    if framework in CONFIGURED and request.batch:
        raise InputsError(
            f"--batch is for inputs; the batch of {request.target} is among its settings"
        )


def _model_of(request: Request, reference: Reference) -> Expression:
    framework = str(reference.framework)
    prepare(framework)
    if framework in CONFIGURED:
        configuration = configuration_of(reference.place, reference.expression)
        return Expression(request.target, home_of(framework), configuration, None)
    if reference.place == HOMES.get(framework):
        module = home_of(framework)
    else:
        module = load_module(reference.place, request.folder)
    return expression_of(reference.expression, module, reference.place)


def _model_inputs(
    request: Request, model: Expression, specs: Specs, mesh: Any
) -> tuple[Inputs, list[str]]:
    """Return what the model, or a loss of the user's, is called with, and warnings."""
    if specs.args or specs.kwargs:
        return abstract.from_specs(specs.args, specs.kwargs, mesh)
    if isinstance(model.value, Configuration) and not request.inputs:
        return abstract.from_specs((), {})
    name = getattr(model.value, "__name__", "")
    make = _inputs_function(request, Loaded(model.value, model.module, name))
    if make is None:
        raise InputsError(
            f"no inputs for {request.target}: give one SPEC per argument of the model's call,"
            f" --arg 'f32[8,128]', or a function that returns them, --inputs make_inputs"
        )
    return _from_reference(request, make), []


def _inputs_function(request: Request, loaded: Loaded) -> Callable[[], Any] | None:
    if request.inputs:
        return load_reference(request.inputs, loaded.module)
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


def _from_reference(request: Request, make: Callable[[], Any]) -> Any:
    make = batches.sized(make, request.batch)
    name = str(request.inputs or function_name(make) or "inputs")
    parameters = _required(make)
    if parameters:
        raise InputsError(
            f"{name} is called with no arguments to make the inputs, but needs"
            f" {', '.join(parameters)}"
        )
    if request.concrete_inputs:
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
    specs = " ".join("--arg 'f32[...]'" for _ in _required(loaded.fun)) or "--arg 'f32[...]'"
    name = loaded.attribute.rpartition(".")[2]
    return (
        f"no inputs for {_call_of(loaded)}\n"
        f"  give one SPEC per argument:  {specs}\n"
        f"  or name a function that returns them:  --inputs make_inputs\n"
        f"  or define {name}_inputs() or example_inputs() in {loaded.module.__name__}"
    )
