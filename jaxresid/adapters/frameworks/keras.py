"""Models of Keras: `keras:train/model.py:model`, trained as they are compiled.

A compiled model is what `fit` trains: its own `train_step`, jitted, with its state donated. With a
loss of the request's it is a function of its variables, as the models of other frameworks are.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.adapters.request import Adapted, ModelRequest
from jaxresid.adapters.settings import only_arrays
from jaxresid.adapters.step import adapted, with_names
from jaxresid.base.errors import NOT_CAUGHT, InputsError, TargetError
from jaxresid.targets.inputs import Inputs

_DATA = ("x", "y", "sample_weight")  # as `fit` calls them


def adapt(request: ModelRequest) -> Adapted:
    """Return the step that the model is compiled for, or its loss or step with the request's."""
    keras = request.library("keras")
    backend = keras.config.backend()
    if backend != "jax":
        raise TargetError(f"keras: its backend is {backend} here: set KERAS_BACKEND=jax")
    with _numbered_again():
        return _adapted(request, keras)


def _adapted(request: ModelRequest, keras: Any) -> Adapted:
    model = _model(request, keras.Model)
    if request.has_loss or not model.compiled:
        return _with_loss(request, keras, model)
    if request.optimizer is not None:
        raise InputsError(
            f"{request.name} is compiled with an optimizer of its own: leave out --optimizer, or"
            " give a --loss with it"
        )
    return _as_compiled(request, model)


@contextlib.contextmanager
def _numbered_again() -> Iterator[None]:
    """Have what is made afterwards called as what is made in the context.

    Keras numbers layers through the whole process, and each command may make a model repeatedly.
    """
    found = importlib.import_module("keras.src.backend.common.global_state")
    numbers = found.get_global_attribute("object_name_uids")
    before = {} if numbers is None else dict(numbers)
    yield
    numbers = found.get_global_attribute("object_name_uids")
    if numbers is not None:
        numbers.clear()
        numbers.update(before)


def _model(request: ModelRequest, kind: type) -> Any:
    """Return the model, made abstractly unless that fails, as where it loads weights.

    Nor where a layer computes a constant of its own when it is made, as `Normalization` does.
    """
    jax = jax_compat.import_jax()
    made: list[Any] = []
    try:
        jax.eval_shape(lambda: made.append(request.made(kind, "keras.Model")))
    except NOT_CAUGHT:
        raise
    except Exception:
        return request.made(kind, "keras.Model")
    held = (each for layer in made[0]._flatten_layers() for each in vars(layer).values())
    if any(isinstance(each, jax.core.Tracer) for each in held):
        return request.made(kind, "keras.Model")
    return made[0]


def _as_compiled(request: ModelRequest, model: Any) -> Adapted:
    """Return the model's own training step, as `fit` jits it."""
    jax = jax_compat.import_jax()
    data = _batch(request)
    # What `fit` builds before its first step: the model, its metrics, loss and optimizer.
    jax.eval_shape(lambda: model._symbolic_build(data_batch=data))
    trainable = _Variables(model.trainable_variables)
    others = _Variables(model.non_trainable_variables)
    optimizer = _Variables(model.optimizer.variables)
    metrics = _Variables(model.metrics_variables)
    groups = (trainable, others, optimizer, metrics)

    def train_step(params: Any, opt_state: Any, state: Any, *data: Any) -> Any:
        values = (params, state["variables"], opt_state, state["metrics"])
        listed = tuple(g.listed(each) for g, each in zip(groups, values, strict=True))
        logs, new = model.train_step(listed, data)
        params, own, opt_state, measured = (
            g.named(each) for g, each in zip(groups, new, strict=True)
        )
        return params, opt_state, {"variables": own, "metrics": measured}, logs

    names = ["params", "opt_state", "state", *_DATA[: len(data)]]
    step = jax.jit(with_names(train_step, names), donate_argnums=(0, 1, 2))
    state = {"variables": others.shapes, "metrics": metrics.shapes}
    return Adapted(step, Inputs((trainable.shapes, optimizer.shapes, state, *data), {}))


def _batch(request: ModelRequest) -> tuple[Any, ...]:
    """Return what `fit` hands to a step, without the last ones that are not given.

    Raises:
      InputsError: there is more than a step takes, or no x.
    """
    given = only_arrays(request.inputs)
    found = {**dict(zip(_DATA, given.args, strict=False)), **given.kwargs}
    if len(given.args) > len(_DATA) or not set(found) <= set(_DATA) or "x" not in found:
        raise InputsError(
            f"{request.name} is called with the batch of fit: --arg for x, y and the weights of"
            " the samples, each as one SPEC, such as '{\"tokens\": i32[8,128]}'"
        )
    count = max(i for i, name in enumerate(_DATA, 1) if name in found)
    return tuple(found.get(name) for name in _DATA[:count])


def _with_loss(request: ModelRequest, keras: Any, model: Any) -> Adapted:
    """Return the request's loss of the model, or the training step with it."""
    loss = request.loss
    called = loss.called(model)
    is_training = loss.is_named and not loss.is_program and loss.method is None
    if is_training and "training" in inspect.signature(model.call).parameters:
        called = functools.partial(model, training=True)
    if not model.built:
        request.shapes(lambda *args, **kwargs: request.loss(called, *args, **kwargs))
    params, others = (
        _Variables(model.trainable_variables),
        _Variables(model.non_trainable_variables),
    )

    def objective(values: Any, state: Any, rng: None, *args: Any, **kwargs: Any) -> Any:
        pairs = [*params.paired(values), *others.paired(state)]
        with keras.StatelessScope(pairs) as scope:
            result = request.loss(called, *args, **kwargs)
        return result, others.named([scope.get_current_value(each) for each in others.variables])

    return adapted(request, objective, params.shapes, others.shapes, call=model.call)


class _Variables:
    """Variables of Keras, and their values by their paths."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = variables
        paths = [each.path for each in variables]
        # Keras keeps names apart within a layer, and layers of a user's own may share one.
        self._names = [p if paths.count(p) == 1 else f"{p}_{i}" for i, p in enumerate(paths)]

    @property
    def shapes(self) -> dict[str, Any]:
        """Their abstract values by name."""
        jax = jax_compat.import_jax()
        return self.named([jax.ShapeDtypeStruct(v.shape, v.dtype) for v in self.variables])

    def named(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return values, in the order of the variables, by name."""
        return dict(zip(self._names, values, strict=True))

    def listed(self, values: Mapping[str, Any]) -> list[Any]:
        """Return values by name in the order of the variables."""
        return [values[name] for name in self._names]

    def paired(self, values: Mapping[str, Any]) -> list[tuple[Any, Any]]:
        """Return each variable with its value."""
        return list(zip(self.variables, self.listed(values), strict=True))
