"""The losses that go by a name. What they compute has the lines of this module in a report."""

from __future__ import annotations

import functools
import operator
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError
from jaxresid.inspector.call.leaves import is_inexact


def mean(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the mean of what the model returns, the sum of means where it returns several arrays.

    Raises:
      InputsError: it returns no float array.
    """
    jax = jax_compat.import_jax()
    output = model(*args, **kwargs)
    floats = [leaf for leaf in jax.tree.leaves(output) if is_inexact(leaf)]
    if not floats:
        raise InputsError(
            "the model returns no array of floats, whose mean could be the loss: give a --loss"
        )
    means = [jax.numpy.mean(_wide(jax.numpy.real(leaf))) for leaf in floats]
    return functools.reduce(operator.add, means)


def cross_entropy(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the mean cross-entropy in nats of logits and the integer labels, the last argument.

    Raises:
      InputsError: there are no labels for the logits.
    """
    jax = jax_compat.import_jax()
    logits, labels = _output_and_target("cross-entropy", model, args, kwargs)
    if not (
        hasattr(labels, "dtype")
        and jax.numpy.issubdtype(labels.dtype, jax.numpy.integer)
        and labels.shape == logits.shape[:-1]
    ):
        wanted = ",".join(map(str, logits.shape[:-1]))
        raise InputsError(
            f"--loss cross-entropy: the model returns logits {_shown(logits)} and the labels are"
            f" {_shown(labels)}; give the labels as the last --arg, i32[{wanted}]"
        )
    log_probabilities = jax.nn.log_softmax(_wide(logits))
    chosen = jax.numpy.take_along_axis(log_probabilities, labels[..., None], axis=-1)
    return -jax.numpy.mean(chosen)


def squared_error(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the mean squared error of what the model returns and the last argument.

    Raises:
      InputsError: the last argument has another shape.
    """
    jax = jax_compat.import_jax()
    output, target = _output_and_target("squared-error", model, args, kwargs)
    if getattr(target, "shape", None) != output.shape:
        wanted = ",".join(map(str, output.shape))
        raise InputsError(
            f"--loss squared-error: the model returns {_shown(output)} and the target is"
            f" {_shown(target)}; give the target as the last --arg, f32[{wanted}]"
        )
    return jax.numpy.mean((_wide(output) - _wide(target)) ** 2)


def _output_and_target(name: str, model: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return what the model returns for all arguments but the last, and the last.

    Raises:
      InputsError: there is no last one, or the model returns something other than one array.
    """
    if len(args) < 2:
        raise InputsError(
            f"--loss {name}: the last --arg is what the output is compared with; give one more"
        )
    *inputs, target = args
    output = model(*inputs, **kwargs)
    output = getattr(output, "logits", output)
    if not is_inexact(output):
        raise InputsError(
            f"--loss {name} needs a model that returns one array of floats, not a value of type"
            f" {type(output).__name__}; write a loss of your own, --loss module:function"
        )
    return output, target


def _wide(value: Any) -> Any:
    """Return an array of floats in f32, or in f64 if it is in that."""
    jax = jax_compat.import_jax()
    return value.astype(jax.numpy.promote_types(value.dtype, "float32"))


def _shown(value: Any) -> str:
    if not hasattr(value, "dtype"):
        return f"a value of type {type(value).__name__}"
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"
