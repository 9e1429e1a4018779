"""Run JAX's own `print_saved_residuals` and return its lines."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import JaxresidError, summary
from jaxresid.inspector.call.arguments import Arguments
from jaxresid.inspector.call.calling import call_with_leaves
from jaxresid.inspector.call.leaves import is_inexact


def saved_residual_lines(fun: Callable[..., Any], arguments: Arguments, has_aux: bool) -> list[str]:
    """Return the lines that the installed `print_saved_residuals` prints for the same call.

    It takes arrays alone and differentiates all of them: static arguments are closed over, and so
    are, as tracers, float arguments that `argnums` leaves out.

    Raises:
      JaxresidError: JAX's own function fails.
    """
    jax = jax_compat.import_jax()
    from jax.ad_checkpoint import print_saved_residuals

    held = [i for i in arguments.having("traced") if is_inexact(arguments.leaves[i])]
    count = arguments.treedef.num_leaves  # what the function reaches by itself comes after them
    held += [i for i in arguments.having("traced") if i >= count and i not in held]
    passed = [i for i in arguments.dynamic if i not in held]
    passed.sort()

    def show(held_leaves: Sequence[Any]) -> None:
        @functools.wraps(fun)  # JAX's lines name the arguments by the signature
        def primal(*args: Any, **kwargs: Any) -> Any:
            leaves = jax.tree.leaves((args, kwargs))
            dynamic = dict(zip([*passed, *held], [*leaves, *held_leaves], strict=True))
            y = call_with_leaves(fun, arguments, dynamic)
            return y[0] if has_aux else y

        # None is no leaf: in place of a static argument it keeps the others where they are.
        leaves = [leaf if i in passed else None for i, leaf in enumerate(arguments.leaves[:count])]
        args, kwargs = jax.tree.unflatten(arguments.treedef, leaves)
        print_saved_residuals(primal, *args, **kwargs)

    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            if held:
                jax.jit(show).trace([arguments.leaves[i] for i in held])
            else:
                show([])
    except Exception as e:
        raise JaxresidError(f"jax.ad_checkpoint.print_saved_residuals fails: {summary(e)}") from e
    return printed.getvalue().splitlines()
