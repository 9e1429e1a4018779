"""Tell where a framework itself calls the layers of a model that is put together from them.

No line of the user's calls a layer of a `Sequential` of Flax or Equinox, or of a functional model
of Keras: the framework goes through what the user made once. What it calls there are the model's
own layers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import CodeType

from jaxresid.inspector.jaxpr.frames import Frame

# What goes through the layers: the end of its file's path, and the function.
_GRAPH = (os.path.join(os.sep, "keras", "src", "ops", "function.py"), "Function._run_through_graph")
_SEQUENCES = tuple(
    (os.path.join(os.sep, *path.split("/")), "Sequential.__call__")
    for path in ("flax/nnx/helpers.py", "flax/linen/combinators.py", "equinox/nn/_sequential.py")
)
# What calls one layer, in a name scope that is called like it.
_LAYER_FILE = os.path.join(os.sep, "keras", "src", "layers", "layer.py")
_LAYER_FUNCTION = "Layer.__call__"
_CALL = "call"  # the method that runs when a layer is called
# Operations, which are in the graph too and are no layers.
_OPERATIONS = os.path.join(os.sep, "keras", "src", "ops", "")


def is_container(code: CodeType) -> bool:
    """Return whether code calls the layers of a model by the framework's own structure."""
    return is_graph(code) or any(_is(code, *sequence) for sequence in _SEQUENCES)


def is_graph(code: CodeType) -> bool:
    """Return whether code is what calls the layers of a functional model of Keras.

    Only a setting of Keras checkpoints these, which has no policy and takes no state out of them.
    """
    return _is(code, *_GRAPH)


def is_layer(frame: Frame) -> bool:
    """Return whether a frame below that graph is that of a library's layer."""
    code = frame.code
    return (
        frame.kind == "library"
        and code.co_name == _CALL
        and code.co_varnames[:1] == ("self",)
        and _OPERATIONS not in code.co_filename
    )


def layer_name(frames: Sequence[Frame], start: int, stop: int, scopes: Sequence[str]) -> str | None:
    """Return the name of the layer whose method is called, which no other of its model has.

    Returns:
      The name; None where it is no layer of a framework that names its scopes by them.
    """
    opening = [
        i for i, frame in enumerate(frames[:stop]) if _is(frame.code, _LAYER_FILE, _LAYER_FUNCTION)
    ]
    if not opening or opening[-1] <= start or len(scopes) < len(opening):
        return None
    return scopes[len(opening) - 1]


def _is(code: CodeType, file: str, function: str) -> bool:
    return code.co_qualname == function and code.co_filename.endswith(file)
