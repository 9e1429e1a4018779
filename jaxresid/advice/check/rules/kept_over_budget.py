"""The rule `kept-over-budget` (JXR822)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_LAYERS = """
    import jax
    import jax.numpy as jnp
    from jax import lax

    # jaxresid check model.py:loss --max-kept 48MiB


    def layer(x, w):
        return jnp.sin(jnp.sin(x @ w)), None{mark}


    def loss(ws, x):
        x, _ = lax.scan({layer}, x, ws)
        return jnp.sum(x**2)


    def loss_inputs():
        ws = jax.ShapeDtypeStruct((8, 256, 256), jnp.float32)
        return ws, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
"""
_OPTIONS = ("--max-kept", "48MiB")


class KeptOverBudget(TracedRule):
    """The backward pass of a target keeps more than the limit that was set for it.

    ## What it does
    Holds the bytes that the backward pass keeps in device memory, without arguments, against
    `--max-kept`, or `max-kept` of the target's table in pyproject.toml, and reports the line that
    keeps most. The figure is that of the trace, exact and the same on every place. A limit is of
    the whole program: comments do not silence it, and it need not be selected.

    ## Why is this bad?
    What is kept grows with the batch and with the layers, and takes the place of both.

    ## Use instead
    A checkpoint around the code that keeps most, with a policy that saves what is expensive.

    ## When is this fine?
    Where the program is meant to keep more: raise the limit.
    """

    bad = (Example(_LAYERS.format(mark="  # !", layer="layer"), options=_OPTIONS),)
    good = (
        Example(
            _LAYERS.format(mark="", layer="jax.checkpoint(layer, prevent_cse=False)"),
            options=_OPTIONS,
        ),
    )
