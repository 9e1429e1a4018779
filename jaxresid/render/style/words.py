"""The wording of single values in text."""

from __future__ import annotations

import os
import re

from jaxresid.results import Aval, Computed, Location, Mark, Source, Verdict

_SHORT = {"bool": "bool", "bfloat16": "bf16"}
_MOST_PARTS = 3  # of a library's path
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
    "frozen-weights": ("frozen weights", "frozen weights"),
    "batch": ("batch", "batch"),
    "state": ("state", "state"),
}
_PHASES = {
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
    """Return an aval as text: `f32[64,512]`, `f32<host>[4]`.

    One that is split over a mesh is followed by its split: `f32[64,512]@data,model`.
    """
    host = "<host>" if aval.memory == "host" else ""
    over = f"@{aval.spec}" if aval.spec else ""
    return f"{short_dtype(aval.dtype)}{host}[{','.join(map(str, aval.shape))}]{over}"


def place_text(location: Location) -> str:
    """Return a location as text: `model.py:31`, `the loss (--loss mean)`.

    The path of a file of an installed library begins at its package.
    """
    return short_path(location.place)


def line_text(location: Location) -> str:
    """Return a location as text with its function: `model.py:31 Block.__call__`."""
    return f"{place_text(location)} {location.function}".rstrip()


def short_path(file: str) -> str:
    """Return the path of a file, from the package on for installed libraries."""
    for marker in (f"site-packages{os.sep}", f"dist-packages{os.sep}"):
        before, found, after = file.rpartition(marker)
        if found and before is not None:
            return after
    return file


def called_text(location: Location) -> str:
    """Return a library call as text: `flax/linen/linear.py:271 Dense`, or `jax.nn.softmax`.

    Only the ends of a long path are shown:
    `transformers/.../modeling_flax_llama.py:354 FlaxLlamaMLP`.
    """
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
    """Return what is known of a source besides the user's line: library calls and scope.

    Examples are `in transformers/.../modeling_flax_llama.py:354 FlaxLlamaMLP ›
    flax/linen/linear.py:287 Dense` and `scope layers/3/mlp`.
    """
    calls = [called_text(call) for call in (source.caller, source.library) if call is not None]
    called = f"in {' › '.join(calls)}" if calls else ""
    scope = f"scope {source.scope}" if source.scope else ""
    return tuple(note for note in (called, scope) if note)


def computed_text(origin: Computed, path: str) -> str:
    """Return what computes a residual, and the steps from there to the kept value.

    Examples are `named 'qkv': dot_general` and `mul of params['scale'] → convert_element_type`.

    Args:
      origin: where the residual is computed.
      path: the only argument that the residual is made of; '' where there is no such argument.
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


def mark_text(mark: Mark) -> str:
    """Return a mark of a residual in words: `free to recompute`."""
    return _MARKS[mark]


def kind_text(kind: str) -> str:
    """Return a kind of value live at the peak in the singular: `temporary`, `optimizer state`."""
    return _KINDS[kind][0]


def kinds_text(kind: str) -> str:
    """Return a kind of value live at the peak in the plural: `temporaries`."""
    return _KINDS[kind][1]


def phase_text(phase: str) -> str:
    """Return a phase in words: `the backward pass`."""
    return _PHASES[phase]


def verdict_text(verdict: Verdict) -> str:
    """Return the verdict on a checkpoint in words: `earns its keep`."""
    return _VERDICTS[verdict]


def percent(part: float, whole: float) -> str:
    """Return a share in percent with one decimal: `90.8%`.

    It is `<0.1%` for a positive share below that, and '' where the whole is zero.
    """
    if not whole:
        return ""
    share = 100 * part / whole
    return "<0.1%" if 0 < share < 0.1 else f"{share:.1f}%"
