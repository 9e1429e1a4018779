"""Language models of Levanter: `levanter:levanter.models.llama:LlamaConfig(num_layers=12)`."""

from __future__ import annotations

from typing import Any

from jaxresid import jax_compat
from jaxresid.adapters.request import Adapted, ModelRequest
from jaxresid.adapters.settings import only_arrays, with_settings
from jaxresid.adapters.step import adapted
from jaxresid.base.errors import InputsError, TargetError, summary
from jaxresid.inspector.call.leaves import is_array, is_inexact

_VOCABULARY = 50257  # of GPT-2's tokenizer, which Levanter takes by default
_BATCH = "batch"


def adapt(request: ModelRequest) -> Adapted:
    """Return the next-token loss, or the training step, of the model that a configuration builds.

    A loss of the user's own is called with the model and the tokens, a `NamedArray`.
    """
    models = request.library("levanter.models.lm_model", "levanter")
    equinox, haliax = request.library("equinox"), request.library("haliax")
    jax = jax_compat.import_jax()
    config = request.made(models.LmConfig, "levanter.models.lm_model.LmConfig")
    size, precision = _settings(request)
    vocabulary = haliax.Axis("vocab", size)
    model = equinox.filter_eval_shape(lambda: config.build(vocabulary, key=jax.random.PRNGKey(0)))
    params, others = equinox.partition(model, is_inexact)
    state, static = equinox.partition(others, is_array)

    def objective(params: Any, state: Any, rng: Any, tokens: Any, **_: Any) -> Any:
        model = precision.cast_to_compute(equinox.combine(params, state, static))
        named = haliax.named(tokens, (_BATCH, config.Pos.name))
        if request.has_loss:
            return request.loss(model, named), state
        example = haliax.vmap(models.LmExample.causal, named.axes[0])(named)
        return models.compute_next_token_loss(model, example, key=rng).scalar(), state

    return adapted(request, objective, params, state, call=lambda tokens: None, needs_rng=True)


def _settings(request: ModelRequest) -> tuple[int, Any]:
    """Return the size of the vocabulary and the precision, a policy of jmp.

    Raises:
      InputsError: the arguments are not tokens and these settings.
      TargetError: there is no such precision.
    """
    arrays = only_arrays(request.inputs)
    _, settings = with_settings(request.inputs, arrays.args, arrays.kwargs)
    shapes = [getattr(each, "shape", ()) for each in arrays.args]
    if len(shapes) != 1 or len(shapes[0]) != 2 or not set(settings) <= {"vocab_size", "mp"}:
        raise InputsError(
            f"{request.name} is trained on tokens: one --arg 'i32[batch,1024]', and if need be"
            " --kwarg vocab_size=32000 and --kwarg 'mp=\"p=f32,c=bf16\"'"
        )
    if request.has_loss and request.loss.is_named:
        raise InputsError(
            f"{request.name} has a loss of its own, of the next token: leave out --loss, or write"
            " --loss module:function, which is called with the model and the tokens"
        )
    text = settings.get("mp", "f32")
    try:
        policy = request.library("jmp").get_policy(text)
    except (KeyError, ValueError) as e:
        raise TargetError(f"--kwarg mp={text!r} is no policy of jmp: {summary(e)}") from e
    return settings.get("vocab_size", _VOCABULARY), policy
