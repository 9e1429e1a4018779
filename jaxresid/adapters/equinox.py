"""Models of Equinox: `equinox:train/model.py:Decoder(512)`."""

from __future__ import annotations

from typing import Any

from jaxresid import jax_compat
from jaxresid.adapters.request import Adapted, ModelRequest
from jaxresid.adapters.step import adapted
from jaxresid.inspector.call.leaves import is_array, is_inexact


def adapt(request: ModelRequest) -> Adapted:
    """Return the module's loss or training step; parameters are its arrays of floats.

    The named losses call it with each example of the batch; a loss of the user's own gets the
    module itself.
    """
    equinox = request.library("equinox")
    jax = jax_compat.import_jax()

    def made() -> Any:
        return request.made(equinox.Module, "equinox.Module", key=lambda: jax.random.key(0))

    model = equinox.filter_eval_shape(made)
    params, others = equinox.partition(model, is_inexact)
    state, static = equinox.partition(others, is_array)

    def objective(params: Any, state: Any, rng: None, *args: Any, **kwargs: Any) -> Any:
        model = equinox.combine(params, state, static)

        def each(*args: Any, **kwargs: Any) -> Any:
            return equinox.filter_vmap(lambda args, kwargs: model(*args, **kwargs))(args, kwargs)

        called = each if request.loss.is_named else model
        return request.loss(called, *args, **kwargs), state

    return adapted(request, objective, params, state, call=model)
