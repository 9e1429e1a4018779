"""Choose the loss of `--loss`: one that goes by a name, or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxresid.adapters import standard_losses
from jaxresid.base.errors import InputsError, TargetError
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.targets.expressions import expression_of
from jaxresid.targets.references import parse_reference
from jaxresid.targets.targets import load_module


@dataclass(frozen=True, slots=True)
class Loss:
    """What is asked of a model: a function of the model and of its batch.

    Attributes:
      fun: the function, called with the model first. What is differentiated returns a scalar.
      is_named: whether it is one of ours, which call the model with arrays of a whole batch.
      target: what the last argument is where the model does not get it; None: it gets all.
      is_program: whether it only calls the model, which is taken as it is.
      method: the method of the model that is called; None: the model itself is.
    """

    fun: Callable[..., Any]
    is_named: bool
    target: str | None = None
    is_program: bool = False
    method: str | None = None

    def called(self, model: Any) -> Any:
        """Return what of a model is called: a method, or the model itself.

        Raises:
          TargetError: it has no such method.
        """
        if self.method is None:
            return model
        found = getattr(model, self.method, None)
        if not callable(found):
            names = [n for n in dir(type(model)) if not n.startswith("_")]
            raise TargetError(
                f"--method: {type(model).__name__} has no method {self.method!r}"
                f"{did_you_mean(self.method, names)}"
            )
        return found

    def __call__(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the loss, or the loss and auxiliary data if the function returns both."""
        return self.fun(model, *args, **kwargs)


LOSSES = {
    "mean": Loss(standard_losses.mean, is_named=True),
    "cross-entropy": Loss(standard_losses.cross_entropy, is_named=True, target="labels"),
    "squared-error": Loss(standard_losses.squared_error, is_named=True, target="target"),
}


PROGRAM = Loss(lambda model, *args, **kwargs: model(*args, **kwargs), True, is_program=True)


def loss_of(text: str, folder: str | None = None) -> Loss:
    """Return the loss of a name, or of a reference `module:function`.

    Args:
      text: the name or the reference.
      folder: a folder whose modules may be named too.

    Raises:
      InputsError: it is neither.
      TargetError: the function cannot be loaded.
    """
    if text in LOSSES:
        return LOSSES[text]
    reference = parse_reference(text)
    if reference is None or reference.framework is not None:
        raise InputsError(
            f"--loss {text!r} is none of {', '.join(LOSSES)}{did_you_mean(text, LOSSES)} and no"
            " module:function, which is called with the model and the inputs"
        )
    module = load_module(reference.place, folder)
    found = expression_of(reference.expression, module, reference.place)
    fun = found.value if found.call is None else found.made()
    if not callable(fun):
        raise InputsError(f"--loss {text} is no function but a value of type {type(fun).__name__}")
    return Loss(fun, is_named=False)
