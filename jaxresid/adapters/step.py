"""Write the loss of a model, its training step or its call as functions of arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.adapters.libraries import imported
from jaxresid.adapters.request import Adapted, ModelRequest
from jaxresid.adapters.settings import only_arrays, with_settings
from jaxresid.adapters.shardings import like_parameters
from jaxresid.targets.inputs import Inputs


def adapted(
    request: ModelRequest,
    objective: Callable[..., tuple[Any, Any]],
    params: Any,
    state: Any = None,
    *,
    call: Callable[..., Any] | None = None,
    needs_rng: bool = False,
) -> Adapted:
    """Return the loss, or with an optimizer the training step, as a function of its arguments.

    A step donates the parameters, the state and the optimizer's state, and returns their new
    values. A model that is only called donates what the call changes of its state, such as a cache.

    Args:
      objective: a function of `(params, state, rng, *args, **kwargs)` that returns
        `(result, new state)`, the result being what the request's loss returns.
      state: all other arrays of the model, abstract: what is neither differentiated nor updated by
        the optimizer, such as running means.
      call: what the named losses call, whose parameters the arguments are called after.
      needs_rng: whether the objective wants a random key; else it is given None.
    """
    jax = jax_compat.import_jax()
    more: dict[str, Any] = {}
    if jax.tree.leaves(state):
        more["state"] = state
    if needs_rng:
        more["rng"] = jax.eval_shape(lambda: jax.random.key(0))

    count = len(more)

    def objective_of(params: Any, arrays: Sequence[Any], kwargs: Any) -> tuple[Any, Any]:
        own = dict(zip(more, arrays, strict=False))
        args, kwargs = with_settings(request.inputs, arrays[count:], kwargs)
        return objective(params, own.get("state", state), own.get("rng"), *args, **kwargs)

    passed = only_arrays(request.inputs)
    if request.loss.is_program:
        return _program(request, objective, params, state, more, call)
    rest, kwargs = (*more.values(), *passed.args), passed.kwargs
    names = [*more, *_names(request, call)]
    if request.optimizer is None:

        def loss(params: Any, *arrays: Any, **kwargs: Any) -> Any:
            return objective_of(params, arrays, kwargs)[0]

        return Adapted(with_names(loss, ["params", *names]), Inputs((params, *rest), kwargs), (0,))

    optax = imported("optax", "a training step")

    def split(params: Any, arrays: Sequence[Any], kwargs: Any) -> tuple[Any, Any]:
        result, new = objective_of(params, arrays, kwargs)
        value, *aux = result if request.has_aux else (result,)
        return value, (new, aux)

    def train_step(params: Any, opt_state: Any, *arrays: Any, **kwargs: Any) -> Any:
        taken, grads = jax.value_and_grad(split, has_aux=True)(params, arrays, kwargs)
        value, (new, aux) = taken
        updates, opt_state = request.optimizer.update(grads, opt_state, params)
        kept = (new,) if "state" in more else ()
        return optax.apply_updates(params, updates), opt_state, *kept, value, *aux

    donated = (0, 1, 2) if "state" in more else (0, 1)
    step = jax.jit(with_names(train_step, ["params", "opt_state", *names]), donate_argnums=donated)
    opt_state = jax.eval_shape(request.optimizer.init, params)
    opt_state = like_parameters(request.optimizer, opt_state, params)
    return Adapted(step, Inputs((params, opt_state, *rest), kwargs))


def _program(
    request: ModelRequest,
    objective: Callable[..., tuple[Any, Any]],
    params: Any,
    state: Any,
    more: Mapping[str, Any],
    call: Callable[..., Any] | None,
) -> Adapted:
    jax = jax_compat.import_jax()
    # Of a state in collections those that the call changes, else the state where anything changes.
    parts = dict(state) if isinstance(state, Mapping) else {"": state}
    passed = only_arrays(request.inputs)
    is_changed: dict[str, bool] = {}

    def together(held: Mapping[str, Any]) -> Any:
        return held if isinstance(state, Mapping) else held[""]

    def run(params: Any, kept: Any, changed: Any, rng: Any, args: Any, kwargs: Any) -> Any:
        before_call = {**kept, **changed}
        args, kwargs = with_settings(request.inputs, args, kwargs)
        output, new = objective(params, together(before_call), rng, *args, **kwargs)
        after = dict(new) if isinstance(state, Mapping) else {"": new}
        for name, part in after.items():
            before = {id(leaf) for leaf in jax.tree.leaves(before_call.get(name))}
            is_changed[name] = any(id(leaf) not in before for leaf in jax.tree.leaves(part))
        return output, {name: part for name, part in after.items() if is_changed[name]}

    rng = more.get("rng")
    jax.eval_shape(run, params, parts, {}, rng, passed.args, passed.kwargs)
    kept = {name: part for name, part in parts.items() if not is_changed.get(name)}
    changed = {name: part for name, part in parts.items() if name not in kept}
    leading: dict[str, Any] = {"params": params}
    if jax.tree.leaves(kept):
        leading["state"] = kept
    if changed:
        leading["changed"] = changed
    if rng is not None:
        leading["rng"] = rng
    count = len(leading)

    def called(*arrays: Any, **kwargs: Any) -> Any:
        own = dict(zip(leading, arrays, strict=False))
        output, after = run(
            own["params"],
            own.get("state", kept),
            own.get("changed", {}),
            own.get("rng"),
            arrays[count:],
            kwargs,
        )
        return (output, after) if after else output

    names = [*leading, *_names(request, call)]
    donated = [i for i, name in enumerate(leading) if name == "changed"]
    program = jax.jit(with_names(called, names), donate_argnums=donated)
    return Adapted(program, Inputs((*leading.values(), *passed.args), passed.kwargs))


def _names(request: ModelRequest, call: Callable[..., Any] | None) -> list[str]:
    count = len(request.inputs.args)
    if not request.loss.is_named:
        names = _parameters(request.loss.fun)[1:]
    else:
        names = [] if call is None else _parameters(call)
    names = [*names, *(f"input{i}" for i in range(len(names), count))][:count]
    if request.loss.target and names:
        names[-1] = request.loss.target
    # A report tells arguments apart by their names.
    taken = ("params", "opt_state", "state", "changed", "rng")
    return [f"{name}_{i}" if name in (*taken, *names[:i]) else name for i, name in enumerate(names)]


def _parameters(fun: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(fun).parameters.values()
    except Exception:  # TypeError, ValueError, or what the attributes of a callable object raise
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def with_names(fun: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Give a function a signature with names for its positional arguments, and return it."""
    kinds = inspect.Parameter
    parameters = [kinds(name, kinds.POSITIONAL_ONLY) for name in names]
    others = kinds("kwargs", kinds.VAR_KEYWORD)
    fun.__signature__ = inspect.Signature([*parameters, others])  # type: ignore[attr-defined]
    return fun
