"""Define what an adapter is given: a model of its framework, and what is asked about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from jaxresid import jax_compat
from jaxresid.adapters.libraries import imported
from jaxresid.adapters.losses import Loss
from jaxresid.adapters.settings import only_arrays, with_settings
from jaxresid.base.errors import TargetError
from jaxresid.inspector.call.leaves import is_array
from jaxresid.targets.expressions import Expression
from jaxresid.targets.inputs import Inputs


@dataclass(frozen=True, slots=True)
class Adapted:
    """A model as a function: what an adapter returns.

    Attributes:
      fun: a function that JAX can differentiate, or a training step.
      inputs: its arguments, with `jax.ShapeDtypeStruct`s for arrays.
      argnums: the arguments to differentiate where the user names none; None: all that can be, or
        of a training step those that it differentiates itself.
    """

    fun: Callable[..., Any]
    inputs: Inputs
    argnums: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model of a framework, and what is asked about it.

    Attributes:
      framework: the name that the adapter goes by.
      name: the target as the user wrote it.
      model: what makes the model: a class, a function or the model itself.
      inputs: the arguments that the model, or a loss of the user's own, is called with.
      loss: the loss.
      optimizer: an optimizer with `init` and `update`, as of optax; None: no training step is asked
        for, only the loss.
      has_aux: whether the loss returns `(loss, auxiliary data)`.
      has_loss: whether the user chose the loss; else a model that brings one may use its own.
      mesh: the mesh of `--mesh`, over which the parameters may be split; None: there is none.
      init_args: what a Linen module is initialised with, where it is called with other shapes.
      platform, devices: the kind and the number of the devices that the answer is for, where the
        model is a configuration, which may depend on them.
    """

    framework: str
    name: str
    model: Expression
    inputs: Inputs
    loss: Loss
    optimizer: Any = None
    has_aux: bool = False
    has_loss: bool = False
    mesh: Any = None
    init_args: tuple[Any, ...] = ()
    platform: str = ""
    devices: int = 1

    def library(self, module: str, package: str | None = None) -> ModuleType:
        """Return a module of a library; see `imported`."""
        return imported(module, f"{self.framework}:", package)

    def made(self, kind: type, name: str, **defaults: Callable[[], Any]) -> Any:
        """Return the model, made as the user wrote it.

        Args:
          kind: the class of the framework's models.
          name: what the class is called.
          **defaults: what makes arguments that the user leaves out, by their names.

        Raises:
          TargetError: it cannot be made, or is no model.
        """
        model = self.model
        if model.call is None and isinstance(model.value, kind):
            return model.value
        if not callable(model.value):
            raise TargetError(
                f"{self.name} is no {name} but a value of type {type(model.value).__name__}"
            )
        if isinstance(model.value, type) and not issubclass(model.value, kind):
            raise TargetError(f"{self.name} is no {name}: {_bases(model.value)}")
        more = {name: make() for name, make in defaults.items() if model.takes(name)}
        found = model.made(**more)
        if not isinstance(found, kind):
            what = "an array" if is_array(found) else f"a value of type {type(found).__name__}"
            raise TargetError(f"{self.name} makes {what}, which is no {name}")
        return found

    def shapes(self, fun: Callable[..., Any]) -> Any:
        """Return what a function of the request's inputs returns, abstractly.

        Nothing is computed or allocated. Settings among the inputs keep their values.
        """
        return _shapes(fun, self.inputs)

    def initial(self, fun: Callable[..., Any]) -> Any:
        """Return what `shapes` does, for what the model is initialised with."""
        if not self.init_args:
            return self.shapes(fun)
        return _shapes(fun, Inputs(self.init_args, self.inputs.kwargs))


def _shapes(fun: Callable[..., Any], inputs: Inputs) -> Any:
    jax = jax_compat.import_jax()
    arrays = only_arrays(inputs)

    def called(args: Any, kwargs: Any) -> Any:
        args, kwargs = with_settings(inputs, args, kwargs)
        return fun(*args, **kwargs)

    return jax.eval_shape(called, arrays.args, arrays.kwargs)


def _bases(kind: type) -> str:
    base = kind.__mro__[1]
    return f"its class derives from {base.__module__}.{base.__qualname__}"
