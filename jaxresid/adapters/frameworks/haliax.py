"""Models of Haliax: `haliax:train/model.py:build`, called with arrays whose axes have names."""

from __future__ import annotations

from typing import Any

from jaxresid import jax_compat
from jaxresid.adapters.request import Adapted, ModelRequest
from jaxresid.adapters.settings import only_arrays, with_settings
from jaxresid.adapters.step import adapted
from jaxresid.base.errors import InputsError
from jaxresid.inspector.call.leaves import is_array, is_inexact

_AXES = "axes"  # the setting that names the axes of the inputs


def adapt(request: ModelRequest) -> Adapted:
    """Return the module's loss or training step; parameters are its arrays of floats.

    The module, or a loss of the user's own, is called with a `NamedArray` for each input that has
    names. What the module returns the named losses get as plain arrays.
    """
    equinox, haliax = request.library("equinox", "haliax"), request.library("haliax")
    jax = jax_compat.import_jax()

    def made() -> Any:
        return request.made(equinox.Module, "equinox.Module", key=lambda: jax.random.PRNGKey(0))

    names = _names(request)
    model = equinox.filter_eval_shape(made)
    params, others = equinox.partition(model, is_inexact)
    state, static = equinox.partition(others, is_array)

    def named(args: Any) -> list[Any]:
        return [haliax.named(a, n) for a, n in zip(args, names, strict=True)]

    def is_named(value: Any) -> bool:
        return isinstance(value, haliax.NamedArray)

    def objective(params: Any, state: Any, rng: None, *args: Any, **kwargs: Any) -> Any:
        model = equinox.combine(params, state, static)
        del kwargs[_AXES]

        def plain(*args: Any, **kwargs: Any) -> Any:
            result = request.loss.called(model)(*named(args), **kwargs)
            return jax.tree.map(lambda r: r.array if is_named(r) else r, result, is_leaf=is_named)

        if request.loss.is_named:
            return request.loss(plain, *args, **kwargs), state
        return request.loss(model, *named(args), **kwargs), state

    return adapted(request, objective, params, state, call=request.loss.called(model))


def _names(request: ModelRequest) -> list[tuple[str, ...]]:
    """Return the names of the axes of each input that the model, or a loss of one's own, gets.

    Raises:
      InputsError: they are not given, or are not those of the inputs.
    """
    arrays = only_arrays(request.inputs)
    _, kwargs = with_settings(request.inputs, arrays.args, arrays.kwargs)
    given = arrays.args[:-1] if request.loss.is_named and request.loss.target else arrays.args
    ranks = [len(getattr(each, "shape", ())) for each in given]
    text = kwargs.get(_AXES)
    names = [tuple(each.split()) for each in text.split(";")] if isinstance(text, str) else []
    if [len(each) for each in names] != ranks:
        example = "; ".join(" ".join(f"axis{i}" for i in range(rank)) for rank in ranks)
        raise InputsError(
            f"{request.name} is called with named arrays: name the axes of each --arg that it gets,"
            f" in their order, --kwarg '{_AXES}=\"{example or 'batch embed'}\"'"
        )
    return names
