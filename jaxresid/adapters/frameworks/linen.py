"""Models of Flax Linen: `linen:train/model.py:Decoder(512)`."""

from __future__ import annotations

from typing import Any

from jaxresid import jax_compat
from jaxresid.adapters.request import Adapted, ModelRequest
from jaxresid.adapters.shardings import split
from jaxresid.adapters.step import adapted
from jaxresid.base.errors import InputsError


def adapt(request: ModelRequest) -> Adapted:
    """Return the module's loss or training step, or its call; parameters are its `params`.

    A loss of the user's own is called with the bound module. All other collections may be changed.

    Raises:
      InputsError: a cache would be as long as what one call is given.
    """
    nn = request.library("flax.linen", "flax")
    jax = jax_compat.import_jax()
    module = request.made(nn.Module, "linen.Module")

    loss = request.loss

    def of_module(bound: Any, *args: Any, **kwargs: Any) -> Any:
        return loss(loss.called(bound), *args, **kwargs)

    def init(*args: Any, **kwargs: Any) -> Any:
        return nn.init(of_module, module)(jax.random.key(0), *args, **kwargs)

    def is_boxed(leaf: Any) -> bool:
        return isinstance(leaf, nn.meta.AxisMetadata)

    def placed(leaf: Any) -> Any:
        spec = nn.get_partition_spec(leaf) if is_boxed(leaf) else None
        return jax.tree.map(lambda array: split(array, spec, request.mesh), leaf)

    variables = jax.tree.map(placed, dict(request.initial(init)), is_leaf=is_boxed)
    if loss.is_program and "cache" in variables and not request.init_args:
        raise InputsError(
            f"{request.name} has a cache, which is as long as what it is initialised with: give"
            " that with --init-arg, one SPEC per argument of the call, such as 'i32[8,2048]'"
        )
    params = variables.pop("params", {})

    def objective(params: Any, state: Any, rng: Any, *args: Any, **kwargs: Any) -> Any:
        apply = nn.apply(of_module, module, mutable=sorted(state))
        return apply({"params": params, **state}, *args, rngs=rng, **kwargs)

    return adapted(request, objective, params, variables, call=loss.called(module), needs_rng=True)
