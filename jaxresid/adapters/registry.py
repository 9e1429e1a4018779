"""Find the adapter of a framework: one of ours, or of the entry points `jaxresid.targets`."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from jaxresid.adapters.libraries import imported
from jaxresid.adapters.request import Adapted, ModelRequest
from jaxresid.base.errors import NOT_CAUGHT, JaxresidError, TargetError, summary
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.inspector.call.jitted_by import MODEL
from jaxresid.inspector.trace.failures import user_lines
from jaxresid.targets.inputs import Inputs
from jaxresid.targets.listing import file_of
from jaxresid.targets.references import Reference, parse_reference

GROUP = "jaxresid.targets"
# Our own frameworks -> the module of a model that is given without one, `linen:Dense(8)`.
HOMES = {
    "nnx": "flax.nnx",
    "linen": "flax.linen",
    "equinox": "equinox",
    "transformers": "transformers",
    "keras": "keras",
    "haliax": "haliax.nn",
    "levanter": "levanter.models",
    "maxtext": "maxtext",
}
# Those whose models are configurations: a file and settings.
CONFIGURED = frozenset({"maxtext"})
# Variables that a framework reads when it is imported, for whom has not set them.
_ENVIRONMENT = {"keras": {"KERAS_BACKEND": "jax"}}


def framework_of_class(value: object) -> str | None:
    """Return the framework whose models a class is one of; None for functions and other classes."""
    if not isinstance(value, type):
        return None
    modules = [f"{base.__module__}." for base in value.__mro__]
    return next(
        (name for name, home in HOMES.items() if any(m.startswith(f"{home}.") for m in modules)),
        None,
    )


def prepare(framework: str) -> None:
    """Set what a framework reads when it is first imported, as to run on JAX."""
    for name, value in _ENVIRONMENT.get(framework, {}).items():
        os.environ.setdefault(name, value)


def home_of(framework: str) -> ModuleType:
    """Return the module of a framework's own models.

    Raises:
      TargetError: it is not installed, or has no models for JAX.
    """
    module = imported(HOMES[framework], f"{framework}:")
    if framework == "transformers" and not hasattr(module, "FlaxPreTrainedModel"):
        version = importlib.metadata.version("transformers")
        raise TargetError(
            f"transformers: {version} has no Flax classes; those before 5 have: pip install"
            " 'transformers<5'"
        )
    return module


def framework_reference(target: str) -> Reference | None:
    """Return the reference of a target that is a framework's model; None: it is a function.

    Raises:
      TargetError: there is no adapter for the framework.
    """
    found = parse_reference(target)
    if found is None:
        return None
    if found.framework is None:
        home = HOMES.get(found.place)
        if home is None or file_of(found.place) is not None:
            return None
        if found.place in CONFIGURED:
            raise TargetError(
                f"{target} is no configuration: write its file and settings, such as"
                f" '{found.place}:base.yml per_device_batch_size=4'"
            )
        return Reference(found.place, home, found.expression)
    names = (*HOMES, *_entry_points())
    if found.framework not in names:
        raise TargetError(
            f"there is no framework {found.framework!r}{did_you_mean(found.framework, names)}"
            f" (known: {', '.join(names)}); a function is module:function"
        )
    return found


def adapted_by(request: ModelRequest) -> Adapted:
    """Return what the adapter of the request's framework makes of it.

    Raises:
      JaxresidError: the model or its inputs are not as they must be, or the adapter fails.
    """
    adapt = _adapter(request.framework)
    try:
        made = adapt(request)
    except (JaxresidError, *NOT_CAUGHT):
        raise
    except BaseException as e:
        lines = [f"{request.name} with these inputs fails: {summary(e)}", *user_lines(e)]
        raise TargetError("\n".join(lines)) from e
    result = made if isinstance(made, Adapted) else _of_tuple(made, request.framework)
    fun = inspect.unwrap(result.fun)
    if inspect.isfunction(fun):
        setattr(fun, MODEL, request.model.value)
    return result


def _entry_points() -> Mapping[str, importlib.metadata.EntryPoint]:
    return {each.name: each for each in importlib.metadata.entry_points(group=GROUP)}


def _adapter(framework: str) -> Callable[[ModelRequest], Any]:
    if framework in HOMES:
        module = importlib.import_module(f"jaxresid.adapters.frameworks.{framework}")
        return module.adapt  # type: ignore[no-any-return]
    point = _entry_points()[framework]
    try:
        found = point.load()
    except NOT_CAUGHT:
        raise
    except BaseException as e:
        raise TargetError(f"{framework}: the adapter {point.value} fails: {summary(e)}") from e
    if not callable(found):
        raise TargetError(f"{framework}: the adapter {point.value} is not a function")
    return found  # type: ignore[no-any-return]


def _of_tuple(made: Any, framework: str) -> Adapted:
    """Return `(fun, args)` or `(fun, args, kwargs)` as an `Adapted`.

    Raises:
      TargetError: it is neither.
    """
    if isinstance(made, tuple) and len(made) in (2, 3) and callable(made[0]):
        fun, args, kwargs = (*made, {})[:3]
        if isinstance(args, tuple | list) and isinstance(kwargs, Mapping):
            return Adapted(fun, Inputs(tuple(args), kwargs))
    raise TargetError(
        f"{framework}: the adapter must return jaxresid.adapters.Adapted, (fun, args) or (fun,"
        f" args, kwargs), not a value of type {type(made).__name__}"
    )
