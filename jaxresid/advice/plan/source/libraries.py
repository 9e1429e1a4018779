"""Say how libraries let their own code, which is not ours to edit, be checkpointed."""

from __future__ import annotations

import os
from pathlib import Path

_INSTALLED = ("site-packages", "dist-packages")

# By the package's name. What a user writes in their own file; a loop that is differentiated
# implicitly keeps none of its rounds.
SWITCHES = {
    "diffrax": "give diffeqsolve adjoint=diffrax.RecursiveCheckpointAdjoint(checkpoints=...)",
    "equinox": "wrap the module where it is called: equinox.filter_checkpoint(module)(...)",
    "flax": "wrap the module: flax.linen.remat(Block), flax.linen.remat_scan for a stack of them,"
    " flax.nnx.remat",
    "haiku": "wrap the module where it is called: haiku.remat(module)(...)",
    "haliax": "give Stacked.init gradient_checkpointing=True",
    "jaxopt": "give the solver implicit_diff=True and unroll=False",
    "keras": "make the layers under keras.RematScope; for a keras: target plan --emit keras says"
    " which",
    "levanter": "set gradient_checkpointing in the model's config",
    "maxtext": "set remat_policy and what becomes of each tensor in its configuration; for a"
    " maxtext: target plan --emit maxtext says what",
    "optimistix": "give the solve adjoint=optimistix.ImplicitAdjoint(), or"
    " optimistix.RecursiveCheckpointAdjoint()",
    "ott": "give the solver implicit_diff, an ott.solvers.linear.implicit_differentiation"
    ".ImplicitDiff",
    "penzai": "put penzai.toolshed.gradient_checkpointing.Checkpointed around its layers",
    "transformers": "call enable_gradient_checkpointing() on the Flax model, or give its module"
    " gradient_checkpointing=True",
}


def library_of(path: str) -> str | None:
    """Return the installed package that a file belongs to; None where it belongs to none."""
    parts = Path(path).parts
    for i in range(len(parts) - 2, -1, -1):
        if parts[i] in _INSTALLED:
            return os.path.splitext(parts[i + 1])[0]
    return None


def by_hand(library: str) -> str:
    """Return what to write in place of a checkpoint in a library's code, as far as it is known."""
    switch = SWITCHES.get(library)
    if switch is None:
        return f"no checkpoint option of {library} is known"
    return f"by hand: {switch}"
