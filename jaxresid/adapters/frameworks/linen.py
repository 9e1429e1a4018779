"""Models of Flax Linen: `linen:train/model.py:Decoder(512)`."""

from __future__ import annotations

from typing import Any

from jaxresid import jax_compat
from jaxresid.adapters.request import Adapted, ModelRequest
from jaxresid.adapters.shardings import split
from jaxresid.adapters.step import adapted


def adapt(request: ModelRequest) -> Adapted:
    """Return the module's loss or training step; parameters are its collection `params`.

    A loss of the user's own is called with the bound module.
    """
    nn = request.library("flax.linen", "flax")
    jax = jax_compat.import_jax()
    module = request.made(nn.Module, "linen.Module")

    def init(*args: Any, **kwargs: Any) -> Any:
        return nn.init(request.loss, module)(jax.random.key(0), *args, **kwargs)

    def is_boxed(leaf: Any) -> bool:
        return isinstance(leaf, nn.meta.AxisMetadata)

    def placed(leaf: Any) -> Any:
        spec = nn.get_partition_spec(leaf) if is_boxed(leaf) else None
        return jax.tree.map(lambda array: split(array, spec, request.mesh), leaf)

    variables = jax.tree.map(placed, dict(request.shapes(init)), is_leaf=is_boxed)
    params = variables.pop("params", {})

    def objective(params: Any, state: Any, rng: Any, *args: Any, **kwargs: Any) -> Any:
        apply = nn.apply(request.loss, module, mutable=sorted(state))
        return apply({"params": params, **state}, *args, rngs=rng, **kwargs)

    return adapted(request, objective, params, variables, call=module, needs_rng=True)
