"""Say what to write in the framework that the code is written in."""

from __future__ import annotations

import linecache
import os
import re
from typing import Literal

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.jax_compat.jaxpr_types import Eqn
from jaxresid.results import Source

Framework = Literal["jax", "linen", "nnx", "haiku", "equinox"]

# The end of a file's path and the beginning of the names of its functions -> the loop of a body
# under a checkpoint, of those that make it.
_LOOPS: tuple[tuple[str, str, str], ...] = (
    (
        "lax/control_flow/loops.py",
        "scan",
        "jax.lax.scan(jax.checkpoint(body, prevent_cse=False), ...)",
    ),
    (
        "lax/control_flow/loops.py",
        "map",
        "jax.lax.map(jax.checkpoint(body, prevent_cse=False), ...)",
    ),
    (
        "lax/control_flow/loops.py",
        "fori_loop",
        "jax.lax.fori_loop(lower, upper, jax.checkpoint(body, prevent_cse=False), ...)",
    ),
    ("flax/core/lift.py", "scan", "nn.scan(nn.remat(Layer, prevent_cse=False), ...)"),
    (
        "flax/nnx/transforms/iteration.py",
        "",
        "nnx.scan(nnx.remat(body, prevent_cse=False), ...)",
    ),
    ("haiku/_src/stateful.py", "scan", "hk.scan(hk.remat(body, prevent_cse=False), ...)"),
    (
        "haiku/_src/layer_stack.py",
        "",
        "hk.layer_stack(n)(hk.remat(layer, prevent_cse=False))",
    ),
)

_FOLDERS: tuple[tuple[str, Framework], ...] = (
    ("flax/linen/", "linen"),
    ("flax/core/", "linen"),
    ("flax/nnx/", "nnx"),
    ("haiku/", "haiku"),
    ("equinox/", "equinox"),
)
_IMPORTS: dict[Framework, re.Pattern[str]] = {
    "linen": re.compile(
        r"^[ \t]*(?:import flax\.linen\b|from flax import [^\n]*\blinen\b|from flax\.linen\b)", re.M
    ),
    "nnx": re.compile(
        r"^[ \t]*(?:import flax\.nnx\b|from flax import [^\n]*\bnnx\b|from flax\.nnx\b)", re.M
    ),
    "haiku": re.compile(r"^[ \t]*(?:import|from) haiku\b", re.M),
    "equinox": re.compile(r"^[ \t]*(?:import|from) equinox\b", re.M),
}


def checkpointed_loop(eqn: Eqn, frames: Frames) -> str:
    """Return how to write a loop with its body under a checkpoint, by the function that made it."""
    advice = _LOOPS[0][2]
    traceback = jax_compat.traceback(eqn)
    for code in () if traceback is None else traceback.raw_frames()[0]:
        if frames.kind(code.co_filename, code.co_qualname) in ("user", "root"):
            break
        path = code.co_filename.replace(os.sep, "/")
        for file, function, text in _LOOPS:
            name = code.co_qualname.partition(".")[0]
            if path.endswith(f"/{file}") and (not function or name == function):
                advice = text
    return advice


def framework_of(source: Source, frames: Frames) -> Framework:
    """Return the framework that the code at a source is written in; `jax` for plain JAX.

    It is that of the layer that computes it, else the only one that its file imports.
    """
    for call in (source.library, source.caller):
        path = "" if call is None else call.file.replace(os.sep, "/")
        for folder, framework in _FOLDERS:
            if f"-packages/{folder}" in path:
                return framework
    if source.location is None:
        return "jax"
    text = "".join(linecache.getlines(os.path.join(frames.cwd, source.location.file)))
    imported = [framework for framework, pattern in _IMPORTS.items() if pattern.search(text)]
    return imported[0] if len(imported) == 1 else "jax"


def is_flax_attention(source: Source) -> bool:
    """Return whether a source is in an attention layer of Linen or NNX."""
    path = "" if source.library is None else source.library.file.replace(os.sep, "/")
    return path.endswith(("/flax/linen/attention.py", "/flax/nnx/nn/attention.py"))
