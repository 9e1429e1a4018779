"""The optimizer of `--optimizer`: one of optax, or what a function of the user's returns."""

from __future__ import annotations

from typing import Any

from jaxresid.adapters.libraries import imported
from jaxresid.base.errors import InputsError
from jaxresid.targets.expressions import expression_of
from jaxresid.targets.references import parse_reference
from jaxresid.targets.targets import load_module

# Sizes and FLOPs do not depend on it.
_LEARNING_RATE = 1e-3


def optimizer_of(text: str, folder: str | None = None) -> Any:
    """Return an optimizer, which has `init` and `update` as those of optax have.

    Args:
      text: `adamw(1e-3)`, an expression with the names of optax, or `module:function`.
      folder: a folder whose modules may be named too.

    Raises:
      TargetError: optax is not installed, or it has no such optimizer, or making it fails.
      InputsError: it is no optimizer.
    """
    reference = parse_reference(text)
    if reference is not None and reference.framework is None:
        place, module = reference.place, load_module(reference.place, folder)
        text = reference.expression
    else:
        place, module = "optax", imported("optax", "--optimizer")
    found = expression_of(text, module, place)
    if found.call is None and _is_optimizer(found.value):
        return found.value
    if not callable(found.value):
        made = found.value
    elif found.takes("learning_rate"):
        made = found.made(learning_rate=_LEARNING_RATE)
    else:
        made = found.made()
    if not _is_optimizer(made):
        raise InputsError(
            f"--optimizer {text} makes a value of type {type(made).__name__}, which is no optimizer"
            " with init and update; write one of optax, such as adamw(1e-3)"
        )
    return made


def _is_optimizer(value: Any) -> bool:
    return (
        not isinstance(value, type)
        and callable(getattr(value, "init", None))
        and callable(getattr(value, "update", None))
    )
