"""Models of Flax NNX: `nnx:train/model.py:Decoder(512)`."""

from __future__ import annotations

from typing import Any

from jaxresid import jax_compat
from jaxresid.adapters.request import Adapted, ModelRequest
from jaxresid.adapters.shardings import split
from jaxresid.adapters.step import adapted


def adapt(request: ModelRequest) -> Adapted:
    """Return the model's loss or training step; parameters are its `nnx.Param`s."""
    nnx = request.library("flax.nnx", "flax")
    jax = jax_compat.import_jax()

    def made() -> Any:
        return request.made(nnx.Module, "nnx.Module", rngs=lambda: nnx.Rngs(0))

    model = nnx.eval_shape(made)
    graph, params, state = nnx.split(model, nnx.Param, ...)
    if request.mesh is not None:
        specs = nnx.get_partition_spec(params)
        params = jax.tree.map(lambda leaf, spec: split(leaf, spec, request.mesh), params, specs)

    def objective(params: Any, state: Any, rng: None, *args: Any, **kwargs: Any) -> Any:
        # New Variables, which belong to the trace that they are changed in.
        params, state = jax.tree.map(lambda leaf: leaf, (params, state))
        model = nnx.merge(graph, params, state)
        result = request.loss(request.loss.called(model), *args, **kwargs)
        return result, nnx.split(model, nnx.Param, ...)[2]

    return adapted(request, objective, params, state, call=request.loss.called(model))
