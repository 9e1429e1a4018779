"""Functions as JAX differentiates and checkpoints them."""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxresid.base.errors import calls_user_code
from jaxresid.jax_compat.patches import patched
from jaxresid.jax_compat.version import import_jax


@contextlib.contextmanager
def replacing_differentiated(
    new: Callable[[Callable[..., Any], bool], Callable[..., Any]],
) -> Iterator[None]:
    """Have JAX linearize `new(fun, has_aux)` in place of `fun` in the context, in this thread.

    That holds for `jax.vjp`, `jax.linearize`, `jax.grad`, `jax.value_and_grad` and `jax.jacrev`,
    by whatever name a module has them, and for what libraries build on them.
    """
    import_jax()
    from jax._src import linear_util
    from jax._src.interpreters import ad

    thread = threading.get_ident()
    plain: Callable[..., Any] = ad.linearize

    @functools.wraps(plain)
    def linearize(fun: Any, *primals: Any, **options: Any) -> Any:
        if threading.get_ident() != thread:
            return plain(fun, *primals, **options)
        has_aux = bool(options.get("has_aux"))
        if not isinstance(fun, linear_util.WrappedFun):
            return plain(new(fun, has_aux), *primals, **options)
        # Until 0.9.
        made = linear_util.wrap_init(new(fun.call_wrapped, has_aux), debug_info=fun.debug_info)
        return plain(made, *primals, **options)

    with patched({(ad, "linearize"): linearize}):
        yield


@contextlib.contextmanager
def replacing_vjp(new: Callable[..., Any]) -> Iterator[None]:
    """Have `new` called in place of `jax.vjp`, by what calls it too, in the context and thread.

    A `vjp` that a module has imported by name stays as it is, and so does a call with options that
    not every version has.

    Args:
      new: takes a function that makes the call as it is, the differentiated function, the primals
        and `has_aux`, and returns what `jax.vjp` does.
    """
    jax = import_jax()
    from jax._src import api

    thread = threading.get_ident()
    inner = getattr(api, "_vjp", None)  # all go through it until 0.9
    plain: Callable[..., Any] = inner or api.vjp

    @functools.wraps(plain)
    def vjp(fun: Any, *primals: Any, has_aux: bool = False, **options: Any) -> Any:
        as_it_is = functools.partial(plain, fun, *primals, has_aux=has_aux, **options)
        if threading.get_ident() != thread or options:
            return as_it_is()
        return new(as_it_is, fun if inner is None else fun.call_wrapped, primals, has_aux)

    names = [(api, "_vjp")] if inner else [(api, "vjp"), (jax, "vjp")]
    with patched(dict.fromkeys(names, vjp)):
        yield


def checkpointed_function(frame: types.FrameType) -> Callable[..., Sequence[Any]] | None:
    """Return the function that is checkpointed by a call of `jax.checkpoint`.

    None where it is not known (jax_remat3).

    Args:
      frame: the frame of `jax.checkpoint` that binds it; its names are the same in 0.7.0 to 0.12.
    """
    jax = import_jax()
    fun, tree = frame.f_locals.get("fun_"), frame.f_locals.get("in_tree")
    if fun is None or tree is None:
        return None

    @calls_user_code
    def call(*operands: Any) -> Sequence[Any]:
        args, kwargs = jax.tree.unflatten(tree, operands[len(operands) - tree.num_leaves :])
        found: Sequence[Any] = jax.tree.leaves(fun(*args, **kwargs))
        return found

    return call


def static_arguments(fun: Callable[..., Any]) -> tuple[frozenset[int], frozenset[str]]:
    """Return the positions and the names of the arguments that a jitted function holds static.

    The positions are those in a call of the function. Both are empty for what JAX does not jit.
    """
    given = 0
    while isinstance(fun, functools.partial):
        given += len(fun.args)
        fun = fun.func
    try:
        info = getattr(fun, "_jit_info", None)
    except Exception:  # a callable's own __getattr__ may raise anything
        info = None
    positions = getattr(info, "static_argnums", None) or ()
    names = getattr(info, "static_argnames", None) or ()
    return frozenset(n - given for n in positions if n >= given), frozenset(names)


def is_live_tracer(value: Any) -> bool:
    """Return whether a value is traced in the trace that goes on, or in one around it.

    A tracer that a differentiated function leaves in a list or in an object is of no use once the
    function has returned.
    """
    from jax._src import core

    trace: Any = core.trace_ctx.trace
    while trace is not None and isinstance(value, core.Tracer):
        if value._trace is trace:
            return True
        trace = getattr(trace, "parent_trace", None)
    return False
