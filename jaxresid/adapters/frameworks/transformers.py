"""Flax classes of transformers by the fields of their configuration.

`transformers:FlaxGPT2LMHeadModel(n_layer=2, n_embd=256)`
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from typing import Any

from jaxresid.adapters.request import Adapted, ModelRequest
from jaxresid.adapters.step import adapted
from jaxresid.base.errors import TargetError
from jaxresid.base.text.nearest import did_you_mean


def adapt(request: ModelRequest) -> Adapted:
    """Return the model's loss or training step, in training unless `train=False` is given."""
    transformers = request.library("transformers")
    request.library("flax")
    # Each Flax class is announced as one that will go.
    transformers.logging.set_verbosity_error()
    cls = request.model.value
    base = transformers.FlaxPreTrainedModel
    if isinstance(cls, type) and issubclass(cls, base):
        by_fields = replace(request.model, value=functools.partial(_of_fields, cls))
        request = replace(request, model=by_fields)
    model = request.made(base, "transformers.FlaxPreTrainedModel")
    params = model.params_shape_tree
    takes_train = "train" in inspect.signature(request.loss.called(model)).parameters

    def objective(params: Any, state: None, rng: Any, *args: Any, **kwargs: Any) -> Any:
        bound = functools.partial(request.loss.called(model), params=params, dropout_rng=rng)
        if takes_train and request.loss.is_named:
            kwargs = {"train": not request.loss.is_program, **kwargs}
        return request.loss(bound, *args, **kwargs), state

    return adapted(request, objective, params, call=request.loss.called(model), needs_rng=True)


def _of_fields(cls: Any, *args: Any, **fields: Any) -> Any:
    """Return a model of a class without weights, by a configuration or by fields of one.

    Raises:
      TargetError: the configuration has no such field.
    """
    own = set(inspect.signature(cls.__init__).parameters) - {"self", "config", "kwargs"}
    options = {name: fields.pop(name) for name in own & set(fields)}
    options["_do_init"] = False
    if args:
        return cls(*args, **options, **fields)
    kind = cls.config_class
    known = {*kind().to_dict(), *kind.attribute_map}
    for name in fields:
        # A configuration keeps whatever it is given.
        if name not in known:
            raise TargetError(f"{kind.__name__} has no field {name!r}{did_you_mean(name, known)}")
    return cls(kind(**fields), **options)
