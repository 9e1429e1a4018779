"""The rule `grown-over-baseline` (JXR823)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_LOCK = """
    version = 1

    [targets."model.py:loss"]
    place = "gpu:h100"
    jax = "0.10.2"
    kept = "40 MiB"
    peak = "50 MiB"
    peak-by = "estimate"
"""
_LAYERS = """
    import jax
    import jax.numpy as jnp

    # jaxresid check model.py:loss --max-growth 10% --baseline jaxresid.lock


    def layer(w, x):
        return jnp.sin(jnp.sin(x @ w)){mark}


    def loss(ws, x):
        for i in range(8):
            x = {layer}(ws[i], x)
        return jnp.sum(x**2)


    def loss_inputs():
        ws = jax.ShapeDtypeStruct((8, 256, 256), jnp.float32)
        return ws, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
"""
_FILES = {"jaxresid.lock": _LOCK}
_OPTIONS = ("--max-growth", "10%", "--baseline", "jaxresid.lock", "--on", "gpu:h100")


class GrownOverBaseline(TracedRule):
    """The peak of a target is higher than before, by more than the share that was set for it.

    ## What it does
    Compares the peak with that of a lockfile, of a saved report or of a revision of git
    (`--baseline`), where `--max-growth`, or `max-growth` of the target's table in pyproject.toml,
    is set, and reports the line that has grown most. Code that moved is followed. Where only what
    is kept for the backward pass has grown by more, and the peak has not, it is an info: that
    takes no more memory, and has a limit of its own, `--max-kept`. A limit is of the whole program:
    comments do not silence it, and it need not be selected.

    ## Why is this bad?
    Memory is lost a few percent at a time, each too small to be noticed in a review.

    ## Use instead
    A checkpoint around what has grown, or a narrower type. `jaxresid diff` shows what has changed.

    ## When is this fine?
    Where the growth is meant: `jaxresid check --update` writes the new figures into the lockfile,
    whose change a reviewer sees.
    """

    bad = (Example(_LAYERS.format(mark="  # !", layer="layer"), files=_FILES, options=_OPTIONS),)
    good = (
        Example(
            _LAYERS.format(mark="", layer="jax.checkpoint(layer)"), files=_FILES, options=_OPTIONS
        ),
    )
