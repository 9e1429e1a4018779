"""The rule `peak-over-budget` (JXR821)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_LAYERS = """
    import jax
    import jax.numpy as jnp

    # jaxresid check model.py:loss --max-peak 368MiB


    def layer(w, x):
        return jnp.sin(jnp.sin(x @ w)){mark}


    def loss(ws, x):
        for i in range(32):
            x = {layer}(ws[i], x)
        return jnp.sum(x**2)


    def loss_inputs():
        ws = jax.ShapeDtypeStruct((32, 256, 256), jnp.float32)
        return ws, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
"""
_OPTIONS = ("--max-peak", "368MiB")


class PeakOverBudget(TracedRule):
    """The peak of a target is above the limit that was set for it.

    ## What it does
    Holds the peak against `--max-peak`, or `max-peak` of the target's table in pyproject.toml, and
    reports the line whose values take most of it. The estimate decides, or XLA's figure with
    `--compile`; on a CPU the compiler is asked anyway. Where only the upper end of the range
    around an estimate is above the limit, the finding is an info. A limit is of the whole
    program: comments do not silence it, and it need not be selected.

    ## Why is this bad?
    What does not fit fails when it runs, and what still fits leaves less room than was agreed on.

    ## Use instead
    A checkpoint around the code that makes the largest values (`jaxresid plan TARGET --budget
    SIZE`), a smaller batch, or narrower types.

    ## When is this fine?
    Where the program is meant to take more: raise the limit.
    """

    bad = (Example(_LAYERS.format(mark="  # !", layer="layer"), options=_OPTIONS),)
    good = (Example(_LAYERS.format(mark="", layer="jax.checkpoint(layer)"), options=_OPTIONS),)
