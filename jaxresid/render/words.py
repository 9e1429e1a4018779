"""How single values read in text."""

from __future__ import annotations

import os
import re

from jaxresid.model import Aval, Location, Mark, Verdict

_SHORT = {"bool": "bool", "bfloat16": "bf16"}
_MARKS = {
    Mark.PRIMAL_OUTPUT: "also an output",
    Mark.DUPLICATE: "same value as another residual",
    Mark.FREE: "free to recompute",
    Mark.CARRY: "loop carry",
    Mark.INVARIANT: "same in every trip",
    Mark.UNREAD: "never read",
    Mark.OFFLOADED: "offloaded",
}
_KINDS = {  # of what is live at the peak: one, many
    "argument": ("argument", "arguments"),
    "constant": ("constant", "constants"),
    "output": ("output", "outputs"),
    "gradient": ("gradient", "gradients"),
    "residual": ("residual", "residuals"),
    "temporary": ("temporary", "temporaries"),
    "parameters": ("parameter", "parameters"),
    "optimizer-state": ("optimizer state", "optimizer state"),
    "batch": ("batch", "batch"),
}
_PHASES = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "recompute": "the recomputation",
    "update": "the update",
}
_VERDICTS = {
    Verdict.EARNS: "earns its keep",
    Verdict.SAVES_NOTHING: "saves nothing",
    Verdict.COSTS_MEMORY: "costs memory",
    Verdict.UNDONE: "undone by XLA",
    Verdict.OVERRIDDEN: "overridden",
    Verdict.MATCHED_NOTHING: "policy matched nothing",
    Verdict.NOT_JUDGED: "not judged",
}


def short_dtype(dtype: str) -> str:
    """`float32` -> `f32`, as jaxprs print it."""
    if dtype in _SHORT:
        return _SHORT[dtype]
    match = re.fullmatch(r"(float|uint|int|complex)(\d.*)", dtype)
    return match.group(1)[0] + match.group(2) if match else dtype


def aval_text(aval: Aval) -> str:
    """`f32[64,512]`, `f32<host>[4]`; of all devices of a mesh, `f32[64,512]@data,model`."""
    host = "<host>" if aval.memory == "host" else ""
    over = f"@{aval.spec}" if aval.spec else ""
    return f"{short_dtype(aval.dtype)}{host}[{','.join(map(str, aval.shape))}]{over}"


def place_text(location: Location) -> str:
    """`model.py:31`; a file of a library from its package on."""
    return f"{short_path(location.file)}:{location.line}"


def short_path(file: str) -> str:
    """The path as it reads best: from the package on for installed libraries."""
    for marker in (f"site-packages{os.sep}", f"dist-packages{os.sep}"):
        before, found, after = file.rpartition(marker)
        if found and before is not None:
            return after
    return file


def called_text(location: Location) -> str:
    """A library call: `flax/linen/linear.py:271 Dense.__call__`, or `jax.nn.softmax`."""
    path = short_path(location.file)
    function = "" if "<lambda>" in location.function else location.function
    match = re.match(r"jax[/\\](?:_src[/\\])?(\w+)", path)
    if match:
        return f"jax.{match.group(1)}.{function}".rstrip(".")
    return f"{path}:{location.line} {function}".rstrip()


def mark_text(mark: Mark) -> str:
    return _MARKS[mark]


def kind_text(kind: str) -> str:
    """One of what is live at the peak: `temporary`, `optimizer state`."""
    return _KINDS[kind][0]


def kinds_text(kind: str) -> str:
    """Many of them: `temporaries`."""
    return _KINDS[kind][1]


def phase_text(phase: str) -> str:
    """`the backward pass`."""
    return _PHASES[phase]


def verdict_text(verdict: Verdict) -> str:
    """`earns its keep`."""
    return _VERDICTS[verdict]


def percent(part: float, whole: float) -> str:
    """`90.8%`; nothing where there is no whole."""
    if not whole:
        return ""
    share = 100 * part / whole
    return "<0.1%" if 0 < share < 0.1 else f"{share:.1f}%"
