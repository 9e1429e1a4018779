"""The wording of single values in text."""

from __future__ import annotations

import os
import re

from jaxresid.results import Aval, Computed, Location, Mark, Source, Verdict

_SHORT = {"bool": "bool", "bfloat16": "bf16"}
_MOST_PARTS = 3  # of a library's path
MARKS = {
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
    "frozen-weights": ("frozen weights", "frozen weights"),
    "batch": ("batch", "batch"),
    "state": ("state", "state"),
}
PHASES = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "recompute": "the recomputation",
    "update": "the update",
    "program": "the program",
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
    """Return the short name of a dtype as jaxprs print it: `f32` for `float32`."""
    if dtype in _SHORT:
        return _SHORT[dtype]
    match = re.fullmatch(r"(float|uint|int|complex)(\d.*)", dtype)
    return match.group(1)[0] + match.group(2) if match else dtype


def aval_text(aval: Aval) -> str:
    """Return an aval as text: `f32[64,512]`, `f32<host>[4]`, `f32[64,512]@data,model`."""
    host = "<host>" if aval.memory == "host" else ""
    over = f"@{aval.spec}" if aval.spec else ""
    return f"{short_dtype(aval.dtype)}{host}[{','.join(map(str, aval.shape))}]{over}"


def place_text(location: Location) -> str:
    """Return a location: `model.py:31`; the path of a library's file begins at its package."""
    return short_path(location.place)


def line_text(location: Location) -> str:
    """Return a location as text with its function: `model.py:31 Block.__call__`."""
    return f"{place_text(location)} {location.function}".rstrip()


def short_path(file: str) -> str:
    """Return the path of a file, from the package on for installed libraries."""
    for marker in (f"site-packages{os.sep}", f"dist-packages{os.sep}"):
        before, marked, after = file.rpartition(marker)
        if marked and before is not None:
            return after
    return file


def called_text(location: Location) -> str:
    """Return a library call: `flax/linen/linear.py:271 Dense`, `jax.nn.softmax`; cut if long."""
    path = short_path(location.file)
    function = "" if "<lambda>" in location.function else location.function
    function = function.removesuffix(".__call__")
    match = re.match(r"jax[/\\](?:_src[/\\])?(\w+)", path)
    if match:
        return f"jax.{match.group(1)}.{function}".rstrip(".")
    parts = path.split(os.sep)
    if not os.path.isabs(path) and len(parts) > _MOST_PARTS:
        path = os.sep.join((parts[0], "...", parts[-1]))
    return f"{path}:{location.line} {function}".rstrip()


def source_notes(source: Source) -> tuple[str, ...]:
    """Return the library calls and the scope of a source: `in flax/linen/linear.py:287 Dense`."""
    calls = [called_text(call) for call in (source.caller, source.library) if call is not None]
    called = f"in {' › '.join(calls)}" if calls else ""
    scope = f"scope {source.scope}" if source.scope else ""
    return tuple(note for note in (called, scope) if note)


def computed_text(origin: Computed, path: str) -> str:
    """Return what computes a residual: `named 'qkv': dot_general`, `mul of params['scale'] → neg`.

    `path` is the only argument that it is made of; '' where there is none such.
    """
    what = origin.primitive
    if what == "scan":  # it makes nothing of its own but copies of what comes from outside
        what = f"stacked copies of {path or 'a constant'}"
    elif path:
        what = f"{what} of {path}"
    for step in reversed(origin.through):
        # JAX puts reduce_precision, an identity, on every float that a checkpoint saves.
        what += f" → {step}" if step != "reduce_precision" else ""
    return f"named {origin.name!r}: {what}" if origin.name else what


def kind_text(kind: str) -> str:
    """Return a kind of value live at the peak in the singular: `temporary`, `optimizer state`."""
    return _KINDS[kind][0]


def kinds_text(kind: str) -> str:
    """Return a kind of value live at the peak in the plural: `temporaries`."""
    return _KINDS[kind][1]


def verdict_text(verdict: Verdict) -> str:
    """Return the verdict on a checkpoint in words: `earns its keep`."""
    return _VERDICTS[verdict]


def percent(part: float, whole: float) -> str:
    """Return a share in percent: `90.8%`; `<0.1%` for less, '' where the whole is zero."""
    if not whole:
        return ""
    share = 100 * part / whole
    return "<0.1%" if 0 < share < 0.1 else f"{share:.1f}%"
