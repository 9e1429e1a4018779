"""Models of Equinox: `equinox:train/model.py:Decoder(512)`."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.adapters.request import Adapted, ModelRequest
from jaxresid.adapters.step import adapted
from jaxresid.base.errors import InputsError
from jaxresid.inspector.call.leaves import is_array, is_inexact


def adapt(request: ModelRequest) -> Adapted:
    """Return the module's loss or training step; parameters are its arrays of floats.

    The named losses call it with each example of the batch; a loss of the user's own gets the
    module itself. Where the module has an `equinox.nn.State`, that is passed beside it.
    """
    equinox = request.library("equinox")
    jax = jax_compat.import_jax()

    def made() -> Any:
        return request.made(equinox.Module, "equinox.Module", key=lambda: jax.random.key(0))

    model = equinox.filter_eval_shape(made)
    if _has_state(equinox, model):
        return _with_state(request, equinox, made)
    params, others = equinox.partition(model, is_inexact)
    state, static = equinox.partition(others, is_array)

    def objective(params: Any, state: Any, rng: None, *args: Any, **kwargs: Any) -> Any:
        model = equinox.combine(params, state, static)

        def each(*args: Any, **kwargs: Any) -> Any:
            one = request.loss.called(model)
            return equinox.filter_vmap(lambda args, kwargs: one(*args, **kwargs))(args, kwargs)

        called = each if request.loss.is_named else model
        return request.loss(called, *args, **kwargs), state

    return adapted(request, objective, params, state, call=request.loss.called(model))


def _has_state(equinox: Any, model: Any) -> bool:
    indices = equinox.nn.StateIndex
    leaves = jax_compat.import_jax().tree.leaves(model, is_leaf=lambda x: isinstance(x, indices))
    return any(isinstance(leaf, indices) for leaf in leaves)


def _with_state(request: ModelRequest, equinox: Any, made: Any) -> Adapted:
    """Return the loss or step of a module that has an `equinox.nn.State`, such as running means.

    Raises:
      InputsError: the module's call has no parameter `state`, or the loss returns more than the
        value and the state.
    """
    model, held = equinox.filter_eval_shape(equinox.nn.make_with_state(made))
    params, others = equinox.partition(model, is_inexact)
    arrays, static = equinox.partition(others, is_array)
    if request.has_aux:
        raise InputsError(
            f"{request.name} has a state, which its loss returns: (loss, state), and no --has-aux"
        )
    called = request.loss.called(model)
    if request.loss.is_named and "state" not in inspect.signature(called).parameters:
        raise InputsError(
            f"{request.name} has a state, and its call no parameter state; write a loss of your"
            " own, --loss module:function, which is called with model, state and the inputs"
        )
    example, loss_of_model = equinox.if_array(0), request.loss
    axis = _axis_name(equinox, model)

    def objective(params: Any, state: Any, rng: None, *args: Any, **kwargs: Any) -> Any:
        arrays, held = state
        model = equinox.combine(params, arrays, static)
        if not loss_of_model.is_named:
            loss, held = loss_of_model(model, held, *args, **kwargs)
            return loss, (arrays, held)
        after, one = held, loss_of_model.called(model)

        def each(*args: Any, **kwargs: Any) -> Any:
            nonlocal after
            output, after = equinox.filter_vmap(
                lambda args, kwargs, state: one(*args, state=state, **kwargs),
                in_axes=(example, example, None),
                out_axes=(example, None),
                axis_name=axis,
            )(args, kwargs, held)
            return output

        return loss_of_model(each, *args, **kwargs), (arrays, after)

    if request.loss.is_named:
        call = _without(called, "state")
    else:
        call = None
        second = [*inspect.signature(request.loss.fun).parameters][1]
        named = replace(request.loss, fun=_without(request.loss.fun, second))
        request = replace(request, loss=named)
    return adapted(request, objective, params, (arrays, held), call=call)


def _axis_name(equinox: Any, model: Any) -> Any:
    """Return the axis over which the module's batch normalisations take their means."""
    norm = equinox.nn.BatchNorm
    leaves = jax_compat.import_jax().tree.leaves(model, is_leaf=lambda x: isinstance(x, norm))
    names = [leaf.axis_name for leaf in leaves if isinstance(leaf, norm)]
    return names[0] if names else "batch"


def _without(fun: Any, name: str) -> Any:
    """Return a function that has the parameters of another but one."""
    signature = inspect.signature(fun)
    kept = [each for each in signature.parameters.values() if each.name != name]

    def call() -> None: ...

    call.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return call
